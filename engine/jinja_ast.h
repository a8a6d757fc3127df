// The syntax tree of a template. Immutable after parsing. Internal to the chat template.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/jinja_value.h"

namespace verbatim::engine::jinja {

using ExprPtr = std::unique_ptr<Expr>;
using StmtPtr = std::unique_ptr<Stmt>;
using Body = std::vector<StmtPtr>;

struct Arguments {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> keywords;
  ExprPtr star, double_star;  // *args, **kwargs
};

enum class ExprType {
  kConstant,   // value
  kName,       // name
  kList,       // items
  kTuple,      // items
  kDict,       // items: key, value, key, value
  kAttribute,  // items[0] . name
  kItem,       // items[0] [ items[1] ]
  kSlice,      // items[0] [ items[1] : items[2] : items[3] ], each but the first may be null
  kCall,       // items[0] ( arguments )
  kFilter,     // items[0] (null in filter blocks) | name ( arguments )
  kTest,       // items[0] is [not] name ( arguments ); `negated`
  kUnary,      // name: "-", "+", "not"
  kBinary,     // name: + - * / // % **
  kConcat,     // items joined by ~
  kCompare,    // items[0] ops[0] items[1] ops[1] ...
  kAnd,
  kOr,
  kConditional,  // items[0] if items[1] else items[2] (may be null)
};

struct Expr {
  ExprType type = ExprType::kConstant;
  int line = 0;
  int depth = 1;
  Value value;
  std::string name;
  bool negated = false;
  std::vector<ExprPtr> items;
  std::vector<std::string> ops;
  Arguments arguments;
};

// What is assigned to: a name, a namespace's attribute, or several of them.
struct Target {
  std::string name;
  std::string attribute;      // where not empty: name.attribute
  std::vector<Target> parts;  // where not empty: a tuple
};

enum class StmtType {
  kText,      // text: the template's own
  kOutput,    // expr
  kIf,        // branches; body: else
  kFor,       // target, expr, condition, body, otherwise
  kSet,       // target, expr
  kSetBlock,  // target, body, expr: filters or null
  kMacro,     // name, parameters, body
  kCall,      // expr: the call; parameters, body: the caller
  kFilter,    // expr: filters, body
  kWith,      // assignments, body
  kBlock,     // body in the same scope: {% generation %}
  kBreak,
  kContinue,
};

struct Stmt {
  StmtType type = StmtType::kText;
  int line = 0;
  std::string text, name;
  ExprPtr expr, condition;
  Target target;
  std::vector<std::pair<ExprPtr, Body>> branches;
  std::vector<std::pair<Target, ExprPtr>> assignments;
  std::vector<std::pair<std::string, ExprPtr>> parameters;  // with default or null
  bool uses_varargs = false, uses_kwargs = false, uses_caller = false;
  Body body, otherwise;
};

struct Template {
  Body body;
  bool uses_clock = false;
};

// Throws Failure; the message names the construct and the line.
Template ParseTemplate(std::string_view source);

// Which filters and tests there are, and which names Jinja knows besides.
bool IsFilter(std::string_view name);
bool IsTest(std::string_view name);
bool IsFilterOutsideSubset(std::string_view name);

}  // namespace verbatim::engine::jinja
