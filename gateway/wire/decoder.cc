#include "gateway/wire/decoder.h"

#include <algorithm>
#include <charconv>

namespace verbatim::gateway {

namespace {

using json::Value;

constexpr double kMaxBias = 100;

const char* TypeName(const Value& v) {
  switch (v.type()) {
    case Value::Type::kNull:
      return "null";
    case Value::Type::kBool:
      return "a boolean";
    case Value::Type::kNumber:
      return "a number";
    case Value::Type::kString:
      return "a string";
    case Value::Type::kArray:
      return "an array";
    case Value::Type::kObject:
      return "an object";
  }
  return "something else";
}

const char* KindName(FieldKind kind) {
  switch (kind) {
    case FieldKind::kBool:
      return "a boolean";
    case FieldKind::kInteger:
      return "an integer";
    case FieldKind::kNumber:
      return "a number";
    case FieldKind::kString:
      return "a string";
    case FieldKind::kArray:
      return "an array";
    case FieldKind::kObject:
      return "an object";
    case FieldKind::kAny:
      break;
  }
  return "a value";
}

bool IsKind(const Value& v, FieldKind kind) {
  switch (kind) {
    case FieldKind::kAny:
      return true;
    case FieldKind::kBool:
      return v.is_bool();
    case FieldKind::kInteger:
    case FieldKind::kNumber:
      return v.is_number();
    case FieldKind::kString:
      return v.is_string();
    case FieldKind::kArray:
      return v.is_array();
    case FieldKind::kObject:
      return v.is_object();
  }
  return false;
}

// Type and range of one field by its row; null is as good as absent.
std::optional<HttpError> CheckField(const Field& f, const Value& v) {
  const std::string name(f.name);
  if (v.is_null()) return std::nullopt;
  if (!IsKind(v, f.kind)) return WrongType(name, KindName(f.kind), v);
  const bool integer = f.kind == FieldKind::kInteger;
  if (!integer && f.kind != FieldKind::kNumber) return std::nullopt;
  const std::string range =
      " It goes from " + json::FormatDouble(f.min) + " to " + json::FormatDouble(f.max) + ".";
  const auto d = v.AsDouble();
  if (integer && !v.AsInt64() && !v.AsUint64()) {
    const bool whole = !d || *d >= 9e18 || *d <= -9e18;
    return Invalid(name, whole ? "the integer is out of range." : "it must be an integer.");
  }
  if (f.max <= f.min) {
    return d ? std::nullopt
             : std::optional<HttpError>(Invalid(name, "the number is out of range."));
  }
  const bool negative = v.number_text()[0] == '-';
  if (d ? *d > f.max : !negative) {
    return Invalid(name, "it is too large." + range,
                   integer ? "integer_above_max_value" : "decimal_above_max_value");
  }
  if (d ? *d < f.min : negative) {
    return Invalid(name, "it is too small." + range,
                   integer ? "integer_below_min_value" : "decimal_below_min_value");
  }
  return std::nullopt;
}

}  // namespace

HttpError BadRequest(std::string message, std::string param, std::string code) {
  return {.status = 400,
          .message = std::move(message),
          .type = "invalid_request_error",
          .param = std::move(param),
          .code = std::move(code),
          .headers = {}};
}

HttpError WrongType(const std::string& param, const char* expected, const Value& got) {
  return BadRequest("Invalid type for '" + param + "': expected " + expected + ", but got " +
                        TypeName(got) + " instead.",
                    param, "invalid_type");
}

HttpError Missing(const std::string& param) {
  return BadRequest("Missing required parameter: '" + param + "'.", param,
                    "missing_required_parameter");
}

HttpError Invalid(const std::string& param, const std::string& what, const char* code) {
  return BadRequest("Invalid value for '" + param + "': " + what, param, code);
}

Decoder::Decoder(Endpoint endpoint, Value body) {
  r_.endpoint = endpoint;
  r_.body = std::move(body);
}

Decoded<GenerationRequest> Decoder::Run() {
  const bool ok = Fields() && Model() && Sampling() && Bias() && Own();
  if (!ok) return std::move(*error_);
  return std::move(r_);
}

bool Decoder::Fail(HttpError error) {
  error_ = std::move(error);
  return false;
}

const Value* Decoder::Get(std::string_view name) const {
  if (FindField(name, FieldsOf(r_.endpoint)) == nullptr) return nullptr;
  const Value* v = r_.body.Find(name);
  return v == nullptr || v->is_null() ? nullptr : v;
}

double Decoder::Number(std::string_view name, double absent) const {
  const Value* v = Get(name);
  return v == nullptr ? absent : v->AsDouble().value_or(absent);
}

bool Decoder::Flag(std::string_view name) const {
  const Value* v = Get(name);
  return v != nullptr && v->as_bool();
}

bool Decoder::Fields() {
  if (!r_.body.is_object()) {
    return Fail(BadRequest("The body must be a JSON object.", "", "invalid_json"));
  }
  const int endpoint = FieldsOf(r_.endpoint);
  for (const json::Member& m : r_.body.members()) {
    if (!CheckOne(FindField(m.first, endpoint), m.first, m.second)) return false;
    if (!m.second.is_object() || !HasMembers(m.first, endpoint)) continue;
    for (const json::Member& inner : m.second.members()) {
      const Field* f = FindMember(m.first, inner.first, endpoint);
      if (!CheckOne(f, m.first + "." + inner.first, inner.second)) return false;
    }
  }
  std::sort(r_.ignored.begin(), r_.ignored.end());
  return true;
}

bool Decoder::CheckOne(const Field* field, const std::string& name, const Value& value) {
  if (field == nullptr || field->effect == Effect::kInert) r_.ignored.push_back(name);
  if (field == nullptr) return true;
  auto error = CheckField(*field, value);
  return !error || Fail(std::move(*error));
}

bool Decoder::Model() {
  const Value* model = Get("model");
  if (model == nullptr) return Fail(Missing("model"));
  r_.model = model->as_string();
  return !r_.model.empty() || Fail(Invalid("model", "it is empty."));
}

bool Decoder::Sampling() {
  if (r_.endpoint == Endpoint::kCountTokens) return true;  // it has none of these
  engine::SamplingParams& s = r_.sampling;
  s.temperature = static_cast<float>(Number("temperature", 1));
  s.top_p = Number("top_p", 1);
  s.min_p = Number("min_p", 0);
  s.presence_penalty = static_cast<float>(Number("presence_penalty", 0));
  s.frequency_penalty = static_cast<float>(Number("frequency_penalty", 0));
  s.repetition_penalty = static_cast<float>(Number("repetition_penalty", 1));
  if (const Value* k = Get("top_k")) s.top_k = std::max<int64_t>(0, k->AsInt64().value_or(0));
  if (const Value* seed = Get("seed")) {
    const auto i = seed->AsInt64();
    r_.seed = i ? static_cast<uint64_t>(*i) : *seed->AsUint64();
    s.seed = *r_.seed;
  }
  r_.ignore_eos = Flag("ignore_eos");
  r_.stream = Flag("stream");
  r_.deterministic = Flag("deterministic");
  return true;
}

bool Decoder::Bias() {
  const Value* bias = Get("logit_bias");
  if (bias == nullptr) return true;
  for (const json::Member& m : bias->members()) {
    const std::string param = "logit_bias." + m.first.substr(0, 40);
    int32_t id = -1;
    const char* end = m.first.data() + m.first.size();
    const auto [stop, error] = std::from_chars(m.first.data(), end, id);
    const bool spelled = error == std::errc{} && stop == end && std::to_string(id) == m.first;
    if (!spelled || id < 0) return Fail(Invalid("logit_bias", "its names are token ids."));
    if (!m.second.is_number()) return Fail(WrongType(param, "a number", m.second));
    const auto add = m.second.AsDouble();
    if (!add || *add < -kMaxBias || *add > kMaxBias) {
      return Fail(Invalid(param, "it goes from -100 to 100."));
    }
    r_.sampling.logit_bias.emplace_back(id, static_cast<float>(*add));
  }
  std::sort(r_.sampling.logit_bias.begin(), r_.sampling.logit_bias.end());
  return true;
}

bool Decoder::Stops(const char* name, size_t most) {
  const Value* stop = Get(name);
  if (stop == nullptr) return true;
  if (stop->is_string()) return OneStop(name, *stop);
  if (!stop->is_array()) return Fail(WrongType(name, "a string or an array of strings", *stop));
  if (stop->items().size() > most) {
    return Fail(
        Invalid(name, "at most " + std::to_string(most) + " strings.", "array_above_max_length"));
  }
  for (size_t i = 0; i < stop->items().size(); ++i) {
    if (!OneStop(name + ("[" + std::to_string(i) + "]"), stop->items()[i])) return false;
  }
  return true;
}

bool Decoder::OneStop(const std::string& param, const Value& v) {
  if (!v.is_string()) return Fail(WrongType(param, "a string", v));
  if (v.as_string().empty()) return Fail(Invalid(param, "it is empty.", "empty_string"));
  if (!IsUtf8(v.as_string())) return Fail(Invalid(param, "it has half of a surrogate pair."));
  r_.stop.push_back(v.as_string());
  return true;
}

bool Decoder::Text(const std::string& at, const Value& content, std::string& text,
                   std::string_view other, std::string_view another) {
  text.clear();
  if (content.is_string()) {
    text = content.as_string();
    return true;
  }
  if (!content.is_array()) return Fail(WrongType(at, "a string or an array of parts", content));
  if (content.items().empty()) return Fail(Invalid(at, "it is empty.", "empty_array"));
  for (size_t i = 0; i < content.items().size(); ++i) {
    const Value& part = content.items()[i];
    const std::string here = at + "[" + std::to_string(i) + "]";
    if (!part.is_object()) return Fail(WrongType(here, "an object", part));
    const Value* type = part.Find("type");
    if (type == nullptr) return Fail(Missing(here + ".type"));
    if (!type->is_string()) return Fail(WrongType(here + ".type", "a string", *type));
    const std::string& name = type->as_string();
    if (name.empty() || (name != "text" && name != other && name != another)) {
      CannotRead(here);
      continue;
    }
    const Value* piece = part.Find("text");
    if (piece == nullptr) return Fail(Missing(here + ".text"));
    if (!piece->is_string()) return Fail(WrongType(here + ".text", "a string", *piece));
    text += piece->as_string();
  }
  return true;
}

bool Decoder::Role(const std::string& at, const Value& message, std::string_view roles) {
  if (!message.is_object()) return Fail(WrongType(at, "an object", message));
  const Value* role = message.Find("role");
  if (role == nullptr) return Fail(Missing(at + ".role"));
  if (!role->is_string()) return Fail(WrongType(at + ".role", "a string", *role));
  const std::string list = ", " + std::string(roles) + ",";
  const std::string& name = role->as_string();
  const bool known =
      !name.empty() && name.find(',') == name.npos && list.find(", " + name + ",") != list.npos;
  return known || Fail(Invalid(at + ".role", "the roles are " + std::string(roles) + "."));
}

void Decoder::CannotRead(const std::string& at) {
  Unsupported(BadRequest(
      "'" + at + "' is no text, and the embedded engine reads nothing else in this version.", at,
      "unsupported_parameter"));
}

void Decoder::Unsupported(HttpError error) {
  if (!r_.unsupported) r_.unsupported = std::move(error);
}

}  // namespace verbatim::gateway
