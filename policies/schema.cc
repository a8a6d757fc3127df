#include "policies/schema.h"

#include <algorithm>

#include "policies/rows.h"

namespace verbatim::policies {

namespace {

constexpr uint64_t kMaxU64 = UINT64_MAX;

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

bool IsComponent(const std::string& text) {
  return !text.empty() && text.size() <= 200 &&
         text.find_first_not_of(
             "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:/-") ==
             std::string::npos;
}

bool IsFinishReason(const std::string& text) { return !text.empty() && text.size() <= 100; }

bool IsHexDigest(const std::string& text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
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

Row LedgerFailureRow(std::string path, uint64_t& slot) {
  return {std::move(path), "refuse, or break_glass: {seconds: 1 to 86400}",
          [&slot](const Node& n) -> MaybeProblem {
            slot = 0;
            if (n.kind == Node::Kind::kScalar && n.text == "refuse") return std::nullopt;
            if (n.kind != Node::Kind::kMap) return NotAllowed(n);
            return ReadMap({Integer("break_glass.seconds", slot, 1, 86'400)}, n);
          },
          [&slot] {
            if (slot == 0) return json::Value("refuse");
            return json::Value(json::Object{{"break_glass", json::Object{{"seconds", slot}}}});
          }};
}

// Versions look like numbers, and need no quotes here.
Row TlsVersionRow(std::string path, std::string& slot) {
  return {std::move(path), "1.2, 1.3",
          [&slot](const Node& n) -> MaybeProblem {
            if (n.kind != Node::Kind::kScalar || (n.text != "1.2" && n.text != "1.3")) {
              return NotAllowed(n);
            }
            slot = n.text;
            return std::nullopt;
          },
          [&slot] { return json::Value(slot); }};
}

}  // namespace

std::vector<Row> PolicyRows(Policy& p) {
  const std::string component = "names of manifest components, such as libraries.rocksdb";
  return {
      Choice("mode", p.mode, {"record", "observe", "replay", "verify", "bypass"}),
      EnforceRow("enforce", p.enforce),
      Choice("key.namespace", p.name_space, {"tenant", "subject", "shared", "group"}),
      Secret("key.secret", p.key_secret),
      Flag("key.policy", p.key_policy),
      Flag("key.manifest", p.key_manifest),
      TextList("key.software", p.key_software, "a list of " + component, IsComponent),
      Text("software_lock.manifest", p.lock_manifest, "64 lower-case hexadecimal digits",
           IsHexDigest),
      TextMap("software_lock.components", p.lock_components, component + ": \"VERSION\"",
              IsComponent),
      Real("verify.rate", p.verify_rate, 0, 1),
      Text("pass_through", p.pass_through, "an upstream's id, or \"\"",
           [](const std::string& id) { return id.size() <= 200; }),
      Flag("hits.strict", p.strict_hits),
      Flag("hits.sampled", p.hits.sampled),
      Flag("hits.stateful", p.hits.stateful),
      Integer("hits.max_age_seconds", p.hits.max_age_seconds, 0, uint64_t{100} * 366 * 86400),
      TextList("hits.finish_reasons", p.hits.finish_reasons,
               "a list of finish reasons, such as stop and length", IsFinishReason),
      Integer("retention.seconds", p.retention_seconds, 0, uint64_t{100} * 366 * 86400),
      LedgerFailureRow("on_ledger_failure", p.break_glass_seconds),
      Integer("limits.body_bytes", p.limits.body_bytes, 0, kMaxBytes),
      Integer("limits.prompt_bytes", p.limits.prompt_bytes, 0, kMaxBytes),
      Integer("limits.messages", p.limits.messages, 0, 1'000'000),
      Integer("limits.max_tokens", p.limits.max_tokens, 0, 1 << 20),
      RedactRow(p.redact),
  };
}

std::vector<Row> ConfigRows(Config& c) {
  ServerConfig& s = c.server;
  EngineConfig& e = c.engine;
  std::vector<Row> rows = {
      Text("server.listen", s.listen, "HOST:PORT", IsListen),
      Integer("server.threads", s.threads, 0, 1024),
      Text("server.tls.certificate", s.tls.certificate, "a PEM file's name", Anything),
      Text("server.tls.key", s.tls.key, "a PEM file's name", Anything),
      Text("server.tls.client_ca", s.tls.client_ca, "a PEM file's name", Anything),
      Choice("server.tls.client_certificates", s.tls.client_certificates,
             {"none", "optional", "required"}),
      TlsVersionRow("server.tls.min_version", s.tls.min_version),
      Flag("server.tls.operator_certificates", s.tls.operator_certificates),
      Flag("server.half_close", s.half_close),
      Text("server.access_log", s.access_log, "off, stdout, stderr, or a file's name", Anything),
      Integer("server.refusal_interval_ms", s.refusal_interval_ms, 1000, kMaxMillis),
      Flag("server.generate_traceparent", s.generate_traceparent),
      Integer("server.limits.header_bytes", s.header_bytes, 1024, 16 << 20),
      Integer("server.limits.header_count", s.header_count, 10, 10'000),
      Integer("server.limits.body_bytes", s.body_bytes, 1024, kMaxBytes),
      Integer("server.limits.connections", s.connections, 1, 1'000'000),
      Integer("server.limits.stream_buffer_bytes", s.stream_buffer_bytes, 4096, kMaxBytes),
      Integer("server.limits.replies_total_bytes", s.replies_total_bytes, 1 << 20,
              uint64_t{1} << 40),
      Integer("server.limits.hit_memory_bytes", s.hit_memory_bytes, 0, uint64_t{1} << 40),
      Integer("server.timeouts.header_ms", s.header_ms, 1, kMaxMillis),
      Integer("server.timeouts.body_ms", s.body_ms, 1, kMaxMillis),
      Integer("server.timeouts.write_stall_ms", s.write_stall_ms, 1, kMaxMillis),
      Integer("server.timeouts.keep_alive_ms", s.keep_alive_ms, 1, kMaxMillis),
      Integer("server.timeouts.drain_ms", s.drain_ms, 0, kMaxMillis),
      Text("data", c.data, "a folder's name", Anything),
      ModelsRow("models", c.models),
      Text("log.origin", c.origin, "1 to 200 printable ASCII bytes without spaces and '+'",
           IsOrigin),
      Choice("log.level", c.log_level, {"info", "warning", "error"}),
      Integer("engine.threads", e.threads, 0, 1024),
      Integer("engine.max_batch", e.max_batch, 1, 1024),
      Integer("engine.kv_tokens", e.kv_tokens, 0, 1 << 30),
      Integer("engine.context_limit", e.context_limit, 0, 1 << 30),
      Integer("engine.prefill_chunk", e.prefill_chunk, 1, 65'536),
      Integer("engine.queue_limit", e.queue_limit, 0, 1'000'000),
      Flag("engine.prefix_cache", e.prefix_cache),
      Choice("engine.isa", e.isa, {"scalar", "avx2", "avx512vnni"}),
      UpstreamsRow(c.upstreams),
      AccessRow(c.access),
      TenantsRow(c.tenants),
  };
  AddLogRows(rows, c.log);
  return rows;
}

Status ApplyRows(const std::vector<Row>& rows, const Node& root, const std::string& file,
                 const std::string& prefix) {
  const auto problem = ReadMap(rows, root);
  if (!problem) return {};
  std::string where = prefix + problem->key;
  if (problem->key.empty() && !where.empty()) where.pop_back();  // the prefix without its dot
  return Error{Code::kInvalid, file + ":" + std::to_string(problem->line) + ": " +
                                   (where.empty() ? "" : where + ": ") + problem->what +
                                   "; allowed: " + problem->allowed};
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
