// Values of the template interpreter: Python's, as far as templates see them. Values are cheap to
// copy and share what they hold; only namespaces and iterators ever change. Internal to the chat
// template.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/json.h"
#include "engine/jinja_text.h"

namespace verbatim::engine::jinja {

class Value;
struct Expr;
struct Stmt;
struct Scope;

// Containers nest at most this deep, so that recursion over values is bounded.
inline constexpr uint32_t kMaxValueDepth = 200;
// No string and no container is larger than this, with all that is in it.
inline constexpr uint64_t kMaxWeight = uint64_t{64} << 20;

struct Object {
  virtual ~Object() = default;
  uint32_t depth = 0;   // 1 + the deepest value inside; a namespace counts as too deep to nest
  uint64_t weight = 8;  // bytes and values inside, shared ones counted each time: what a walk costs
};
struct StringObject : Object {
  Text text;
  bool markup = false;  // has been through |safe or |escape
};
struct ListObject;
struct DictObject;
struct NamespaceObject;
struct LoopObject;
struct MacroObject;
struct MethodObject;

enum class Kind : uint8_t {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kBigInt,  // an integer beyond 64 bits: printed and compared, nothing else
  kFloat,
  kString,
  kList,  // lists, tuples, ranges, iterators and views: ListObject says which
  kDict,
  kNamespace,
  kLoop,
  kMacro,
  kMethod,    // a method with the value it belongs to
  kFunction,  // a global function, by name
};

class Value {
 public:
  Value() = default;  // None
  static Value None() { return Value(); }
  static Value Bool(bool v);
  static Value Int(int64_t v);
  static Value Float(double v);
  static Value BigInt(std::string digits);
  static Value String(Text text, bool markup = false);
  static Value String(std::string bytes, bool trusted);
  static Value Undefined(std::string message);
  static Value Function(std::string name);
  static Value List(std::vector<Value> items);
  static Value Tuple(std::vector<Value> items);
  static Value Of(Kind kind, std::shared_ptr<Object> object);

  Kind kind() const { return kind_; }
  bool is(Kind k) const { return kind_ == k; }
  bool is_undefined() const { return kind_ == Kind::kUndefined; }
  bool is_none() const { return kind_ == Kind::kNone; }
  bool is_string() const { return kind_ == Kind::kString; }
  bool is_integer() const { return kind_ == Kind::kInt || kind_ == Kind::kBool; }
  bool is_number() const { return is_integer() || kind_ == Kind::kFloat || kind_ == Kind::kBigInt; }
  int64_t integer() const { return int_; }  // kInt and kBool
  double real() const { return kind_ == Kind::kFloat ? float_ : static_cast<double>(int_); }
  const Text& text() const {
    return static_cast<StringObject*>(object_.get())->text;
  }  // + messages
  const std::string& bytes() const { return text().bytes(); }
  bool is_markup() const;
  ListObject& list() const;
  DictObject& dict() const;
  template <typename T>
  T& as() const {
    return *static_cast<T*>(object_.get());
  }
  const Object* object() const { return object_.get(); }
  uint32_t depth() const { return object_ ? object_->depth : 0; }
  uint64_t weight() const { return object_ ? object_->weight : 8; }

 private:
  Kind kind_ = Kind::kNone;
  union {
    int64_t int_ = 0;
    double float_;
  };
  std::shared_ptr<Object> object_;
};

struct ListObject : Object {
  enum class Type { kList, kTuple, kRange, kIterator, kView };
  Type type = Type::kList;
  std::string type_name;  // Python's, of iterators and views: "generator", "dict_items"
  std::vector<Value> items;
  bool consumed = false;                  // iterators: they give their items once
  int64_t start = 0, stop = 0, step = 1;  // ranges
};

struct DictObject : Object {
  std::vector<std::pair<Value, Value>> items;     // in order of insertion
  std::unordered_map<std::string, size_t> index;  // by HashKey
  const Value* Find(const Value& key) const;
  void Set(Value key, Value value);
};

struct NamespaceObject : Object {
  NamespaceObject() { depth = kMaxValueDepth + 1; }
  std::unordered_map<std::string, Value> attributes;
};

struct LoopObject : Object {
  std::vector<Value> items;
  size_t index0 = 0;
  uint32_t depth0 = 0;
  std::vector<Value> last_changed;
  bool changed_called = false;
};

struct MacroObject : Object {
  const Stmt* definition = nullptr;  // parameters and body
  std::string name;
  Scope* scope = nullptr;  // where it was defined; owned by the rendering
};

struct MethodObject : Object {
  Value self;
  std::string name;
};

Value MakeIterator(std::vector<Value> items, std::string type_name = "generator");
Value MakeDict(std::shared_ptr<DictObject> dict);
Value FromJson(const json::Value& v, bool trusted);

// Sets the object's depth and weight from those of its items; kUnsupported where it is too deep or
// too large.
void Seal(Object& object, uint32_t deepest, uint64_t weight);

std::string TypeName(const Value& v);  // Python's: "str", "dict", "NoneType"
bool Truth(const Value& v);
bool Equal(const Value& a, const Value& b);                   // ==
bool Identical(const Value& a, const Value& b);               // is
int Compare(const Value& a, const Value& b, const char* op);  // <0, 0, >0; TypeError otherwise
std::string HashKey(const Value& v);         // equal keys give equal bytes; TypeError if unhashable
Text ToText(const Value& v);                 // str(v)
void AppendRepr(const Value& v, Text& out);  // repr(v)
std::string FloatRepr(double v);

// What iterating gives. Iterators are used up. TypeError for what cannot be iterated.
std::vector<Value> Iterate(const Value& v);
size_t Length(const Value& v);  // len(v)

struct JsonStyle {
  bool ensure_ascii = false, sort_keys = false;
  bool pretty = false;
  std::string indent;
  std::string item_separator = ", ", key_separator = ": ";
};
Text ToJson(const Value& v, const JsonStyle& style);  // json.dumps

}  // namespace verbatim::engine::jinja
