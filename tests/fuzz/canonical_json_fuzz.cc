// Canonical JSON: a fixed point, the same for every way to write a value, another for another
// value. A NUL byte parts two texts, whose values are compared.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/json.h"
#include "tests/base/json_reference.h"

using namespace verbatim;

namespace {

// The same value, written with other white space, members the other way round, and escapes.
void Rewrite(const json::Value& v, std::string* out) {
  switch (v.type()) {
    case json::Value::Type::kArray: {
      *out += "[ ";
      bool first = true;
      for (const json::Value& item : v.items()) {
        if (!first) *out += "\t,";
        first = false;
        Rewrite(item, out);
      }
      *out += "\r\n]";
      return;
    }
    case json::Value::Type::kObject: {
      *out += "\n{";
      bool first = true;
      for (auto member = v.members().rbegin(); member != v.members().rend(); ++member) {
        if (!first) *out += ", ";
        first = false;
        *out += json::Quote(member->first) + " : ";
        Rewrite(member->second, out);
      }
      *out += "}";
      return;
    }
    case json::Value::Type::kString:
      *out += '"';
      for (char c : v.as_string()) {
        const unsigned char byte = static_cast<unsigned char>(c);
        if (byte < 0x80) {
          constexpr char kHex[] = "0123456789ABCDEF";
          *out += std::string("\\u00") + kHex[byte >> 4] + kHex[byte & 15];
          continue;
        }
        // Surrogates that stand alone are three bytes that no text may hold as they are.
        const std::string quoted = json::Quote(v.as_string());
        out->resize(out->rfind('"'));
        *out += quoted;
        return;
      }
      *out += '"';
      return;
    default:
      *out += " " + json::Serialize(v);
  }
}

void CheckOne(const json::Value& value) {
  const std::string canonical = json::Canonical(value);
  const auto again = json::Parse(canonical);
  CHECK(again.ok());
  CHECK(*again == value);
  CHECK(json::Canonical(*again) == canonical);
  const auto serialized = json::Parse(json::Serialize(value));
  CHECK(serialized.ok() && json::Canonical(*serialized) == canonical);
  std::string rewritten;
  Rewrite(value, &rewritten);
  const auto other = json::Parse(rewritten);
  CHECK(other.ok() && json::Canonical(*other) == canonical);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const size_t nul = std::min(bytes.find('\0'), size);
  const auto one = json::Parse(bytes.substr(0, nul));
  if (one.ok()) CheckOne(*one);
  if (nul == size) return 0;
  const auto two = json::Parse(bytes.substr(nul + 1));
  if (!one.ok() || !two.ok()) return 0;
  CheckOne(*two);
  const auto same = test::SameValue(*one, *two);
  if (same) CHECK(*same == (json::Canonical(*one) == json::Canonical(*two)));
  return 0;
}
