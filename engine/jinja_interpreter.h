// Runs a template's syntax tree. One object per rendering. Internal to the chat template.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/chat_template.h"
#include "engine/jinja_ast.h"
#include "engine/jinja_value.h"

namespace verbatim::engine::jinja {

struct Scope {
  Scope* parent = nullptr;
  std::unordered_map<std::string, Value> names;
  bool captured = false;  // a macro refers to it, so it lives as long as the rendering
};

struct Args {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> keywords;
};

class Interpreter {
 public:
  Interpreter(const RenderLimits& limits, int64_t clock_micros)
      : limits_(limits), clock_micros_(clock_micros) {}

  // The output. Throws Failure.
  Text Run(const Template& source, std::unordered_map<std::string, Value> variables);

 private:
  enum class Flow { kNormal, kBreak, kContinue };
  class DepthGuard;
  class ScopeHolder;

  // jinja_interpreter.cc: statements and expressions.
  void Charge(uint64_t steps);
  Value MakeString(Text text, bool markup = false);
  void Write(const Text& text, Text& out);
  Flow ExecuteBody(const Body& body, Scope& scope, Text& out);
  Flow Execute(const Stmt& s, Scope& scope, Text& out);
  Flow ExecuteFor(const Stmt& s, Scope& scope, Text& out);
  void ExecuteCall(const Stmt& s, Scope& scope, Text& out);
  void Assign(const Target& target, const Value& value, Scope& scope);
  Value Evaluate(const Expr& e, Scope& scope);
  Value EvaluateName(const Expr& e, Scope& scope);
  Value EvaluateDict(const Expr& e, Scope& scope);
  Value EvaluateSlice(const Expr& e, Scope& scope);
  Value EvaluateUnary(const Expr& e, Scope& scope);
  Value EvaluateBinary(const Expr& e, Scope& scope);
  Value EvaluateConcat(const Expr& e, Scope& scope);
  Value EvaluateCompare(const Expr& e, Scope& scope);
  Value EvaluateCall(const Expr& e, Scope& scope, const Value* caller);
  Value EvaluateFilter(const Expr& e, Scope& scope, const Value* input);
  Value EvaluateTest(const Expr& e, Scope& scope);
  Args EvaluateArguments(const Arguments& a, Scope& scope);
  Value Binary(const std::string& op, const Value& a, const Value& b);
  Value Repeat(const Value& v, int64_t count);
  Value Concatenate(const std::vector<Value>& values);
  Value Slice(const Value& v, std::optional<int64_t> start, std::optional<int64_t> stop,
              int64_t step);
  bool Contains(const Value& container, const Value& v);
  bool EqualValues(const Value& a, const Value& b);
  Value Call(const Value& callee, Args args);
  Value CallMacro(const MacroObject& macro, Args args);
  Value CallFunction(const std::string& name, Args args);
  Value CallLoop(LoopObject& loop, const std::string& name, const Args& args);
  Value GetAttribute(const Value& object, const std::string& name);
  Value GetItem(const Value& object, const Value& key);
  std::optional<Value> FindAttribute(const Value& object, const std::string& name);
  std::optional<Value> FindItem(const Value& object, const Value& key);
  Value MakeMacro(const Stmt& s, std::string name, Scope& scope);
  std::vector<Value> Items(const Value& v);  // Iterate, charged

  // jinja_filters.cc
  Value Filter(const std::string& name, const Value& input, const Args& args);
  bool Test(const std::string& name, const Value& input, const Args& args);
  using Getter = std::function<Value(const Value&)>;
  Getter AttributeGetter(const Value* attribute, const Value* fallback);
  Value SequenceFilter(const std::string& name, const Value& input, const Args& args);
  Value TextFilter(const std::string& name, const Value& input, const Args& args);
  Value NumberFilter(const std::string& name, const Value& input, const Args& args);
  Value SelectFilter(const std::string& name, const Value& input, const Args& args);
  Value ToJsonFilter(const Value& input, const Args& args);

  // jinja_methods.cc: methods of strings and dicts, and both kinds of formatting.
  Value CallMethod(const MethodObject& method, const Args& args);
  Value StringMethod(const Value& self, const std::string& name, const Args& args);
  Value Split(const Text& text, const Value* separator, int64_t limit, bool from_right);
  Text Replace(const Text& text, const Text& from, const Text& to, int64_t limit);
  Text Format(const Text& format, const Args& args);          // str.format
  Text FormatPercent(const Text& format, const Value& args);  // "..." % args

  const RenderLimits limits_;
  const int64_t clock_micros_;
  uint64_t steps_ = 0;
  uint32_t depth_ = 0, macro_depth_ = 0;
  std::vector<std::unique_ptr<Scope>> kept_;  // scopes that macros refer to
};

// The arguments by the parameters' names, null where not given. TypeError (as Python's) for too
// many or unknown ones.
std::vector<const Value*> Bind(const Args& args, std::string_view function,
                               std::initializer_list<std::string_view> names);
// An argument as an integer (bools are), or the default. TypeError otherwise.
int64_t IntegerArgument(const Value* v, int64_t otherwise);
// A string argument; TypeError otherwise.
const Text& TextArgument(const Value& v);

bool HasStringMethod(std::string_view name);
bool IsPythonStringMethod(std::string_view name);

// Python's int() and float() of a string.
std::optional<Value> ParseInteger(std::string_view text, int64_t base);
std::optional<double> ParseFloat(std::string_view text);

// strftime of the clock (UTC, C locale). kUnsupported for directives outside the subset.
std::string FormatClock(int64_t micros, std::string_view format);

Text Escape(const Text& text);  // markupsafe.escape

}  // namespace verbatim::engine::jinja
