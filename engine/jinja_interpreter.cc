#include "engine/jinja_interpreter.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace verbatim::engine::jinja {
namespace {

constexpr uint32_t kMaxDepth = 800;  // of evaluation, over all macro calls

bool In(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// How Jinja names an object in messages about undefined things.
std::string ObjectName(const Value& v) {
  if (v.is_none()) return "None";
  if (v.is(Kind::kNamespace)) return "jinja2.utils.Namespace object";
  return TypeName(v) + " object";
}

Value NoAttribute(const Value& object, const std::string& name) {
  return Value::Undefined("'" + ObjectName(object) + "' has no attribute '" + name + "'");
}

}  // namespace

class Interpreter::DepthGuard {
 public:
  explicit DepthGuard(uint32_t& depth) : depth_(depth) {
    if (++depth_ > kMaxDepth) {
      --depth_;
      FailUnsupported("the template recurses too deeply");
    }
  }
  ~DepthGuard() { --depth_; }
  DepthGuard(const DepthGuard&) = delete;
  DepthGuard& operator=(const DepthGuard&) = delete;

 private:
  uint32_t& depth_;
};

// A scope for the length of a block, or of the rendering where a macro took hold of it.
class Interpreter::ScopeHolder {
 public:
  ScopeHolder(Interpreter& in, Scope* parent) : in_(in), scope_(std::make_unique<Scope>()) {
    scope_->parent = parent;
  }
  ~ScopeHolder() {
    if (scope_->captured) in_.kept_.push_back(std::move(scope_));
  }
  ScopeHolder(const ScopeHolder&) = delete;
  ScopeHolder& operator=(const ScopeHolder&) = delete;
  Scope& operator*() { return *scope_; }

 private:
  Interpreter& in_;
  std::unique_ptr<Scope> scope_;
};

Text Interpreter::Run(const Template& source, std::unordered_map<std::string, Value> variables) {
  auto root = std::make_unique<Scope>();
  root->names = std::move(variables);
  kept_.push_back(std::move(root));
  Text out;
  ExecuteBody(source.body, *kept_.front(), out);
  return out;
}

void Interpreter::Charge(uint64_t steps) {
  steps_ += steps;
  if (steps_ > limits_.max_steps) {
    FailUnsupported("the template needs more than " + std::to_string(limits_.max_steps) +
                    " steps with these messages");
  }
}

Value Interpreter::MakeString(Text text, bool markup) {
  Charge(1 + text.size() / 16);
  if (text.size() > limits_.max_output_bytes) {
    FailUnsupported("a string of the template is longer than " +
                    std::to_string(limits_.max_output_bytes) + " bytes");
  }
  return Value::String(std::move(text), markup);
}

void Interpreter::Write(const Text& text, Text& out) {
  Charge(1 + text.size() / 16);
  if (out.size() + text.size() > limits_.max_output_bytes) {
    FailUnsupported("the prompt is longer than " + std::to_string(limits_.max_output_bytes) +
                    " bytes");
  }
  out.Append(text);
}

std::vector<Value> Interpreter::Items(const Value& v) {
  std::vector<Value> items = Iterate(v);
  Charge(items.size() * 4);
  return items;
}

// ---- statements ----

Interpreter::Flow Interpreter::ExecuteBody(const Body& body, Scope& scope, Text& out) {
  for (const StmtPtr& s : body) {
    const Flow flow = Execute(*s, scope, out);
    if (flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::Execute(const Stmt& s, Scope& scope, Text& out) {
  const DepthGuard guard(depth_);
  Charge(1);
  switch (s.type) {
    case StmtType::kText:
      Write(Text(s.text, true), out);
      break;
    case StmtType::kOutput: {
      const Value v = Evaluate(*s.expr, scope);
      Charge(v.weight() / 16);
      Write(ToText(v), out);
      break;
    }
    case StmtType::kIf:
      for (const auto& [test, body] : s.branches) {
        if (Truth(Evaluate(*test, scope))) return ExecuteBody(body, scope, out);
      }
      return ExecuteBody(s.body, scope, out);
    case StmtType::kFor:
      return ExecuteFor(s, scope, out);
    case StmtType::kSet:
      Assign(s.target, Evaluate(*s.expr, scope), scope);
      break;
    case StmtType::kSetBlock: {
      Text captured;
      {
        ScopeHolder inner(*this, &scope);
        ExecuteBody(s.body, *inner, captured);
      }
      Value v = MakeString(std::move(captured));
      if (s.expr) v = EvaluateFilter(*s.expr, scope, &v);
      Assign(s.target, v, scope);
      break;
    }
    case StmtType::kMacro:
      scope.names[s.name] = MakeMacro(s, s.name, scope);
      break;
    case StmtType::kCall:
      ExecuteCall(s, scope, out);
      break;
    case StmtType::kFilter: {
      Text captured;
      ScopeHolder inner(*this, &scope);
      ExecuteBody(s.body, *inner, captured);
      const Value input = MakeString(std::move(captured));
      Write(ToText(EvaluateFilter(*s.expr, *inner, &input)), out);
      break;
    }
    case StmtType::kWith: {
      ScopeHolder inner(*this, &scope);
      for (const auto& [target, expr] : s.assignments) {
        Assign(target, Evaluate(*expr, scope), *inner);
      }
      return ExecuteBody(s.body, *inner, out);
    }
    case StmtType::kBlock: {
      ScopeHolder inner(*this, &scope);
      return ExecuteBody(s.body, *inner, out);
    }
    case StmtType::kBreak:
      return Flow::kBreak;
    case StmtType::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::ExecuteFor(const Stmt& s, Scope& scope, Text& out) {
  std::vector<Value> items = Items(Evaluate(*s.expr, scope));
  if (s.condition) {
    std::vector<Value> kept;
    for (Value& item : items) {
      ScopeHolder inner(*this, &scope);
      (*inner).names["loop"] =
          Value::Undefined("'loop' is undefined: the filter section of a loop has none");
      Assign(s.target, item, *inner);
      if (Truth(Evaluate(*s.condition, *inner))) kept.push_back(std::move(item));
    }
    items = std::move(kept);
  }
  if (items.empty()) {
    ScopeHolder inner(*this, &scope);
    return ExecuteBody(s.otherwise, *inner, out);
  }
  auto loop = std::make_shared<LoopObject>();
  const Value sequence = Value::List(std::move(items));
  loop->depth = sequence.depth();
  loop->weight = sequence.weight();
  loop->items = sequence.list().items;
  const Value loop_value = Value::Of(Kind::kLoop, loop);
  for (size_t i = 0; i < loop->items.size(); ++i) {
    Charge(2);
    loop->index0 = i;
    ScopeHolder inner(*this, &scope);
    (*inner).names["loop"] = loop_value;
    Assign(s.target, loop->items[i], *inner);
    if (ExecuteBody(s.body, *inner, out) == Flow::kBreak) break;
  }
  return Flow::kNormal;
}

void Interpreter::ExecuteCall(const Stmt& s, Scope& scope, Text& out) {
  const Value caller = MakeMacro(s, "caller", scope);
  Write(ToText(EvaluateCall(*s.expr, scope, &caller)), out);
}

void Interpreter::Assign(const Target& target, const Value& value, Scope& scope) {
  if (!target.parts.empty()) {
    const std::vector<Value> items = Items(value);
    if (items.size() < target.parts.size()) {
      Fail("not enough values to unpack (expected " + std::to_string(target.parts.size()) +
           ", got " + std::to_string(items.size()) + ")");
    }
    if (items.size() > target.parts.size()) {
      Fail("too many values to unpack (expected " + std::to_string(target.parts.size()) + ")");
    }
    for (size_t i = 0; i < items.size(); ++i) Assign(target.parts[i], items[i], scope);
    return;
  }
  if (target.attribute.empty()) {
    scope.names[target.name] = value;
    return;
  }
  for (Scope* at = &scope; at != nullptr; at = at->parent) {
    const auto it = at->names.find(target.name);
    if (it == at->names.end()) continue;
    if (!it->second.is(Kind::kNamespace)) break;
    if (value.depth() > kMaxValueDepth) {
      FailUnsupported("a namespace inside another value is outside the subset");
    }
    it->second.as<NamespaceObject>().attributes[target.attribute] = value;
    return;
  }
  Fail("cannot assign attribute on non-namespace object");
}

Value Interpreter::MakeMacro(const Stmt& s, std::string name, Scope& scope) {
  auto macro = std::make_shared<MacroObject>();
  macro->definition = &s;
  macro->name = std::move(name);
  macro->scope = &scope;
  for (Scope* at = &scope; at != nullptr && !at->captured; at = at->parent) at->captured = true;
  Charge(16);
  return Value::Of(Kind::kMacro, std::move(macro));
}

// ---- expressions ----

Value Interpreter::Evaluate(const Expr& e, Scope& scope) {
  const DepthGuard guard(depth_);
  Charge(1);
  switch (e.type) {
    case ExprType::kConstant:
      return e.value;
    case ExprType::kName:
      return EvaluateName(e, scope);
    case ExprType::kList:
    case ExprType::kTuple: {
      std::vector<Value> items;
      for (const ExprPtr& item : e.items) items.push_back(Evaluate(*item, scope));
      Charge(items.size() * 4);
      return e.type == ExprType::kList ? Value::List(std::move(items))
                                       : Value::Tuple(std::move(items));
    }
    case ExprType::kDict:
      return EvaluateDict(e, scope);
    case ExprType::kAttribute:
      return GetAttribute(Evaluate(*e.items[0], scope), e.name);
    case ExprType::kItem: {
      const Value object = Evaluate(*e.items[0], scope);
      return GetItem(object, Evaluate(*e.items[1], scope));
    }
    case ExprType::kSlice:
      return EvaluateSlice(e, scope);
    case ExprType::kCall:
      return EvaluateCall(e, scope, nullptr);
    case ExprType::kFilter:
      return EvaluateFilter(e, scope, nullptr);
    case ExprType::kTest:
      return EvaluateTest(e, scope);
    case ExprType::kUnary:
      return EvaluateUnary(e, scope);
    case ExprType::kBinary:
      return EvaluateBinary(e, scope);
    case ExprType::kConcat:
      return EvaluateConcat(e, scope);
    case ExprType::kCompare:
      return EvaluateCompare(e, scope);
    case ExprType::kAnd: {
      Value left = Evaluate(*e.items[0], scope);
      return Truth(left) ? Evaluate(*e.items[1], scope) : left;
    }
    case ExprType::kOr: {
      Value left = Evaluate(*e.items[0], scope);
      return Truth(left) ? left : Evaluate(*e.items[1], scope);
    }
    case ExprType::kConditional:
      if (Truth(Evaluate(*e.items[1], scope))) return Evaluate(*e.items[0], scope);
      if (e.items[2]) return Evaluate(*e.items[2], scope);
      return Value::Undefined("the inline if-expression on line " + std::to_string(e.line) +
                              " evaluated to false and no else section was defined.");
  }
  return Value::None();
}

Value Interpreter::EvaluateName(const Expr& e, Scope& scope) {
  for (const Scope* at = &scope; at != nullptr; at = at->parent) {
    const auto it = at->names.find(e.name);
    if (it != at->names.end()) return it->second;
  }
  if (In(e.name, {"range", "dict", "namespace", "raise_exception", "strftime_now"})) {
    return Value::Function(e.name);
  }
  if (In(e.name, {"lipsum", "cycler", "joiner"})) {
    FailUnsupported("the global '" + e.name + "' is outside the supported subset of Jinja");
  }
  return Value::Undefined("'" + e.name + "' is undefined");
}

Value Interpreter::EvaluateDict(const Expr& e, Scope& scope) {
  auto dict = std::make_shared<DictObject>();
  for (size_t i = 0; i < e.items.size(); i += 2) {
    Value key = Evaluate(*e.items[i], scope);
    Charge(8 + key.weight() / 16);
    dict->Set(std::move(key), Evaluate(*e.items[i + 1], scope));
  }
  return MakeDict(std::move(dict));
}

Value Interpreter::EvaluateSlice(const Expr& e, Scope& scope) {
  const Value object = Evaluate(*e.items[0], scope);
  std::optional<int64_t> bounds[3];
  for (size_t i = 0; i < 3; ++i) {
    if (!e.items[i + 1]) continue;
    const Value v = Evaluate(*e.items[i + 1], scope);
    if (v.is_none()) continue;
    if (v.is_undefined()) Fail(v.bytes());
    if (!v.is_integer()) Fail("slice indices must be integers or None or have an __index__ method");
    bounds[i] = v.integer();
  }
  return Slice(object, bounds[0], bounds[1], bounds[2].value_or(1));
}

Value Interpreter::Slice(const Value& v, std::optional<int64_t> start, std::optional<int64_t> stop,
                         int64_t step) {
  const bool list = v.is(Kind::kList) && (v.list().type == ListObject::Type::kList ||
                                          v.list().type == ListObject::Type::kTuple);
  if (v.is_undefined()) Fail(v.bytes());
  if (v.is(Kind::kList) && v.list().type == ListObject::Type::kRange) {
    FailUnsupported("slicing a range is outside the subset");
  }
  if (!list && !v.is_string()) return Value::Undefined(ObjectName(v) + " has no such slice");
  if (step == 0) Fail("slice step cannot be zero");
  std::vector<size_t> offsets;
  if (!list) {
    Charge(v.bytes().size() / 8);
    offsets = CharOffsets(v.bytes());
  }
  const auto n = static_cast<int64_t>(list ? v.list().items.size() : offsets.size() - 1);
  const auto clamp = [&](std::optional<int64_t> at, int64_t otherwise) {
    if (!at) return otherwise;
    const int64_t low = step < 0 ? -1 : 0, high = step < 0 ? n - 1 : n;
    return *at < 0 ? std::max(*at + n, low) : std::min(*at, high);
  };
  const int64_t from = clamp(start, step < 0 ? n - 1 : 0);
  const int64_t to = clamp(stop, step < 0 ? -1 : n);
  std::vector<size_t> picked;
  for (int64_t i = from; step < 0 ? i > to : i < to;) {
    picked.push_back(static_cast<size_t>(i));
    if (step > n || step < -n) break;
    i += step;
  }
  Charge(picked.size());
  if (list) {
    std::vector<Value> items;
    for (const size_t i : picked) items.push_back(v.list().items[i]);
    return v.list().type == ListObject::Type::kTuple ? Value::Tuple(std::move(items))
                                                     : Value::List(std::move(items));
  }
  if (step == 1) {
    if (picked.empty()) return MakeString({}, v.is_markup());
    return MakeString(v.text().Slice(offsets[picked.front()], offsets[picked.back() + 1]),
                      v.is_markup());
  }
  Text out;
  for (const size_t i : picked) out.Append(v.text().Slice(offsets[i], offsets[i + 1]));
  return MakeString(std::move(out), v.is_markup());
}

Value Interpreter::EvaluateUnary(const Expr& e, Scope& scope) {
  const Value v = Evaluate(*e.items[0], scope);
  if (e.name == "not") return Value::Bool(!Truth(v));
  if (v.is_undefined()) Fail(v.bytes());
  if (v.is(Kind::kFloat)) return Value::Float(e.name == "-" ? -v.real() : v.real());
  if (!v.is_integer()) Fail("bad operand type for unary " + e.name + ": '" + TypeName(v) + "'");
  if (e.name == "+") return Value::Int(v.integer());
  if (v.integer() == std::numeric_limits<int64_t>::min()) {
    FailUnsupported("an integer beyond 64 bits");
  }
  return Value::Int(-v.integer());
}

Value Interpreter::EvaluateBinary(const Expr& e, Scope& scope) {
  const Value left = Evaluate(*e.items[0], scope);
  return Binary(e.name, left, Evaluate(*e.items[1], scope));
}

namespace {

Value IntegerOp(const std::string& op, int64_t a, int64_t b) {
  int64_t r = 0;
  bool overflow = false;
  if (op == "+") {
    overflow = __builtin_add_overflow(a, b, &r);
  } else if (op == "-") {
    overflow = __builtin_sub_overflow(a, b, &r);
  } else if (op == "*") {
    overflow = __builtin_mul_overflow(a, b, &r);
  } else if (op == "/") {
    if (b == 0) Fail("division by zero");
    return Value::Float(static_cast<double>(a) / static_cast<double>(b));
  } else if (op == "//" || op == "%") {
    if (b == 0) Fail("integer division or modulo by zero");
    overflow = a == std::numeric_limits<int64_t>::min() && b == -1;
    if (!overflow) {
      int64_t quotient = a / b, rest = a % b;
      if (rest != 0 && (rest < 0) != (b < 0)) {
        --quotient;
        rest += b;
      }
      r = op == "%" ? rest : quotient;
    }
  } else {  // **
    if (b < 0) {
      if (a == 0) Fail("0.0 cannot be raised to a negative power");
      return Value::Float(std::pow(static_cast<double>(a), static_cast<double>(b)));
    }
    r = 1;
    for (int64_t base = a, n = b; n > 0 && !overflow; n >>= 1) {
      if (n & 1) overflow = __builtin_mul_overflow(r, base, &r);
      if (n > 1 && !overflow) overflow = __builtin_mul_overflow(base, base, &base);
    }
  }
  if (overflow) FailUnsupported("an integer beyond 64 bits is outside the subset");
  return Value::Int(r);
}

Value FloatOp(const std::string& op, double a, double b) {
  if (op == "+") return Value::Float(a + b);
  if (op == "-") return Value::Float(a - b);
  if (op == "*") return Value::Float(a * b);
  if (op == "**") return Value::Float(std::pow(a, b));
  if (b == 0) Fail("float division by zero");
  if (op == "/") return Value::Float(a / b);
  double rest = std::fmod(a, b);
  double quotient = (a - rest) / b;
  if (rest != 0 && (rest < 0) != (b < 0)) {
    rest += b;
    quotient -= 1;
  }
  return Value::Float(op == "%" ? rest : std::floor(quotient + 0.5));
}

}  // namespace

Value Interpreter::Binary(const std::string& op, const Value& a, const Value& b) {
  if (a.is(Kind::kBigInt) || b.is(Kind::kBigInt)) {
    FailUnsupported("arithmetic on integers beyond 64 bits is outside the subset");
  }
  if (op == "%" && a.is_string()) {
    if (a.is_markup()) FailUnsupported("formatting markup is outside the subset");
    Charge(b.weight() / 16);
    return MakeString(FormatPercent(a.text(), b));
  }
  if (a.is_undefined()) Fail(a.bytes());
  if (b.is_undefined()) Fail(b.bytes());
  if (a.is_integer() && b.is_integer()) return IntegerOp(op, a.integer(), b.integer());
  if (a.is_number() && b.is_number()) return FloatOp(op, a.real(), b.real());
  if (op == "+") {
    if (a.is_string() && b.is_string()) {
      const bool markup = a.is_markup() || b.is_markup();
      Text out = markup && !a.is_markup() ? Escape(a.text()) : a.text();
      out.Append(markup && !b.is_markup() ? Escape(b.text()) : b.text());
      return MakeString(std::move(out), markup);
    }
    const auto type = [](const Value& v) {
      return v.is(Kind::kList) ? v.list().type : ListObject::Type::kIterator;
    };
    if (type(a) == type(b) &&
        (type(a) == ListObject::Type::kList || type(a) == ListObject::Type::kTuple)) {
      std::vector<Value> items = a.list().items;
      items.insert(items.end(), b.list().items.begin(), b.list().items.end());
      Charge(items.size() * 4);
      return type(a) == ListObject::Type::kList ? Value::List(std::move(items))
                                                : Value::Tuple(std::move(items));
    }
    if (a.is_string()) Fail("can only concatenate str (not \"" + TypeName(b) + "\") to str");
    if (a.is(Kind::kList) && type(a) == ListObject::Type::kList) {
      Fail("can only concatenate list (not \"" + TypeName(b) + "\") to list");
    }
  }
  if (op == "*" && (a.is_integer() || b.is_integer())) {
    const Value& sequence = a.is_integer() ? b : a;
    if (sequence.is_string() ||
        (sequence.is(Kind::kList) && sequence.list().type <= ListObject::Type::kTuple)) {
      return Repeat(sequence, (a.is_integer() ? a : b).integer());
    }
  }
  Fail("unsupported operand type(s) for " + (op == "**" ? std::string("** or pow()") : op) + ": '" +
       TypeName(a) + "' and '" + TypeName(b) + "'");
}

Value Interpreter::Repeat(const Value& v, int64_t count) {
  const auto n = static_cast<uint64_t>(std::max<int64_t>(count, 0));
  const uint64_t size = v.is_string() ? v.bytes().size() : v.list().items.size();
  uint64_t total = 0;
  if (__builtin_mul_overflow(n, size, &total) || total > limits_.max_output_bytes) {
    FailUnsupported("a repeated value is longer than the limit");
  }
  Charge(n + total * (v.is_string() ? 0 : 4));
  if (v.is_string()) {
    Text out;
    for (uint64_t i = 0; i < n && size > 0; ++i) out.Append(v.text());
    return MakeString(std::move(out), v.is_markup());
  }
  std::vector<Value> items;
  for (uint64_t i = 0; i < n && size > 0; ++i) {
    items.insert(items.end(), v.list().items.begin(), v.list().items.end());
  }
  return v.list().type == ListObject::Type::kTuple ? Value::Tuple(std::move(items))
                                                   : Value::List(std::move(items));
}

Value Interpreter::EvaluateConcat(const Expr& e, Scope& scope) {
  std::vector<Value> values;
  for (const ExprPtr& item : e.items) values.push_back(Evaluate(*item, scope));
  return Concatenate(values);
}

// Without autoescape ~ joins plain strings, markup or not (+ does not).
Value Interpreter::Concatenate(const std::vector<Value>& values) {
  Text out;
  for (const Value& v : values) {
    Charge(v.weight() / 16);
    out.Append(ToText(v));
    if (out.size() > limits_.max_output_bytes) break;  // MakeString refuses it
  }
  return MakeString(std::move(out));
}

bool Interpreter::EqualValues(const Value& a, const Value& b) {
  Charge(1 + std::min(a.weight(), b.weight()) / 16);
  return Equal(a, b);
}

bool Interpreter::Contains(const Value& container, const Value& v) {
  if (container.is_string()) {
    if (v.is_undefined()) Fail(v.bytes());
    if (!v.is_string()) {
      Fail("'in <string>' requires string as left operand, not " + TypeName(v));
    }
    const std::string &hay = container.bytes(), &needle = v.bytes();
    Charge(hay.size() / 16);
    return memmem(hay.data(), hay.size(), needle.data(), needle.size()) != nullptr;
  }
  if (container.is(Kind::kDict)) {
    Charge(v.weight() / 16);
    return container.dict().Find(v) != nullptr;
  }
  if (!container.is(Kind::kList) && !container.is_undefined()) {
    Fail("argument of type '" + TypeName(container) + "' is not iterable");
  }
  for (const Value& item : Items(container)) {
    if (Identical(item, v) || EqualValues(item, v)) return true;
  }
  return false;
}

Value Interpreter::EvaluateCompare(const Expr& e, Scope& scope) {
  Value left = Evaluate(*e.items[0], scope);
  for (size_t i = 0; i < e.ops.size(); ++i) {
    Value right = Evaluate(*e.items[i + 1], scope);
    const std::string& op = e.ops[i];
    bool holds = false;
    if (op == "==") {
      holds = EqualValues(left, right);
    } else if (op == "!=") {
      holds = !EqualValues(left, right);
    } else if (op == "in") {
      holds = Contains(right, left);
    } else if (op == "not in") {
      holds = !Contains(right, left);
    } else {
      Charge(1 + std::min(left.weight(), right.weight()) / 16);
      const int order = Compare(left, right, op.c_str());
      holds = op == "<" ? order < 0 : op == "<=" ? order <= 0 : op == ">" ? order > 0 : order >= 0;
    }
    if (!holds) return Value::Bool(false);
    left = std::move(right);
  }
  return Value::Bool(true);
}

Args Interpreter::EvaluateArguments(const Arguments& a, Scope& scope) {
  Args args;
  for (const ExprPtr& item : a.positional) args.positional.push_back(Evaluate(*item, scope));
  for (const auto& [name, item] : a.keywords) {
    args.keywords.emplace_back(name, Evaluate(*item, scope));
  }
  if (a.star) {
    for (Value& v : Items(Evaluate(*a.star, scope))) args.positional.push_back(std::move(v));
  }
  if (a.double_star) {
    const Value v = Evaluate(*a.double_star, scope);
    if (!v.is(Kind::kDict)) Fail("argument after ** must be a mapping, not " + TypeName(v));
    Charge(v.dict().items.size() * 4);
    for (const auto& [key, item] : v.dict().items) {
      if (!key.is_string()) Fail("keywords must be strings");
      args.keywords.emplace_back(key.bytes(), item);
    }
  }
  return args;
}

Value Interpreter::EvaluateCall(const Expr& e, Scope& scope, const Value* caller) {
  const Value callee = Evaluate(*e.items[0], scope);
  Args args = EvaluateArguments(e.arguments, scope);
  if (caller != nullptr) args.keywords.emplace_back("caller", *caller);
  return Call(callee, std::move(args));
}

Value Interpreter::EvaluateFilter(const Expr& e, Scope& scope, const Value* input) {
  const Value v = e.items[0] ? (e.items[0]->type == ExprType::kFilter && input != nullptr
                                    ? EvaluateFilter(*e.items[0], scope, input)
                                    : Evaluate(*e.items[0], scope))
                             : *input;
  if (!IsFilter(e.name)) Fail("No filter named '" + e.name + "' found.");
  Charge(1 + v.weight() / 64);
  return Filter(e.name, v, EvaluateArguments(e.arguments, scope));
}

Value Interpreter::EvaluateTest(const Expr& e, Scope& scope) {
  const Value v = Evaluate(*e.items[0], scope);
  if (!IsTest(e.name)) Fail("No test named '" + e.name + "' found.");
  return Value::Bool(Test(e.name, v, EvaluateArguments(e.arguments, scope)) != e.negated);
}

// ---- calls ----

Value Interpreter::Call(const Value& callee, Args args) {
  const DepthGuard guard(depth_);
  Charge(2);
  switch (callee.kind()) {
    case Kind::kUndefined:
      Fail(callee.bytes());
    case Kind::kMacro:
      return CallMacro(callee.as<MacroObject>(), std::move(args));
    case Kind::kFunction:
      return CallFunction(callee.bytes(), std::move(args));
    case Kind::kMethod:
      return CallMethod(callee.as<MethodObject>(), args);
    case Kind::kLoop:
      FailUnsupported("recursive loops are outside the supported subset of Jinja");
    default:
      Fail("'" + TypeName(callee) + "' object is not callable");
  }
}

Value Interpreter::CallMacro(const MacroObject& macro, Args args) {
  if (++macro_depth_ > limits_.max_depth) FailUnsupported("macro calls nest too deeply");
  const Stmt& s = *macro.definition;
  ScopeHolder inner(*this, macro.scope);
  auto& names = (*inner).names;
  const std::string label = "macro '" + macro.name + "'";
  std::vector<Value> extra;
  for (size_t i = 0; i < args.positional.size(); ++i) {
    if (i < s.parameters.size()) {
      names[s.parameters[i].first] = args.positional[i];
    } else {
      extra.push_back(args.positional[i]);
    }
  }
  if (!extra.empty() && !s.uses_varargs) {
    Fail(label + " takes not more than " + std::to_string(s.parameters.size()) + " argument(s)");
  }
  auto rest = std::make_shared<DictObject>();
  std::optional<Value> caller;
  for (auto& [name, value] : args.keywords) {
    const auto is_name = [&](const auto& p) { return p.first == name; };
    const auto it = std::find_if(s.parameters.begin(), s.parameters.end(), is_name);
    if (it != s.parameters.end()) {
      if (names.contains(name)) Fail(label + " got multiple values for argument '" + name + "'");
      names[name] = value;
    } else if (name == "caller" && s.uses_caller) {
      caller = value;
    } else if (s.uses_kwargs) {
      rest->Set(Value::String(name, true), value);
    } else {
      Fail(label + " takes no keyword argument '" + name + "'");
    }
  }
  for (const auto& [name, value] : s.parameters) {
    if (names.contains(name)) continue;
    names[name] = value ? Evaluate(*value, *inner)
                        : Value::Undefined("parameter '" + name + "' was not provided");
  }
  if (s.uses_varargs) names["varargs"] = Value::Tuple(std::move(extra));
  if (s.uses_kwargs) names["kwargs"] = MakeDict(std::move(rest));
  if (s.uses_caller) {
    names["caller"] = caller ? *caller : Value::Undefined("No caller defined");
  }
  Text out;
  ExecuteBody(s.body, *inner, out);
  --macro_depth_;
  return MakeString(std::move(out));
}

Value Interpreter::CallFunction(const std::string& name, Args args) {
  if (name == "raise_exception") {
    const auto a = Bind(args, name, {"message"});
    Fail(a[0] != nullptr ? ToText(*a[0]).bytes() : "the template raised an exception");
  }
  if (name == "strftime_now") {
    const auto a = Bind(args, name, {"format"});
    if (a[0] == nullptr) Fail("strftime_now() missing 1 required argument: 'format'");
    return MakeString(Text(FormatClock(clock_micros_, TextArgument(*a[0]).bytes()), true));
  }
  if (name == "range") {
    const auto a = Bind(args, name, {"start", "stop", "step"});
    if (a[0] == nullptr) Fail("range expected at least 1 argument, got 0");
    auto list = std::make_shared<ListObject>();
    list->type = ListObject::Type::kRange;
    list->start = a[1] == nullptr ? 0 : IntegerArgument(a[0], 0);
    list->stop = IntegerArgument(a[1] == nullptr ? a[0] : a[1], 0);
    list->step = IntegerArgument(a[2], 1);
    if (list->step == 0) Fail("range() arg 3 must not be zero");
    constexpr int64_t kMaxRange = 100000;  // of the sandbox
    for (int64_t i = list->start; list->step > 0 ? i < list->stop : i > list->stop;) {
      if (static_cast<int64_t>(list->items.size()) >= kMaxRange) {
        Fail("Range too big. The sandbox blocks ranges larger than MAX_RANGE (100000).");
      }
      list->items.push_back(Value::Int(i));
      if (__builtin_add_overflow(i, list->step, &i)) break;
    }
    Charge(list->items.size() * 4);
    Seal(*list, 0, list->items.size() * 8);
    return Value::Of(Kind::kList, std::move(list));
  }
  // dict() and namespace() take a mapping or pairs, and keywords.
  auto dict = std::make_shared<DictObject>();
  if (args.positional.size() > 1) {
    Fail("dict expected at most 1 argument, got " + std::to_string(args.positional.size()));
  }
  if (!args.positional.empty()) {
    const Value& from = args.positional[0];
    if (from.is_undefined()) Fail(from.bytes());
    if (from.is(Kind::kDict)) {
      for (const auto& [key, value] : from.dict().items) dict->Set(key, value);
    } else {
      for (const Value& pair : Items(from)) {
        const std::vector<Value> two = Items(pair);
        if (two.size() != 2) Fail("dictionary update sequence element has a length other than 2");
        dict->Set(two[0], two[1]);
      }
    }
  }
  for (auto& [key, value] : args.keywords) dict->Set(Value::String(key, true), value);
  Charge(dict->items.size() * 8);
  if (name == "dict") return MakeDict(std::move(dict));
  auto space = std::make_shared<NamespaceObject>();
  for (auto& [key, value] : dict->items) {
    if (!key.is_string()) FailUnsupported("a namespace with keys that are no strings");
    if (value.depth() > kMaxValueDepth) FailUnsupported("a namespace inside a namespace");
    space->attributes[key.bytes()] = value;
  }
  return Value::Of(Kind::kNamespace, std::move(space));
}

Value Interpreter::CallLoop(LoopObject& loop, const std::string& name, const Args& args) {
  if (!args.keywords.empty()) Fail("loop." + name + "() takes no keyword arguments");
  if (name == "cycle") {
    if (args.positional.empty()) Fail("no items for cycling given");
    return args.positional[loop.index0 % args.positional.size()];
  }
  // changed(...): whether the values differ from those of the last call.
  const bool same =
      loop.changed_called && loop.last_changed.size() == args.positional.size() &&
      std::equal(args.positional.begin(), args.positional.end(), loop.last_changed.begin(),
                 [this](const Value& a, const Value& b) { return EqualValues(a, b); });
  for (const Value& v : args.positional) {
    if (v.depth() > kMaxValueDepth || v.is(Kind::kLoop) || v.is(Kind::kMethod)) {
      FailUnsupported("loop.changed() of such a value");
    }
  }
  loop.changed_called = true;
  loop.last_changed = args.positional;
  return Value::Bool(!same);
}

// ---- attributes and items ----

Value Interpreter::GetAttribute(const Value& object, const std::string& name) {
  if (object.is_undefined()) Fail(object.bytes());
  if (auto v = FindAttribute(object, name)) return *v;
  if (object.is(Kind::kDict)) {
    if (const Value* v = object.dict().Find(Value::String(name, true))) return *v;
  }
  return NoAttribute(object, name);
}

Value Interpreter::GetItem(const Value& object, const Value& key) {
  if (object.is_undefined()) Fail(object.bytes());
  if (auto v = FindItem(object, key)) return *v;
  if (key.is_string()) {
    if (auto v = FindAttribute(object, key.bytes())) return *v;
    return NoAttribute(object, key.bytes());
  }
  Charge(key.weight() / 16);
  if (key.is_undefined()) return Value::Undefined(ObjectName(object) + " has no element Undefined");
  Text repr;
  if (key.is_number() || key.is_none()) AppendRepr(key, repr);
  return Value::Undefined(ObjectName(object) + " has no element " + repr.bytes());
}

std::optional<Value> Interpreter::FindItem(const Value& object, const Value& key) {
  if (object.is(Kind::kDict)) {
    if (key.is(Kind::kDict) ||
        (key.is(Kind::kList) && key.list().type != ListObject::Type::kTuple)) {
      return std::nullopt;
    }
    Charge(key.weight() / 16);
    const Value* v = object.dict().Find(key);
    return v == nullptr ? std::nullopt : std::optional<Value>(*v);
  }
  if (!key.is_integer()) return std::nullopt;
  int64_t i = key.integer();
  if (object.is(Kind::kList)) {
    const ListObject& list = object.list();
    if (list.type == ListObject::Type::kIterator || list.type == ListObject::Type::kView) {
      return std::nullopt;
    }
    const auto n = static_cast<int64_t>(list.items.size());
    if (i < 0) i += n;
    if (i < 0 || i >= n) return std::nullopt;
    return list.items[static_cast<size_t>(i)];
  }
  if (object.is_string()) {
    const std::string& s = object.bytes();
    Charge(s.size() / 32);
    if (i < 0) i += static_cast<int64_t>(CharCount(s));
    size_t at = 0;
    for (; i > 0 && at < s.size(); --i) at += CharLength(s, at);
    if (i != 0 || at >= s.size()) return std::nullopt;
    return MakeString(object.text().Slice(at, at + CharLength(s, at)), object.is_markup());
  }
  return std::nullopt;
}

// What Python's getattr finds: methods and the attributes of loop and namespaces. Attributes that
// the sandbox hides are undefined, with its message.
std::optional<Value> Interpreter::FindAttribute(const Value& object, const std::string& name) {
  const auto unsafe = [&] {
    return Value::Undefined("access to attribute '" + name + "' of '" + TypeName(object) +
                            "' object is unsafe.");
  };
  const auto method = [&] {
    auto m = std::make_shared<MethodObject>();
    m->self = object;
    m->name = name;
    Seal(*m, object.is(Kind::kNamespace) ? 0 : object.depth(), object.weight());
    return Value::Of(Kind::kMethod, std::move(m));
  };
  const auto outside = [&]() -> std::optional<Value> {
    FailUnsupported("the attribute '" + name + "' of '" + TypeName(object) +
                    "' is outside the supported subset of Jinja");
  };
  if (name.starts_with("__") && !object.is(Kind::kDict) && !object.is(Kind::kNamespace)) {
    return unsafe();
  }
  switch (object.kind()) {
    case Kind::kString:
      if (HasStringMethod(name)) return method();
      if (IsPythonStringMethod(name)) return outside();
      return std::nullopt;
    case Kind::kDict:
      if (In(name, {"get", "items", "keys", "values", "copy"})) return method();
      if (In(name, {"clear", "pop", "popitem", "setdefault", "update"})) return unsafe();
      if (name == "fromkeys") return outside();
      return std::nullopt;
    case Kind::kList:
      if (object.list().type == ListObject::Type::kList) {
        if (In(name, {"append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove"})) {
          return unsafe();
        }
        if (name == "copy") return outside();
      }
      if (object.list().type <= ListObject::Type::kTuple && In(name, {"count", "index"})) {
        return method();
      }
      if (object.list().type > ListObject::Type::kTuple &&
          In(name, {"count", "index", "start", "stop", "step", "send", "throw", "close",
                    "isdisjoint", "mapping"})) {
        return outside();
      }
      return std::nullopt;
    case Kind::kNamespace: {
      const auto& attributes = object.as<NamespaceObject>().attributes;
      const auto it = attributes.find(name);
      return it == attributes.end() ? std::nullopt : std::optional<Value>(it->second);
    }
    case Kind::kLoop: {
      const LoopObject& loop = object.as<LoopObject>();
      const auto n = static_cast<int64_t>(loop.items.size());
      const auto i = static_cast<int64_t>(loop.index0);
      if (name == "index") return Value::Int(i + 1);
      if (name == "index0") return Value::Int(i);
      if (name == "first") return Value::Bool(i == 0);
      if (name == "last") return Value::Bool(i + 1 == n);
      if (name == "length") return Value::Int(n);
      if (name == "revindex") return Value::Int(n - i);
      if (name == "revindex0") return Value::Int(n - i - 1);
      if (name == "depth") return Value::Int(1);
      if (name == "depth0") return Value::Int(0);
      if (name == "previtem") {
        return i > 0 ? loop.items[loop.index0 - 1] : Value::Undefined("there is no previous item");
      }
      if (name == "nextitem") {
        return i + 1 < n ? loop.items[loop.index0 + 1] : Value::Undefined("there is no next item");
      }
      if (name == "cycle" || name == "changed") return method();
      return std::nullopt;
    }
    case Kind::kInt:
    case Kind::kBigInt:
    case Kind::kBool:
    case Kind::kFloat:
      if (In(name,
             {"real", "imag", "numerator", "denominator", "conjugate", "bit_length", "bit_count",
              "to_bytes", "from_bytes", "as_integer_ratio", "is_integer", "hex", "fromhex"})) {
        return outside();
      }
      return std::nullopt;
    case Kind::kMacro:
      if (name == "name") return MakeString(Text(object.as<MacroObject>().name, true));
      if (In(name, {"arguments", "catch_kwargs", "catch_varargs", "caller"})) return outside();
      return std::nullopt;
    case Kind::kMethod:
    case Kind::kFunction:
      return outside();
    default:
      return std::nullopt;
  }
}

}  // namespace verbatim::engine::jinja
