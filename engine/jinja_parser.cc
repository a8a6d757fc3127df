// Jinja's grammar, as its own parser takes it, by recursive descent.
#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <iterator>

#include "engine/jinja_ast.h"
#include "engine/jinja_lexer.h"

namespace verbatim::engine::jinja {
namespace {

constexpr int kMaxExprDepth = 400;
constexpr int kMaxNesting = 100;

bool OneOf(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  Template Run() {
    Template out;
    out.body = ParseBody({});
    if (Now().kind != TokenKind::kEnd) Error("unexpected tag");
    out.uses_clock = uses_clock_;
    return out;
  }

 private:
  const Token& Now() const { return tokens_[at_]; }
  const Token& Ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token Take() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool Is(TokenKind kind, std::string_view text) const {
    return Now().kind == kind && Now().text == text;
  }
  bool IsOp(std::string_view op) const { return Is(TokenKind::kOperator, op); }
  bool IsName(std::string_view name) const { return Is(TokenKind::kName, name); }
  bool SkipOp(std::string_view op) { return IsOp(op) ? (Take(), true) : false; }
  bool SkipName(std::string_view name) { return IsName(name) ? (Take(), true) : false; }
  std::string Where() const { return "template, line " + std::to_string(Now().line) + ": "; }
  [[noreturn]] void Error(const std::string& what) const { Fail(Where() + what); }
  [[noreturn]] void Unsupported(const std::string& what) const {
    FailUnsupported(Where() + what + " is outside the supported subset of Jinja");
  }
  void ExpectOp(std::string_view op) {
    if (!SkipOp(op)) Error("expected '" + std::string(op) + "', got '" + Now().text + "'");
  }
  std::string ExpectName() {
    if (Now().kind != TokenKind::kName) Error("expected a name, got '" + Now().text + "'");
    return Take().text;
  }
  void EndTag() {
    if (Now().kind != TokenKind::kBlockEnd)
      Error("expected the tag's end, got '" + Now().text + "'");
    Take();
  }
  void Nest() {
    if (++nesting_ > kMaxNesting) Unsupported("nesting this deep");
  }

  ExprPtr Make(ExprType type, std::vector<ExprPtr> items = {}, std::string name = "") {
    auto e = std::make_unique<Expr>();
    e->type = type;
    e->line = Now().line;
    e->name = std::move(name);
    for (const ExprPtr& item : items) {
      if (item) e->depth = std::max(e->depth, item->depth + 1);
    }
    if (e->depth > kMaxExprDepth) Unsupported("an expression this deep");
    e->items = std::move(items);
    return e;
  }
  template <typename... Items>
  ExprPtr MakeOf(ExprType type, std::string name, Items... items) {
    std::vector<ExprPtr> list;
    (list.push_back(std::move(items)), ...);
    return Make(type, std::move(list), std::move(name));
  }
  ExprPtr Constant(Value value) {
    auto e = Make(ExprType::kConstant);
    e->value = std::move(value);
    return e;
  }

  // ---- statements ----

  // Statements until one of the tags named (not consumed: {% and the name are next) or the end.
  Body ParseBody(std::initializer_list<std::string_view> ends) {
    Nest();
    Body body;
    while (Now().kind != TokenKind::kEnd) {
      if (Now().kind == TokenKind::kData) {
        auto s = NewStmt(StmtType::kText);
        s->text = Take().text;
        body.push_back(std::move(s));
      } else if (Now().kind == TokenKind::kVariableBegin) {
        Take();
        auto s = NewStmt(StmtType::kOutput);
        s->expr = ParseTuple(true, false);
        if (Now().kind != TokenKind::kVariableEnd) Error("expected '}}', got '" + Now().text + "'");
        Take();
        body.push_back(std::move(s));
      } else {
        if (Ahead().kind == TokenKind::kName && OneOf(Ahead().text, ends)) break;
        Take();
        if (auto s = ParseStatement()) body.push_back(std::move(s));
      }
    }
    --nesting_;
    return body;
  }

  // Consumes {% name %} or, with more to read in the tag, {% name.
  std::string TakeEnd(std::initializer_list<std::string_view> ends, std::string_view of) {
    if (Now().kind != TokenKind::kBlockBegin) {
      Error("{% " + std::string(of) + " %} is not closed");
    }
    Take();
    const std::string name = ExpectName();
    if (!OneOf(name, ends)) Error("unexpected tag '" + name + "'");
    return name;
  }
  Body BodyUntil(std::string_view end, std::string_view of) {
    EndTag();
    Body body = ParseBody({end});
    TakeEnd({end}, of);
    EndTag();
    return body;
  }
  // A body with its own scope: unknown filters in it are errors now (as Jinja compiles it).
  Body HardBodyUntil(std::string_view end, std::string_view of) {
    const bool soft = std::exchange(soft_, false);
    Body body = BodyUntil(end, of);
    soft_ = soft;
    return body;
  }

  StmtPtr NewStmt(StmtType type) const {
    auto s = std::make_unique<Stmt>();
    s->type = type;
    s->line = Now().line;
    return s;
  }

  StmtPtr ParseStatement() {
    const std::string tag = ExpectName();
    if (tag == "if") return ParseIf();
    if (tag == "for") return ParseFor();
    if (tag == "set") return ParseSet();
    if (tag == "macro") return ParseMacro();
    if (tag == "call") return ParseCall();
    if (tag == "filter") {
      auto s = NewStmt(StmtType::kFilter);
      s->expr = ParseFilterChain(nullptr, true);
      s->body = HardBodyUntil("endfilter", "filter");
      return s;
    }
    if (tag == "with") {
      auto s = NewStmt(StmtType::kWith);
      while (Now().kind != TokenKind::kBlockEnd) {
        if (!s->assignments.empty()) ExpectOp(",");
        Target target = ParseTarget(false, false);
        ExpectOp("=");
        s->assignments.emplace_back(std::move(target), ParseExpression());
      }
      s->body = HardBodyUntil("endwith", "with");
      return s;
    }
    if (tag == "generation") {
      auto s = NewStmt(StmtType::kBlock);
      s->body = HardBodyUntil("endgeneration", "generation");
      return s;
    }
    if (tag == "break" || tag == "continue") {
      if (loops_ == 0) Error("{% " + tag + " %} outside a loop");
      auto s = NewStmt(tag == "break" ? StmtType::kBreak : StmtType::kContinue);
      EndTag();
      return s;
    }
    if (OneOf(tag, {"include", "import", "from", "extends", "block", "autoescape", "trans", "do",
                    "debug", "print"})) {
      Unsupported("{% " + tag + " %}");
    }
    Error("unknown tag '" + tag + "'");
  }

  StmtPtr ParseIf() {
    auto s = NewStmt(StmtType::kIf);
    const bool soft = std::exchange(soft_, true);
    while (true) {
      ExprPtr test = ParseTuple(false, false);
      EndTag();
      Body body = ParseBody({"elif", "else", "endif"});
      s->branches.emplace_back(std::move(test), std::move(body));
      const std::string end = TakeEnd({"elif", "else", "endif"}, "if");
      if (end == "elif") continue;
      if (end == "else") {
        EndTag();
        s->body = ParseBody({"endif"});
        TakeEnd({"endif"}, "if");
      }
      EndTag();
      break;
    }
    soft_ = soft;
    return s;
  }

  StmtPtr ParseFor() {
    auto s = NewStmt(StmtType::kFor);
    s->target = ParseTarget(true, false);
    if (!SkipName("in")) Error("expected 'in', got '" + Now().text + "'");
    s->expr = ParseTuple(false, false);
    const bool soft = std::exchange(soft_, false);
    if (SkipName("if")) s->condition = ParseExpression();
    if (IsName("recursive")) Unsupported("{% for ... recursive %}");
    EndTag();
    ++loops_;
    s->body = ParseBody({"endfor", "else"});
    --loops_;
    if (TakeEnd({"endfor", "else"}, "for") == "else") {
      EndTag();
      s->otherwise = ParseBody({"endfor"});
      TakeEnd({"endfor"}, "for");
    }
    EndTag();
    soft_ = soft;
    return s;
  }

  Target ParseTarget(bool tuple, bool with_namespace) {
    std::vector<Target> parts;
    bool is_tuple = false;
    while (true) {
      Target part;
      if (SkipOp("(")) {
        part = ParseTarget(true, false);
        ExpectOp(")");
      } else {
        part.name = ExpectName();
        if (OneOf(part.name, {"true", "false", "none", "True", "False", "None"})) {
          Error("cannot assign to '" + part.name + "'");
        }
        if (with_namespace && SkipOp(".")) part.attribute = ExpectName();
      }
      parts.push_back(std::move(part));
      if (!tuple || !SkipOp(",")) break;
      is_tuple = true;
      if (IsOp("=") || IsOp(")") || IsName("in") || Now().kind == TokenKind::kBlockEnd) break;
    }
    if (!is_tuple) return std::move(parts.front());
    Target out;
    out.parts = std::move(parts);
    return out;
  }

  StmtPtr ParseSet() {
    auto s = NewStmt(StmtType::kSet);
    s->target = ParseTarget(true, true);
    if (SkipOp("=")) {
      s->expr = ParseTuple(true, false);
      EndTag();
      return s;
    }
    s->type = StmtType::kSetBlock;
    if (IsOp("|")) s->expr = ParseFilterChain(nullptr, false);
    s->body = HardBodyUntil("endset", "set");
    return s;
  }

  void ParseParameters(Stmt& s) {
    ExpectOp("(");
    while (!IsOp(")")) {
      if (!s.parameters.empty()) ExpectOp(",");
      std::string name = ExpectName();
      ExprPtr value;
      if (SkipOp("=")) {
        value = ParseExpression();
      } else if (!s.parameters.empty() && s.parameters.back().second) {
        Error("a parameter without default follows one with");
      }
      s.parameters.emplace_back(std::move(name), std::move(value));
    }
    ExpectOp(")");
  }
  // Body of a macro or caller; which of the special names it uses decides what it accepts.
  void ParseMacroBody(Stmt& s, std::string_view end, std::string_view of) {
    const int loops = std::exchange(loops_, 0);
    const Specials outer = std::exchange(specials_, {});
    s.body = HardBodyUntil(end, of);
    s.uses_varargs = specials_.varargs;
    s.uses_kwargs = specials_.kwargs;
    s.uses_caller = specials_.caller;
    specials_.varargs |= outer.varargs;
    specials_.kwargs |= outer.kwargs;
    specials_.caller |= outer.caller;
    loops_ = loops;
  }
  StmtPtr ParseMacro() {
    auto s = NewStmt(StmtType::kMacro);
    s->name = ExpectName();
    ParseParameters(*s);
    ParseMacroBody(*s, "endmacro", "macro");
    return s;
  }
  StmtPtr ParseCall() {
    auto s = NewStmt(StmtType::kCall);
    if (IsOp("(")) ParseParameters(*s);
    s->expr = ParseExpression();
    if (s->expr->type != ExprType::kCall) Error("{% call %} needs a call");
    ParseMacroBody(*s, "endcall", "call");
    return s;
  }

  // ---- expressions ----

  ExprPtr ParseExpression(bool with_condition = true) {
    Nest();
    ExprPtr e = with_condition ? ParseConditional() : ParseOr();
    --nesting_;
    return e;
  }

  bool IsTupleEnd() const {
    return Now().kind == TokenKind::kVariableEnd || Now().kind == TokenKind::kBlockEnd ||
           IsOp(")") || IsName("recursive");
  }
  ExprPtr ParseTuple(bool with_condition, bool parentheses) {
    std::vector<ExprPtr> items;
    bool is_tuple = false;
    while (true) {
      if (!items.empty()) ExpectOp(",");
      if (IsTupleEnd()) break;
      items.push_back(ParseExpression(with_condition));
      if (!IsOp(",")) break;
      is_tuple = true;
    }
    if (!is_tuple) {
      if (!items.empty()) return std::move(items.front());
      if (!parentheses) Error("expected an expression, got '" + Now().text + "'");
    }
    return Make(ExprType::kTuple, std::move(items));
  }

  ExprPtr ParseConditional() {
    ExprPtr value = ParseOr();
    while (SkipName("if")) {
      const bool soft = std::exchange(soft_, true);
      ExprPtr test = ParseOr();
      ExprPtr otherwise;
      if (SkipName("else")) otherwise = ParseExpression();
      soft_ = soft;
      value = MakeOf(ExprType::kConditional, "", std::move(value), std::move(test),
                     std::move(otherwise));
    }
    return value;
  }
  ExprPtr ParseOr() {
    ExprPtr left = ParseAnd();
    while (SkipName("or")) left = MakeOf(ExprType::kOr, "", std::move(left), ParseAnd());
    return left;
  }
  ExprPtr ParseAnd() {
    ExprPtr left = ParseNot();
    while (SkipName("and")) left = MakeOf(ExprType::kAnd, "", std::move(left), ParseNot());
    return left;
  }
  ExprPtr ParseNot() {
    if (!SkipName("not")) return ParseCompare();
    Nest();
    ExprPtr e = MakeOf(ExprType::kUnary, "not", ParseNot());
    --nesting_;
    return e;
  }
  ExprPtr ParseCompare() {
    ExprPtr first = ParseSum();
    std::vector<std::string> ops;
    std::vector<ExprPtr> items;
    while (true) {
      std::string op;
      if (Now().kind == TokenKind::kOperator &&
          OneOf(Now().text, {"==", "!=", "<", "<=", ">", ">="})) {
        op = Take().text;
      } else if (SkipName("in")) {
        op = "in";
      } else if (IsName("not") && Ahead().kind == TokenKind::kName && Ahead().text == "in") {
        Take();
        Take();
        op = "not in";
      } else {
        break;
      }
      if (items.empty()) items.push_back(std::move(first));
      ops.push_back(std::move(op));
      items.push_back(ParseSum());
    }
    if (ops.empty()) return first;
    auto e = Make(ExprType::kCompare, std::move(items));
    e->ops = std::move(ops);
    return e;
  }
  ExprPtr ParseSum() {
    ExprPtr left = ParseConcat();
    while (IsOp("+") || IsOp("-")) {
      std::string op = Take().text;
      left = MakeOf(ExprType::kBinary, std::move(op), std::move(left), ParseConcat());
    }
    return left;
  }
  ExprPtr ParseConcat() {
    std::vector<ExprPtr> items;
    items.push_back(ParseProduct());
    while (SkipOp("~")) items.push_back(ParseProduct());
    if (items.size() == 1) return std::move(items.front());
    return Make(ExprType::kConcat, std::move(items));
  }
  ExprPtr ParseProduct() {
    ExprPtr left = ParsePower();
    while (IsOp("*") || IsOp("/") || IsOp("//") || IsOp("%")) {
      std::string op = Take().text;
      left = MakeOf(ExprType::kBinary, std::move(op), std::move(left), ParsePower());
    }
    return left;
  }
  ExprPtr ParsePower() {
    ExprPtr left = ParseUnary(true);
    while (SkipOp("**")) left = MakeOf(ExprType::kBinary, "**", std::move(left), ParseUnary(true));
    return left;
  }
  ExprPtr ParseUnary(bool with_filter) {
    Nest();
    ExprPtr e;
    if (IsOp("-") || IsOp("+")) {
      std::string op = Take().text;
      e = MakeOf(ExprType::kUnary, std::move(op), ParseUnary(false));
    } else {
      e = ParsePrimary();
    }
    e = ParsePostfix(std::move(e));
    if (with_filter) e = ParseFilters(std::move(e));
    --nesting_;
    return e;
  }

  ExprPtr ParsePrimary() {
    const Token& token = Now();
    switch (token.kind) {
      case TokenKind::kName: {
        std::string name = Take().text;
        if (name == "true" || name == "True") return Constant(Value::Bool(true));
        if (name == "false" || name == "False") return Constant(Value::Bool(false));
        if (name == "none" || name == "None") return Constant(Value::None());
        specials_.varargs |= name == "varargs";
        specials_.kwargs |= name == "kwargs";
        specials_.caller |= name == "caller";
        uses_clock_ |= name == "strftime_now";
        return Make(ExprType::kName, {}, std::move(name));
      }
      case TokenKind::kString: {
        std::string text = Take().text;
        while (Now().kind == TokenKind::kString) text += Take().text;
        return Constant(Value::String(std::move(text), true));
      }
      case TokenKind::kInteger: {
        int64_t v = 0;
        const std::string& text = token.text;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), v);
        if (error != std::errc() || end != text.data() + text.size()) {
          Unsupported("the integer " + text);
        }
        Take();
        return Constant(Value::Int(v));
      }
      case TokenKind::kFloat: {
        double v = 0;
        const std::string& text = token.text;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), v);
        if (error != std::errc()) Unsupported("the number " + text);
        Take();
        return Constant(Value::Float(v));
      }
      case TokenKind::kOperator:
        if (SkipOp("(")) {
          ExprPtr e = ParseTuple(true, true);
          ExpectOp(")");
          return e;
        }
        if (SkipOp("[")) {
          std::vector<ExprPtr> items;
          while (!IsOp("]")) {
            if (!items.empty()) ExpectOp(",");
            if (IsOp("]")) break;
            items.push_back(ParseExpression());
          }
          ExpectOp("]");
          return Make(ExprType::kList, std::move(items));
        }
        if (SkipOp("{")) {
          std::vector<ExprPtr> items;
          while (!IsOp("}")) {
            if (!items.empty()) ExpectOp(",");
            if (IsOp("}")) break;
            items.push_back(ParseExpression());
            ExpectOp(":");
            items.push_back(ParseExpression());
          }
          ExpectOp("}");
          return Make(ExprType::kDict, std::move(items));
        }
        break;
      default:
        break;
    }
    Error("unexpected '" + token.text + "' in an expression");
  }

  ExprPtr ParsePostfix(ExprPtr e) {
    while (true) {
      if (SkipOp(".")) {
        if (Now().kind == TokenKind::kInteger) {
          ExprPtr index = ParsePrimary();
          e = MakeOf(ExprType::kItem, "", std::move(e), std::move(index));
        } else {
          std::string name = ExpectName();
          e = MakeOf(ExprType::kAttribute, std::move(name), std::move(e));
        }
      } else if (SkipOp("[")) {
        e = ParseSubscript(std::move(e));
      } else if (IsOp("(")) {
        e = MakeOf(ExprType::kCall, "", std::move(e));
        ParseArguments(*e);
      } else {
        return e;
      }
    }
  }

  ExprPtr ParseSubscript(ExprPtr object) {
    ExprPtr parts[3];
    bool slice = false;
    if (!IsOp(":")) parts[0] = ParseExpression();
    for (int i = 1; i < 3 && SkipOp(":"); ++i) {
      slice = true;
      if (!IsOp(":") && !IsOp("]") && !IsOp(",")) parts[i] = ParseExpression();
    }
    if (!slice && IsOp(",")) {
      std::vector<ExprPtr> items;
      items.push_back(std::move(parts[0]));
      while (SkipOp(",")) {
        if (IsOp("]")) break;
        items.push_back(ParseExpression());
      }
      parts[0] = Make(ExprType::kTuple, std::move(items));
    }
    ExpectOp("]");
    if (!slice) return MakeOf(ExprType::kItem, "", std::move(object), std::move(parts[0]));
    return MakeOf(ExprType::kSlice, "", std::move(object), std::move(parts[0]), std::move(parts[1]),
                  std::move(parts[2]));
  }

  void ParseArguments(Expr& e) {
    ExpectOp("(");
    Arguments& a = e.arguments;
    bool first = true;
    const auto count = [&](const ExprPtr& item) { e.depth = std::max(e.depth, item->depth + 1); };
    while (!IsOp(")")) {
      if (!first) ExpectOp(",");
      first = false;
      if (IsOp(")")) break;
      if (SkipOp("*")) {
        if (a.star || a.double_star) Error("invalid arguments");
        a.star = ParseExpression();
        count(a.star);
      } else if (SkipOp("**")) {
        if (a.double_star) Error("invalid arguments");
        a.double_star = ParseExpression();
        count(a.double_star);
      } else if (Now().kind == TokenKind::kName && Ahead().kind == TokenKind::kOperator &&
                 Ahead().text == "=") {
        std::string name = Take().text;
        Take();
        a.keywords.emplace_back(std::move(name), ParseExpression());
        count(a.keywords.back().second);
      } else {
        if (!a.keywords.empty() || a.star || a.double_star) Error("invalid arguments");
        a.positional.push_back(ParseExpression());
        count(a.positional.back());
      }
    }
    ExpectOp(")");
    if (e.depth > kMaxExprDepth) Unsupported("an expression this deep");
  }

  ExprPtr ParseFilters(ExprPtr e) {
    while (true) {
      if (IsOp("|")) {
        e = ParseFilterChain(std::move(e), false);
      } else if (IsName("is")) {
        e = ParseTest(std::move(e));
      } else if (IsOp("(")) {
        e = MakeOf(ExprType::kCall, "", std::move(e));
        ParseArguments(*e);
      } else {
        return e;
      }
    }
  }

  std::string DottedName() {
    std::string name = ExpectName();
    while (SkipOp(".")) name += "." + ExpectName();
    return name;
  }

  // | name(arguments) ..., or without the first bar in {% filter %}.
  ExprPtr ParseFilterChain(ExprPtr e, bool inline_first) {
    while (inline_first || IsOp("|")) {
      if (!inline_first) Take();
      inline_first = false;
      std::string name = DottedName();
      if (IsFilterOutsideSubset(name)) Unsupported("the filter '" + name + "'");
      if (!IsFilter(name) && !soft_) Error("No filter named '" + name + "'.");
      e = MakeOf(ExprType::kFilter, std::move(name), std::move(e));
      if (IsOp("(")) ParseArguments(*e);
    }
    return e;
  }

  ExprPtr ParseTest(ExprPtr e) {
    Take();  // is
    const bool negated = SkipName("not");
    std::string name = DottedName();
    if (!IsTest(name) && !soft_) Error("No test named '" + name + "'.");
    auto test = MakeOf(ExprType::kTest, std::move(name), std::move(e));
    test->negated = negated;
    const TokenKind kind = Now().kind;
    if (IsOp("(")) {
      ParseArguments(*test);
    } else if (kind == TokenKind::kString || kind == TokenKind::kInteger ||
               kind == TokenKind::kFloat || IsOp("[") || IsOp("{") ||
               (kind == TokenKind::kName && !OneOf(Now().text, {"else", "or", "and"}))) {
      if (IsName("is")) Error("tests cannot be chained with is");
      test->arguments.positional.push_back(ParsePostfix(ParsePrimary()));
    }
    return test;
  }

  struct Specials {
    bool varargs = false, kwargs = false, caller = false;
  };
  std::vector<Token> tokens_;
  size_t at_ = 0;
  int nesting_ = 0, loops_ = 0;
  bool soft_ = false;  // inside if: unknown filters and tests are errors when they are reached
  bool uses_clock_ = false;
  Specials specials_;
};

}  // namespace

Template ParseTemplate(std::string_view source) { return Parser(Tokenize(source)).Run(); }

}  // namespace verbatim::engine::jinja
