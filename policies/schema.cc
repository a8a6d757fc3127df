#include "policies/schema.h"

#include <algorithm>
#include <span>

namespace verbatim::policies {

namespace {

using MaybeProblem = std::optional<Problem>;
constexpr uint64_t kMaxU64 = UINT64_MAX;
constexpr uint64_t kMaxBytes = uint64_t{1} << 30;
constexpr uint64_t kMaxMillis = 86'400'000;

Problem Wrong(const Node& node, std::string what, std::string key = {}) {
  return Problem{node.line, std::move(key), std::move(what)};
}

std::string Describe(const Node& node) {
  switch (node.kind) {
    case Node::Kind::kNull:
      return "nothing";
    case Node::Kind::kList:
      return "a list";
    case Node::Kind::kMap:
      return "a map";
    case Node::Kind::kScalar:
      break;
  }
  return node.quoted ? json::Quote(node.text.substr(0, 80)) : node.text.substr(0, 80);
}

Problem NotAllowed(const Node& node, std::string key = {}) {
  return Wrong(node, Describe(node) + " is not allowed here", std::move(key));
}

// A plain scalar as a JSON number, or nothing.
std::optional<json::Value> Number(const Node& node) {
  if (node.kind != Node::Kind::kScalar || node.quoted || node.text.size() > 64) return std::nullopt;
  auto v = json::Parse(node.text);
  if (!v || !v->is_number() || v->text_end() - v->text_begin() != node.text.size()) {
    return std::nullopt;
  }
  return std::move(*v);
}

bool LooksTyped(const std::string& text) {
  static constexpr std::string_view kWords[] = {"true", "false", "null", "~",
                                                "True", "False", "Null"};
  if (std::find(std::begin(kWords), std::end(kWords), text) != std::end(kWords)) return true;
  return text.size() < 40 && text.find_first_not_of("0123456789.+-eE") == std::string::npos &&
         text.find_first_of("0123456789") != std::string::npos;
}

// Text: quoted, or plain where it reads as nothing else.
MaybeProblem ReadText(const Node& node, std::string& out, const std::string& key = {}) {
  if (node.kind != Node::Kind::kScalar) return NotAllowed(node, key);
  if (!node.quoted && LooksTyped(node.text)) {
    return Wrong(node, node.text + " is no text; write it in quotes if it is meant", key);
  }
  out = node.text;
  return std::nullopt;
}

std::string Join(std::span<const std::string_view> names) {
  std::string out;
  for (std::string_view name : names) {
    if (!out.empty()) out += ", ";
    out += name;
  }
  return out;
}

Row Flag(std::string path, bool& slot) {
  return {
      std::move(path), "true, false",
      [&slot](const Node& n) -> MaybeProblem {
        if (n.kind != Node::Kind::kScalar || n.quoted || (n.text != "true" && n.text != "false")) {
          return NotAllowed(n);
        }
        slot = n.text == "true";
        return std::nullopt;
      },
      [&slot] { return json::Value(slot); }};
}

Row Integer(std::string path, uint64_t& slot, uint64_t min, uint64_t max) {
  return {std::move(path), "an integer from " + std::to_string(min) + " to " + std::to_string(max),
          [&slot, min, max](const Node& n) -> MaybeProblem {
            const auto number = Number(n);
            if (!number || n.text.find_first_not_of("0123456789") != std::string::npos) {
              return NotAllowed(n);
            }
            const auto v = number->AsUint64();
            if (!v || *v < min || *v > max) return NotAllowed(n);
            slot = *v;
            return std::nullopt;
          },
          [&slot] { return json::Value(slot); }};
}

Row Real(std::string path, double& slot, double min, double max) {
  return {std::move(path),
          "a number from " + json::FormatDouble(min) + " to " + json::FormatDouble(max),
          [&slot, min, max](const Node& n) -> MaybeProblem {
            const auto number = Number(n);
            const auto v = number ? number->AsDouble() : std::nullopt;
            if (!v || !(*v >= min && *v <= max)) return NotAllowed(n);
            slot = *v;
            return std::nullopt;
          },
          [&slot] { return json::Value(slot); }};
}

using Test = bool (*)(const std::string&);

Row Text(std::string path, std::string& slot, std::string allowed, Test ok) {
  return {std::move(path), std::move(allowed),
          [&slot, ok](const Node& n) -> MaybeProblem {
            std::string text;
            if (auto problem = ReadText(n, text)) return problem;
            if (!ok(text)) return NotAllowed(n);
            slot = std::move(text);
            return std::nullopt;
          },
          [&slot] { return json::Value(slot); }};
}

// One of several names, held as text.
Row Choice(std::string path, std::string& slot, std::vector<std::string_view> names) {
  std::string allowed = Join(names);
  return {std::move(path), std::move(allowed),
          [&slot, names](const Node& n) -> MaybeProblem {
            std::string text;
            if (auto problem = ReadText(n, text)) return problem;
            if (std::find(names.begin(), names.end(), text) == names.end()) return NotAllowed(n);
            slot = std::move(text);
            return std::nullopt;
          },
          [&slot] { return json::Value(slot); }};
}

// One of several names, held as an enumerator: the index in `names`.
template <typename Enum>
Row Choice(std::string path, Enum& slot, std::vector<std::string_view> names) {
  std::string allowed = Join(names);
  return {std::move(path), std::move(allowed),
          [&slot, names](const Node& n) -> MaybeProblem {
            std::string text;
            if (auto problem = ReadText(n, text)) return problem;
            const auto it = std::find(names.begin(), names.end(), text);
            if (it == names.end()) return NotAllowed(n);
            slot = static_cast<Enum>(it - names.begin());
            return std::nullopt;
          },
          [&slot, names] { return json::Value(names[static_cast<size_t>(slot)]); }};
}

Row TextList(std::string path, std::vector<std::string>& slot, std::string allowed, Test ok) {
  return {std::move(path), std::move(allowed),
          [&slot, ok](const Node& n) -> MaybeProblem {
            if (n.kind != Node::Kind::kList) return NotAllowed(n);
            std::vector<std::string> list;
            for (const Node& item : n.items) {
              if (auto problem = ReadText(item, list.emplace_back())) return problem;
              if (!ok(list.back())) return NotAllowed(item);
            }
            std::sort(list.begin(), list.end());
            if (std::adjacent_find(list.begin(), list.end()) != list.end()) {
              return Wrong(n, "a name stands there twice");
            }
            slot = std::move(list);
            return std::nullopt;
          },
          [&slot] {
            json::Value v = json::Value::MakeArray();
            for (const std::string& item : slot) v.Append(item);
            return v;
          }};
}

Row TextMap(std::string path, std::vector<std::pair<std::string, std::string>>& slot,
            std::string allowed, Test key_ok) {
  return {std::move(path), std::move(allowed),
          [&slot, key_ok](const Node& n) -> MaybeProblem {
            if (n.kind != Node::Kind::kMap) return NotAllowed(n);
            slot.clear();
            for (const Node::Entry& e : n.entries) {
              if (!key_ok(e.key)) return Problem{e.line, e.key, "is not allowed here"};
              slot.emplace_back(e.key, "");
              if (auto problem = ReadText(e.value, slot.back().second, e.key)) return problem;
            }
            std::sort(slot.begin(), slot.end());
            return std::nullopt;
          },
          [&slot] {
            json::Value v = json::Value::MakeObject();
            for (const auto& [key, value] : slot) v.Set(key, value);
            return v;
          }};
}

// Request fields that a policy may fix, with the ranges that the decoder has for them.
struct Enforceable {
  std::string_view field;
  bool integer;
  std::string_view min, max;  // as JSON numbers; compared as doubles, integers exactly
};
constexpr Enforceable kEnforceable[] = {
    {"temperature", false, "0", "2"},
    {"top_p", false, "0", "1"},
    {"top_k", true, "0", "9223372036854775807"},
    {"min_p", false, "0", "1"},
    {"presence_penalty", false, "-2", "2"},
    {"frequency_penalty", false, "-2", "2"},
    {"repetition_penalty", false, "0.01", "100"},
    {"seed", true, "-9223372036854775808", "18446744073709551615"},
};

bool InRange(const Enforceable& e, const json::Value& v) {
  if (e.integer) {
    const auto i = v.AsInt64();
    if (!i && !v.AsUint64()) return false;
    const json::Value min = json::Value::NumberFromText(std::string(e.min));
    const json::Value max = json::Value::NumberFromText(std::string(e.max));
    return (!i || *i >= min.AsInt64().value_or(0)) &&
           (!v.AsUint64() || *v.AsUint64() <= max.AsUint64().value_or(kMaxU64));
  }
  const auto d = v.AsDouble();
  return d && *d >= std::stod(std::string(e.min)) && *d <= std::stod(std::string(e.max));
}

MaybeProblem ReadEnforced(const Node::Entry& entry, std::vector<Enforced>& out) {
  const auto* e = std::find_if(std::begin(kEnforceable), std::end(kEnforceable),
                               [&](const Enforceable& row) { return row.field == entry.key; });
  if (e == std::end(kEnforceable)) {
    std::vector<std::string_view> names;
    for (const Enforceable& row : kEnforceable) names.push_back(row.field);
    return Problem{entry.line, entry.key,
                   "unknown field; fields that can be enforced: " + Join(names)};
  }
  if (entry.value.kind != Node::Kind::kMap) return NotAllowed(entry.value, entry.key);
  Enforced enforced{.field = entry.key, .value = {}, .how = How::kOverride};
  for (const Node::Entry& part : entry.value.entries) {
    const std::string key = entry.key + "." + part.key;
    if (part.key == "value") {
      const auto number = Number(part.value);
      if (!number || !InRange(*e, *number)) {
        return Wrong(part.value,
                     Describe(part.value) + " is not " + (e->integer ? "an integer" : "a number") +
                         " from " + std::string(e->min) + " to " + std::string(e->max),
                     key);
      }
      enforced.value = *number;
    } else if (part.key == "how") {
      const std::string& how = part.value.text;
      if (how != "override" && how != "refuse") {
        return Wrong(part.value, Describe(part.value) + " is neither override nor refuse", key);
      }
      enforced.how = how == "refuse" ? How::kRefuse : How::kOverride;
    } else {
      return Problem{part.line, key, "unknown key"};
    }
  }
  if (enforced.value.is_null()) return Problem{entry.line, entry.key, "has no value"};
  out.push_back(std::move(enforced));
  return std::nullopt;
}

Row EnforceRow(std::string path, std::vector<Enforced>& slot) {
  return {std::move(path), "FIELD: {value: NUMBER, how: override|refuse}",
          [&slot](const Node& n) -> MaybeProblem {
            if (n.kind != Node::Kind::kMap) return NotAllowed(n);
            slot.clear();
            for (const Node::Entry& entry : n.entries) {
              if (auto problem = ReadEnforced(entry, slot)) return problem;
            }
            std::sort(slot.begin(), slot.end(),
                      [](const Enforced& a, const Enforced& b) { return a.field < b.field; });
            return std::nullopt;
          },
          [&slot] {
            json::Value v = json::Value::MakeObject();
            for (const Enforced& e : slot) {
              v.Set(e.field, json::Object{{"value", e.value},
                                          {"how", e.how == How::kRefuse ? "refuse" : "override"}});
            }
            return v;
          }};
}

bool Anything(const std::string& text) { return !text.empty() && text.size() <= 4096; }

bool IsComponent(const std::string& text) {
  return !text.empty() && text.size() <= 200 &&
         text.find_first_not_of(
             "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:/-") ==
             std::string::npos;
}

bool IsHexDigest(const std::string& text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

bool IsSecret(const std::string& text) {
  return (text.starts_with("env:") && text.size() > 4) ||
         (text.starts_with("file:") && text.size() > 5);
}

bool IsListen(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0 || text.size() - colon > 6) return false;
  const std::string port = text.substr(colon + 1);
  return !port.empty() && port.find_first_not_of("0123456789") == std::string::npos &&
         std::stoi(port) <= 65535;
}

// A signed note's key name (C2SP signed-note): no spaces, no plus sign.
bool IsOrigin(const std::string& text) {
  return !text.empty() && text.size() <= 200 && std::all_of(text.begin(), text.end(), [](char c) {
    return c > ' ' && c < 0x7f && c != '+';
  });
}

bool IsModelName(const std::string& text) {
  return !text.empty() && text.size() <= 200 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c != 0x7f; });
}

constexpr std::string_view kFidelities[] = {"wba16", "w8a16", "w16a16"};

MaybeProblem ReadModel(const Node::Entry& entry, ModelConfig& model) {
  if (!IsModelName(entry.key)) {
    return Problem{entry.line, "",
                   "a model's name is 1 to 200 printable ASCII bytes without spaces"};
  }
  if (entry.value.kind == Node::Kind::kScalar) return ReadText(entry.value, model.file, entry.key);
  if (entry.value.kind != Node::Kind::kMap) return NotAllowed(entry.value, entry.key);
  for (const Node::Entry& part : entry.value.entries) {
    const std::string key = entry.key + "." + part.key;
    if (part.key == "file") {
      if (auto problem = ReadText(part.value, model.file, key)) return problem;
    } else if (part.key == "fidelity") {
      if (auto problem = ReadText(part.value, model.fidelity, key)) return problem;
      if (std::find(std::begin(kFidelities), std::end(kFidelities), model.fidelity) ==
          std::end(kFidelities)) {
        return Wrong(part.value, Describe(part.value) + " is none of " + Join(kFidelities), key);
      }
    } else {
      return Problem{part.line, key, "unknown key"};
    }
  }
  if (model.file.empty()) return Problem{entry.line, entry.key, "names no file"};
  return std::nullopt;
}

Row ModelsRow(std::string path, std::map<std::string, ModelConfig>& slot) {
  return {std::move(path), "NAME: FILE, or NAME: {file: FILE, fidelity: wba16|w8a16|w16a16}",
          [&slot](const Node& n) -> MaybeProblem {
            if (n.kind != Node::Kind::kMap) return NotAllowed(n);
            slot.clear();
            for (const Node::Entry& entry : n.entries) {
              if (auto problem = ReadModel(entry, slot[entry.key])) return problem;
            }
            return std::nullopt;
          },
          [&slot] {
            json::Value v = json::Value::MakeObject();
            for (const auto& [name, model] : slot) {
              v.Set(name, json::Object{{"file", model.file}, {"fidelity", model.fidelity}});
            }
            return v;
          }};
}

// A section that is known and cannot be used yet.
Row NotYet(std::string path, std::string what) {
  return {std::move(path), "nothing yet",
          [what](const Node& n) -> MaybeProblem {
            return Wrong(n, what + " are not supported by this version; remove the section");
          },
          [] { return json::Value(); }};
}

class Applier {
 public:
  Applier(const std::vector<Row>& rows, const std::string& file, const std::string& prefix)
      : rows_(rows), file_(file), prefix_(prefix) {}

  Status Map(const Node& node, const std::string& path) const {
    if (node.kind != Node::Kind::kMap) {
      return Fail(node.line, path, Describe(node) + " is not allowed here", Children(path));
    }
    for (const Node::Entry& entry : node.entries) {
      Status status = Entry(entry, path.empty() ? entry.key : path + "." + entry.key, path);
      if (!status) return status;
    }
    return {};
  }

 private:
  Status Entry(const Node::Entry& entry, const std::string& path, const std::string& parent) const {
    const bool dotted = entry.key.find('.') != std::string::npos;
    for (const Row& row : rows_) {
      if (row.path == path && !dotted) {
        const auto problem = row.read(entry.value);
        if (!problem) return {};
        return Fail(problem->line, problem->key.empty() ? path : path + "." + problem->key,
                    problem->what, row.allowed);
      }
    }
    if (!dotted && !Children(path).empty()) return Map(entry.value, path);
    return Fail(entry.line, path, "unknown key", Children(parent));
  }

  // The keys that may stand in the section `path`.
  std::string Children(const std::string& path) const {
    std::vector<std::string_view> names;
    const std::string start = path.empty() ? "" : path + ".";
    for (const Row& row : rows_) {
      if (!row.path.starts_with(start) || row.allowed == "nothing yet") continue;
      const std::string_view rest = std::string_view(row.path).substr(start.size());
      const std::string_view name = rest.substr(0, rest.find('.'));
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
    return Join(names);
  }

  Status Fail(int line, const std::string& key, const std::string& what,
              const std::string& allowed) const {
    std::string where = prefix_ + key;
    if (key.empty() && !where.empty()) where.pop_back();  // the prefix without its dot
    return Error{Code::kInvalid, file_ + ":" + std::to_string(line) + ": " +
                                     (where.empty() ? "" : where + ": ") + what +
                                     "; allowed: " + allowed};
  }

  const std::vector<Row>& rows_;
  const std::string& file_;
  const std::string& prefix_;
};

}  // namespace

std::vector<Row> PolicyRows(Policy& p) {
  const std::string component = "names of manifest components, such as libraries.rocksdb";
  return {
      Choice("mode", p.mode, {"record", "observe", "replay", "verify", "bypass"}),
      EnforceRow("enforce", p.enforce),
      Choice("key.namespace", p.name_space, {"tenant", "subject", "shared"}),
      Text("key.secret", p.key_secret, "env:NAME, file:PATH", IsSecret),
      Flag("key.policy", p.key_policy),
      Flag("key.manifest", p.key_manifest),
      TextList("key.software", p.key_software, "a list of " + component, IsComponent),
      Text("software_lock.manifest", p.lock_manifest, "64 lower-case hexadecimal digits",
           IsHexDigest),
      TextMap("software_lock.components", p.lock_components, component + ": \"VERSION\"",
              IsComponent),
      Real("verify.rate", p.verify_rate, 0, 1),
      Flag("hits.strict", p.strict_hits),
      Integer("retention.seconds", p.retention_seconds, 0, uint64_t{100} * 366 * 86400),
      Integer("limits.body_bytes", p.limits.body_bytes, 0, kMaxBytes),
      Integer("limits.prompt_bytes", p.limits.prompt_bytes, 0, kMaxBytes),
      Integer("limits.messages", p.limits.messages, 0, 1'000'000),
      Integer("limits.max_tokens", p.limits.max_tokens, 0, 1 << 20),
  };
}

std::vector<Row> ConfigRows(Config& c) {
  ServerConfig& s = c.server;
  EngineConfig& e = c.engine;
  return {
      Text("server.listen", s.listen, "HOST:PORT", IsListen),
      Integer("server.threads", s.threads, 0, 1024),
      Integer("server.limits.header_bytes", s.header_bytes, 1024, 16 << 20),
      Integer("server.limits.header_count", s.header_count, 10, 10'000),
      Integer("server.limits.body_bytes", s.body_bytes, 1024, kMaxBytes),
      Integer("server.limits.connections", s.connections, 1, 1'000'000),
      Integer("server.timeouts.header_ms", s.header_ms, 1, kMaxMillis),
      Integer("server.timeouts.body_ms", s.body_ms, 1, kMaxMillis),
      Integer("server.timeouts.write_stall_ms", s.write_stall_ms, 1, kMaxMillis),
      Integer("server.timeouts.keep_alive_ms", s.keep_alive_ms, 1, kMaxMillis),
      Integer("server.timeouts.drain_ms", s.drain_ms, 0, kMaxMillis),
      Text("data", c.data, "a folder's name", Anything),
      ModelsRow("models", c.models),
      Text("log.origin", c.origin, "1 to 200 printable ASCII bytes without spaces and '+'",
           IsOrigin),
      Integer("engine.threads", e.threads, 0, 1024),
      Integer("engine.max_batch", e.max_batch, 1, 1024),
      Integer("engine.kv_tokens", e.kv_tokens, 0, 1 << 30),
      Integer("engine.context_limit", e.context_limit, 0, 1 << 30),
      Integer("engine.prefill_chunk", e.prefill_chunk, 1, 65'536),
      Integer("engine.queue_limit", e.queue_limit, 0, 1'000'000),
      Choice("engine.isa", e.isa, {"scalar", "avx2", "avx512vnni"}),
      NotYet("upstreams", "upstreams"),
      NotYet("tenants", "tenants"),
  };
}

Status ApplyRows(const std::vector<Row>& rows, const Node& root, const std::string& file,
                 const std::string& prefix) {
  return Applier(rows, file, prefix).Map(root, "");
}

json::Value WriteRows(const std::vector<Row>& rows) {
  json::Value out = json::Value::MakeObject();
  for (const Row& row : rows) {
    json::Value* at = &out;
    size_t start = 0;
    for (size_t dot; (dot = row.path.find('.', start)) != std::string::npos; start = dot + 1) {
      const std::string section = row.path.substr(start, dot - start);
      if (at->Find(section) == nullptr) at->Set(section, json::Value::MakeObject());
      at = at->Find(section);
    }
    at->Set(row.path.substr(start), row.write());
  }
  return out;
}

}  // namespace verbatim::policies
