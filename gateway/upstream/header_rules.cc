#include "gateway/upstream/header_rules.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "base/bytes.h"
#include "gateway/upstream/url.h"

namespace verbatim::gateway {

namespace {

using policies::UpstreamConfig;
using policies::UpstreamCredentials;

constexpr std::string_view kCredentials[] = {"authorization", "api-key", "x-api-key"};

// Of the client's headers, those that change answers wherever they are understood.
constexpr std::string_view kForwarded[] = {"anthropic-beta", "anthropic-version", "openai-beta"};
// Whose account pays: of use only beside that account's own credentials.
constexpr std::string_view kForwardedWithCredentials[] = {"openai-organization", "openai-project"};

// Sent where the configuration says so, and without influence on any answer.
constexpr std::string_view kNeverCounts[] = {
    "baggage",         "date",        "idempotency-key", "origin", "referer",
    "traceparent",     "tracestate",  "user-agent",      "x-app",  "x-client-request-id",
    "x-forwarded-for", "x-request-id"};

constexpr std::string_view kSecretParameters[] = {
    "access_token", "api-key", "api_key",          "apikey", "code",
    "key",          "sig",     "subscription-key", "token"};

constexpr std::string_view kKept[] = {"openai-model", "openai-version", "request-id",
                                      "retry-after",  "retry-after-ms", "x-should-retry"};
constexpr std::string_view kKeptPrefixes[] = {"anthropic-", "x-ratelimit-"};
constexpr std::string_view kNotKept[] = {"anthropic-organization-id"};

constexpr std::string_view kUpstreamRequestId = "verbatim-upstream-request-id";

template <typename Names>
bool Has(const Names& names, std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

bool IsReference(std::string_view value) {
  return value.starts_with("env:") || value.starts_with("file:");
}

bool Passes(const UpstreamConfig& upstream, std::string_view name) {
  if (Has(kForwarded, name) || Has(upstream.headers.forward, name)) return true;
  if (Has(upstream.headers.not_semantic, name)) return true;
  return upstream.credentials.from == UpstreamCredentials::From::kClient &&
         Has(kForwardedWithCredentials, name);
}

bool Counts(const UpstreamConfig& upstream, std::string_view name) {
  return !HeaderNeverCounts(name) && !Has(upstream.headers.not_semantic, name);
}

// JSON holds UTF-8 only: other bytes in a form of their own.
json::Value AsJson(const std::string& value) {
  if (IsUtf8(value)) return value;
  return json::Object{{"hex", HexEncode(value)}};
}

// Bytes that cannot stand in a query become %XX; the rest stays as it is.
std::string Encoded(std::string_view text) {
  static constexpr char kHex[] = "0123456789ABCDEF";
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    if (byte > ' ' && byte < 0x7f && c != '#') {
      out += c;
    } else {
      out += {'%', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  return out;
}

// Adds to an object: the value itself, or an array where the name is there already.
void Collect(json::Value& object, const std::string& name, json::Value value) {
  json::Value* at = object.Find(name);
  if (at == nullptr) {
    object.Set(name, std::move(value));
  } else if (at->is_array()) {
    at->Append(std::move(value));
  } else {
    *at = json::Value(json::Array{*at, std::move(value)});
  }
}

}  // namespace

bool HeaderNeverCounts(std::string_view name) {
  return Has(kNeverCounts, name) || name.starts_with("x-stainless-");
}

ForwardedHeaders ForwardHeaders(const UpstreamConfig& upstream, const Headers& client) {
  std::map<std::string, std::string, std::less<>> sent;
  for (const auto& [name, value] : client) {
    if (!Passes(upstream, name)) continue;
    std::string& all = sent[name];
    if (!all.empty()) all += ", ";
    all += value;
  }
  std::string_view version = upstream.api_version;
  if (upstream.kind == policies::UpstreamKind::kAnthropic) {
    if (version.empty()) version = "2023-06-01";
    sent.try_emplace("anthropic-version", version);
  }
  std::vector<std::string_view> secret;
  for (const auto& [name, value] : upstream.headers.add) {
    if (IsReference(value)) {
      sent.erase(name);
    } else {
      sent[name] = value;
    }
  }
  ForwardedHeaders out{.sent = {}, .identity = json::Value::MakeObject()};
  for (auto& [name, value] : sent) {
    if (Counts(upstream, name)) out.identity.Set(name, AsJson(value));
    out.sent.emplace_back(name, std::move(value));
  }
  return out;
}

Headers SecretHeaders(const UpstreamConfig& upstream) {
  Headers out;
  for (const auto& header : upstream.headers.add) {
    if (IsReference(header.second)) out.push_back(header);
  }
  return out;
}

Headers ClientCredentials(const UpstreamConfig& upstream, const Headers& client) {
  const std::string& only = upstream.credentials.header;
  Headers out;
  for (const auto& [name, value] : client) {
    if (!Has(kCredentials, name) || (!only.empty() && name != only)) continue;
    const std::string_view key = std::string_view(value).substr(value.rfind(' ') + 1);
    if (!key.starts_with("vbk_")) out.emplace_back(name, value);
  }
  return out;
}

ForwardedQuery ForwardQuery(const UpstreamConfig& upstream, std::string_view query) {
  ForwardedQuery out{
      .sent = {}, .identity = json::Value::MakeObject(), .api_version = {}, .secrets = {}};
  while (!query.empty()) {
    const size_t end = std::min(query.find('&'), query.size());
    const std::string part = Encoded(query.substr(0, end));
    query.remove_prefix(std::min(end + 1, query.size()));
    if (part.empty()) continue;
    const size_t equals = std::min(part.find('='), part.size());
    // As sent, since upstreams get it so: names that differ never count as one.
    const std::string raw_name = part.substr(0, equals);
    const std::string name = DecodePercent(raw_name);
    std::string value = part.substr(std::min(equals + 1, part.size()));
    if (name == "api-version") {
      out.api_version = std::move(value);
      continue;
    }
    const bool secret = Has(kSecretParameters, name);
    if (secret && upstream.credentials.from != UpstreamCredentials::From::kClient) continue;
    if (!out.sent.empty()) out.sent += '&';
    out.sent += part;
    if (secret) {
      std::string decoded = DecodePercent(value);
      if (decoded != value) out.secrets.push_back(std::move(decoded));
      out.secrets.push_back(std::move(value));
      continue;
    }
    if (Has(upstream.query_not_semantic, name)) continue;
    // "a" and "a=" differ, too.
    json::Value counts;
    if (equals < part.size()) counts = std::move(value);
    Collect(out.identity, raw_name, std::move(counts));
  }
  return out;
}

Headers KeptHeaders(const UpstreamConfig& upstream, const Headers& reply) {
  Headers out;
  for (const auto& [name, value] : reply) {
    const bool printable = std::all_of(value.begin(), value.end(), [](char c) {
      return c == '\t' || (static_cast<uint8_t>(c) >= ' ' && c != 0x7f);
    });
    if (!printable || !IsUtf8(value)) continue;
    if (name == "x-request-id") out.emplace_back(kUpstreamRequestId, value);
    const bool by_prefix = std::any_of(
        std::begin(kKeptPrefixes), std::end(kKeptPrefixes),
        [&, &header = name](std::string_view prefix) { return header.starts_with(prefix); });
    if (Has(upstream.headers.keep, name) || Has(kKept, name) ||
        (by_prefix && !Has(kNotKept, name))) {
      out.emplace_back(name, value);
    }
  }
  return out;
}

bool IsOfTheMoment(std::string_view name) {
  static constexpr std::string_view kNames[] = {"request-id", "retry-after", "retry-after-ms",
                                                "x-should-retry", kUpstreamRequestId};
  return Has(kNames, name) || name.starts_with("x-ratelimit-") ||
         name.starts_with("anthropic-ratelimit-");
}

}  // namespace verbatim::gateway
