#include <algorithm>
#include <iterator>

#include "policies/rows.h"
#include "policies/upstreams.h"

namespace verbatim::policies {

namespace {

constexpr std::string_view kKinds[] = {"openai", "azure", "anthropic"};

bool IsLower(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); }

bool IsIdentifier(const std::string& text) {
  return !text.empty() && text.size() <= 64 && std::all_of(text.begin(), text.end(), [](char c) {
    return IsLower(c) || (c >= 'A' && c <= 'Z') || c == '-' || c == '_';
  });
}

bool IsPrintable(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 0x7f; });
}

bool IsProxy(const std::string& text) {
  return text == "none" || IsSecret(text) || (text.starts_with("http://") && IsUrl(text));
}

bool IsVersion(const std::string& text) {
  return !text.empty() && text.size() <= 200 && IsPrintable(text) &&
         text.find_first_of("\"&#?%") == std::string::npos;
}

bool IsHeaderName(const std::string& text) {
  return !text.empty() && text.size() <= 200 && std::all_of(text.begin(), text.end(), [](char c) {
    return IsLower(c) || c == '-' || c == '_';
  });
}

template <size_t N>
bool IsOneOf(const std::string& text, const std::string_view (&names)[N]) {
  return std::find(std::begin(names), std::end(names), text) != std::end(names);
}

// Headers that frame a message or belong to one connection.
bool IsFraming(const std::string& name) {
  static constexpr std::string_view kNames[] = {
      "connection", "content-encoding",  "content-length",   "expect",  "host", "keep-alive", "te",
      "trailer",    "transfer-encoding", "proxy-connection", "upgrade", "via"};
  return IsOneOf(name, kNames);
}

bool IsForwardable(const std::string& name) {
  static constexpr std::string_view kNames[] = {
      "accept", "accept-encoding",     "api-key",  "authorization", "content-type",
      "cookie", "proxy-authorization", "x-api-key"};
  return IsHeaderName(name) && !IsFraming(name) && !IsOneOf(name, kNames);
}

bool IsKeepable(const std::string& name) {
  static constexpr std::string_view kNames[] = {"set-cookie", "x-request-id", "date", "server"};
  return IsHeaderName(name) && !IsFraming(name) && !IsOneOf(name, kNames) &&
         !name.starts_with("verbatim-") && !name.starts_with("proxy-");
}

bool IsQueryName(const std::string& text) {
  return !text.empty() && text.size() <= 200 && IsPrintable(text) &&
         text.find_first_of("&=#?%") == std::string::npos;
}

Row HeadersRow(std::string path, std::vector<std::pair<std::string, std::string>>& slot) {
  return {std::move(path), "NAME: VALUE, where a secret is env:NAME or file:PATH",
          [&slot](const Node& n) -> MaybeProblem {
            if (n.kind != Node::Kind::kMap) return Wrong(n, "a map is expected");
            slot.clear();
            for (const Node::Entry& e : n.entries) {
              if (!IsForwardable(e.key)) {
                return Problem{e.line, e.key,
                               "cannot be added (names are lower-case; what carries a key belongs "
                               "into credentials)"};
              }
              // Not repeated in errors: it may be a secret all the same.
              const std::string& value = e.value.text;
              if (e.value.kind != Node::Kind::kScalar || value.size() > 4096 ||
                  !std::all_of(value.begin(), value.end(),
                               [](char c) { return c >= ' ' && c < 0x7f; })) {
                return Problem{e.line, e.key, "is no text of printable ASCII"};
              }
              slot.emplace_back(e.key, value);
            }
            std::sort(slot.begin(), slot.end());
            return std::nullopt;
          },
          [&slot] {
            json::Value v = json::Value::MakeObject();
            for (const auto& [name, value] : slot) v.Set(name, value);
            return v;
          }};
}

// A version is text even where it reads as a date or a number.
Row VersionRow(std::string path, std::string& slot, std::string allowed) {
  return {std::move(path), std::move(allowed),
          [&slot](const Node& n) -> MaybeProblem {
            if (n.kind != Node::Kind::kScalar || !IsVersion(n.text)) return NotAllowed(n);
            slot = n.text;
            return std::nullopt;
          },
          [&slot] { return json::Value(slot); }};
}

// At most one '*', at the end.
bool IsModelPattern(const std::string& text) {
  return !text.empty() && text.size() <= 200 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c != 0x7f; }) &&
         text.find('*') >= text.size() - 1;
}

MaybeProblem ReadUpstreamModel(const Node& value, const std::string& client,
                               std::vector<UpstreamModel>& out) {
  UpstreamModel model{client, client};
  if (auto problem = ReadText(value, model.upstream, client)) return problem;
  if (model.client.empty()) model.client = model.upstream;
  if (!IsModelPattern(model.client) || !IsModelPattern(model.upstream)) {
    return Wrong(value, "a name is 1 to 200 bytes without spaces, with * at most at the end",
                 client);
  }
  if (model.upstream.ends_with('*') && !model.client.ends_with('*')) {
    return Wrong(value, "has a * that nothing stands for", client);
  }
  out.push_back(std::move(model));
  return std::nullopt;
}

bool MoreSpecific(const UpstreamModel& a, const UpstreamModel& b) {
  const bool a_open = a.client.ends_with('*'), b_open = b.client.ends_with('*');
  if (a_open != b_open) return b_open;
  if (a_open && a.client.size() != b.client.size()) return a.client.size() > b.client.size();
  return a.client < b.client;
}

Row UpstreamModelsRow(std::string path, std::vector<UpstreamModel>& slot) {
  return {std::move(path), "a list of names, or NAME: THE UPSTREAM'S NAME; a name may end in *",
          [&slot](const Node& n) -> MaybeProblem {
            slot.clear();
            if (n.kind == Node::Kind::kList) {
              for (const Node& item : n.items) {
                if (auto problem = ReadUpstreamModel(item, "", slot)) return problem;
              }
            } else if (n.kind == Node::Kind::kMap) {
              for (const Node::Entry& e : n.entries) {
                if (auto problem = ReadUpstreamModel(e.value, e.key, slot)) return problem;
              }
            } else {
              return NotAllowed(n);
            }
            std::sort(slot.begin(), slot.end(), MoreSpecific);
            const auto same = [](const UpstreamModel& a, const UpstreamModel& b) {
              return a.client == b.client;
            };
            if (std::adjacent_find(slot.begin(), slot.end(), same) != slot.end()) {
              return Wrong(n, "a name stands there twice");
            }
            return std::nullopt;
          },
          [&slot] {
            json::Value v = json::Value::MakeObject();
            for (const UpstreamModel& model : slot) v.Set(model.client, model.upstream);
            return v;
          }};
}

// Ids in the order given, which counts.
Row FallbacksRow(std::string path, std::vector<std::string>& slot) {
  return {std::move(path), "a list of other upstreams' ids",
          [&slot](const Node& n) -> MaybeProblem {
            if (n.kind != Node::Kind::kList) return NotAllowed(n);
            slot.clear();
            for (const Node& item : n.items) {
              std::string id;
              if (auto problem = ReadText(item, id)) return problem;
              if (std::find(slot.begin(), slot.end(), id) != slot.end()) {
                return Wrong(item, "a name stands there twice");
              }
              slot.push_back(std::move(id));
            }
            return std::nullopt;
          },
          [&slot] {
            json::Value v = json::Value::MakeArray();
            for (const std::string& id : slot) v.Append(id);
            return v;
          }};
}

std::vector<Row> UpstreamRows(UpstreamConfig& u) {
  const std::string names = "a list of lower-case header names that are not the connection's own";
  return {
      Choice("kind", u.kind, {std::begin(kKinds), std::end(kKinds)}),
      Text("url", u.url, "https://HOST[:PORT][/PATH], without user, query or fragment", IsUrl),
      UpstreamModelsRow("models", u.models),
      VersionRow("api_version", u.api_version, "a version, such as 2024-10-21"),
      VersionRow("model_version", u.model_version, "a version, such as gpt-4o-2024-08-06"),
      Choice("credentials.from", u.credentials.from, {"config", "client", "none"}),
      Choice("credentials.header", u.credentials.header, {"authorization", "api-key", "x-api-key"}),
      Secret("credentials.value", u.credentials.value),
      TextList("headers.forward", u.headers.forward, names + " and carry no credentials",
               IsForwardable),
      HeadersRow("headers.add", u.headers.add),
      TextList("headers.not_semantic", u.headers.not_semantic, names, IsForwardable),
      TextList("headers.keep", u.headers.keep, names, IsKeepable),
      TextList("query.not_semantic", u.query_not_semantic, "a list of query parameters' names",
               IsQueryName),
      Text("ca_file", u.ca_file, "a PEM file's name", Anything),
      Text("client_certificate", u.client_certificate, "a PEM file's name", Anything),
      Text("client_key", u.client_key, "a PEM file's name", Anything),
      Text("proxy", u.proxy, "none, http://HOST:PORT, or env:NAME or file:PATH that holds it",
           IsProxy),
      Integer("timeouts.connect_ms", u.timeouts.connect_ms, 1, kMaxMillis),
      Integer("timeouts.first_byte_ms", u.timeouts.first_byte_ms, 1, kMaxMillis),
      Integer("timeouts.idle_ms", u.timeouts.idle_ms, 1, kMaxMillis),
      Integer("timeouts.total_ms", u.timeouts.total_ms, 1, kMaxMillis),
      Integer("retries.attempts", u.retries.attempts, 1, 20),
      Integer("retries.base_ms", u.retries.base_ms, 1, kMaxMillis),
      Integer("retries.max_ms", u.retries.max_ms, 1, kMaxMillis),
      Integer("breaker.failures", u.breaker.failures, 0, 10'000),
      Integer("breaker.window_ms", u.breaker.window_ms, 1, kMaxMillis),
      Integer("breaker.open_ms", u.breaker.open_ms, 1, kMaxMillis),
      Integer("pool.connections", u.pool.connections, 1, 100'000),
      Integer("pool.idle_ms", u.pool.idle_ms, 0, kMaxMillis),
      FallbacksRow("fallbacks", u.fallbacks),
      Integer("limits.reply_bytes", u.reply_bytes, 1024, kMaxBytes),
      Flag("ask_usage", u.ask_usage),
  };
}

// What a single row of one upstream cannot see.
MaybeProblem CheckUpstream(const Node::Entry& entry, UpstreamConfig& u) {
  const auto wrong = [&](const std::string& field, std::string what, std::string allowed) {
    return Problem{entry.line, entry.key + (field.empty() ? "" : "." + field), std::move(what),
                   std::move(allowed)};
  };
  if (u.url.empty()) return wrong("url", "is missing", "https://HOST[:PORT][/PATH]");
  if (u.models.empty()) {
    return wrong("models", "names no model", "a list of names, or NAME: THE UPSTREAM'S NAME");
  }
  bool from_given = false;
  for (const Node::Entry& part : entry.value.entries) {
    if (part.key != "credentials" || part.value.kind != Node::Kind::kMap) continue;
    for (const Node::Entry& e : part.value.entries) from_given |= e.key == "from";
  }
  using From = UpstreamCredentials::From;
  if (!from_given && !u.credentials.value.empty()) u.credentials.from = From::kConfig;
  if (u.credentials.from == From::kConfig && u.credentials.value.empty()) {
    return wrong("credentials.value", "is missing", "env:NAME, file:PATH");
  }
  if (u.credentials.from != From::kConfig && !u.credentials.value.empty()) {
    return wrong("credentials.from", "does not use the value that is given", "config");
  }
  if (u.client_certificate.empty() != u.client_key.empty()) {
    return wrong(u.client_key.empty() ? "client_key" : "client_certificate",
                 "is missing beside its other half", "a PEM file's name");
  }
  if (u.kind == UpstreamKind::kOpenAi && !u.api_version.empty()) {
    return wrong("api_version", "has no meaning for the kind openai", "no value");
  }
  if (u.kind == UpstreamKind::kAzure && u.api_version.empty() && !u.url.ends_with("/openai/v1") &&
      !u.url.ends_with("/openai/v1/")) {
    return wrong("api_version", "is missing",
                 "a version, such as 2024-10-21, or a url that ends in /openai/v1");
  }
  return std::nullopt;
}

MaybeProblem ReadUpstreams(const Node& node, UpstreamConfigs& out) {
  if (node.kind != Node::Kind::kMap) return NotAllowed(node);
  out.clear();
  for (const Node::Entry& entry : node.entries) {
    if (!IsIdentifier(entry.key)) {
      return Problem{entry.line, entry.key, "is no id",
                     "1 to 64 ASCII letters, digits, '-' and '_'"};
    }
    UpstreamConfig& upstream = out[entry.key];
    if (auto problem = ReadMap(UpstreamRows(upstream), entry.value)) {
      problem->key = problem->key.empty() ? entry.key : entry.key + "." + problem->key;
      return problem;
    }
    if (auto problem = CheckUpstream(entry, upstream)) return problem;
  }
  for (const Node::Entry& entry : node.entries) {
    for (const std::string& id : out[entry.key].fallbacks) {
      if (id == entry.key || !out.contains(id)) {
        return Problem{entry.line, entry.key + ".fallbacks",
                       id.substr(0, 80) + (id == entry.key ? " is the upstream itself"
                                                           : " is the id of no upstream")};
      }
    }
  }
  return std::nullopt;
}

}  // namespace

std::string_view UpstreamKindName(UpstreamKind kind) { return kKinds[static_cast<size_t>(kind)]; }

std::optional<std::string> UpstreamModelName(const UpstreamConfig& upstream,
                                             std::string_view model) {
  for (const UpstreamModel& m : upstream.models) {
    std::string_view prefix = m.client;
    if (!prefix.ends_with('*')) {
      if (model == prefix) return m.upstream;
      continue;
    }
    prefix.remove_suffix(1);
    if (!model.starts_with(prefix)) continue;
    std::string name = m.upstream;
    if (name.ends_with('*')) {
      name.pop_back();
      name += model.substr(prefix.size());
    }
    if (!name.empty()) return name;
  }
  return std::nullopt;
}

std::string UpstreamFor(const UpstreamConfigs& upstreams, std::string_view model) {
  struct Candidate {
    const std::string* id;
    const UpstreamModel* by;
  };
  std::vector<Candidate> best;
  for (const auto& [id, upstream] : upstreams) {
    for (const UpstreamModel& m : upstream.models) {
      const std::string_view name = m.client;
      const bool open = name.ends_with('*');
      if (open ? !model.starts_with(name.substr(0, name.size() - 1)) : model != name) continue;
      const bool equal = !best.empty() && best[0].by->client == m.client;
      if (best.empty() || equal || MoreSpecific(m, *best[0].by)) {
        if (!equal) best.clear();
        best.push_back({&id, &m});
      }
      break;
    }
  }
  if (best.empty()) return "";
  for (const Candidate& candidate : best) {
    const bool is_fallback = std::any_of(best.begin(), best.end(), [&](const Candidate& other) {
      const auto& ids = upstreams.at(*other.id).fallbacks;
      return std::find(ids.begin(), ids.end(), *candidate.id) != ids.end();
    });
    if (!is_fallback) return *candidate.id;
  }
  return *best[0].id;
}

Row UpstreamsRow(UpstreamConfigs& slot) {
  return {"upstreams", "ID: {kind: openai|azure|anthropic, url: URL, models: [NAME, ...], ...}",
          [&slot](const Node& n) { return ReadUpstreams(n, slot); },
          [&slot] {
            json::Value v = json::Value::MakeObject();
            for (auto& [id, upstream] : slot) v.Set(id, WriteRows(UpstreamRows(upstream)));
            return v;
          }};
}

}  // namespace verbatim::policies
