// What a configuration says of upstreams: APIs of others that answer in the place of an engine.
// docs/upstreams.md says what each field means; schema_upstreams.cc reads them. Plain values,
// immutable once loaded; secrets are references ("env:NAME", "file:PATH"), never values.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace verbatim::policies {

enum class UpstreamKind { kOpenAi, kAzure, kAnthropic };
std::string_view UpstreamKindName(UpstreamKind kind);  // "openai", "azure", "anthropic"

// Names that clients use, and the upstream's own for them. Either the two are exact; or `client`
// ends in '*' and stands for every name that begins so: `upstream` is then one name for all of
// them, or ends in '*' too, which becomes what the client's '*' stood for.
struct UpstreamModel {
  std::string client;
  std::string upstream;
  bool operator==(const UpstreamModel&) const = default;
};

struct UpstreamCredentials {
  enum class From {
    kConfig,  // `value`, whoever asks
    kClient,  // the client's own, as it sent them
    kNone,
  };
  From from = From::kNone;
  // "authorization" (as "Bearer VALUE"), "api-key" or "x-api-key"; "": the kind's own, in this
  // order openai, azure, anthropic.
  std::string header;
  std::string value;  // env:NAME or file:PATH; a file is read again when it changed
  bool operator==(const UpstreamCredentials&) const = default;
};

struct UpstreamHeaders {
  std::vector<std::string> forward;                      // of the client's; lower-case, sorted
  std::vector<std::pair<std::string, std::string>> add;  // name, value or reference; sorted
  std::vector<std::string> not_semantic;                 // sent, but not in the fingerprint
  std::vector<std::string> keep;                         // of replies, beyond the usual ones
  bool operator==(const UpstreamHeaders&) const = default;
};

struct UpstreamTimeouts {
  uint64_t connect_ms = 10'000;
  uint64_t first_byte_ms = 300'000;  // from the request's last byte to the reply's header
  uint64_t idle_ms = 120'000;        // between two reads of a body
  uint64_t total_ms = 900'000;       // all attempts and waits together
  bool operator==(const UpstreamTimeouts&) const = default;
};

struct UpstreamConfig {
  UpstreamKind kind = UpstreamKind::kOpenAi;
  std::string url;  // "https://api.openai.com/v1"; azure: "https://NAME.openai.azure.com"
  std::vector<UpstreamModel> models;  // the most specific first: exact ones, then longer prefixes
  std::string api_version;            // azure's api-version, or anthropic-version; "": the kind's
  std::string model_version;          // what the operator declares to run there; counts in keys
  UpstreamCredentials credentials;
  UpstreamHeaders headers;
  std::vector<std::string> query_not_semantic;  // query parameters that are not in the fingerprint
  std::string ca_file;                          // "": the system's
  std::string client_certificate, client_key;   // PEM files, both or neither
  // "http://HOST:PORT", or a reference to it; "": HTTPS_PROXY and NO_PROXY count; "none": no proxy.
  std::string proxy;
  UpstreamTimeouts timeouts;
  struct Retries {
    uint64_t attempts = 3;  // all of them, the first included
    uint64_t base_ms = 500;
    uint64_t max_ms = 8'000;
    bool operator==(const Retries&) const = default;
  } retries;
  struct Breaker {
    uint64_t failures = 10;  // within window_ms: then nothing is asked for open_ms; 0: never
    uint64_t window_ms = 30'000;
    uint64_t open_ms = 10'000;
    bool operator==(const Breaker&) const = default;
  } breaker;
  struct Pool {
    uint64_t connections = 1024;
    uint64_t idle_ms = 60'000;
    bool operator==(const Pool&) const = default;
  } pool;
  std::vector<std::string> fallbacks;  // ids, in the order in which they are asked
  uint64_t reply_bytes = 64 << 20;
  bool ask_usage = true;  // streams are asked for usage (openai and azure)
  bool operator==(const UpstreamConfig&) const = default;
};

using UpstreamConfigs = std::map<std::string, UpstreamConfig>;  // by id

// What `model` is called at the upstream, or nothing where it does not serve it.
std::optional<std::string> UpstreamModelName(const UpstreamConfig& upstream,
                                             std::string_view model);

// The upstream that is asked first for `model`, or "": the one with the most specific name for it;
// where several are equally specific, the first by id that is no other one's fallback.
std::string UpstreamFor(const UpstreamConfigs& upstreams, std::string_view model);

}  // namespace verbatim::policies
