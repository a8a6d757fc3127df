#include "gateway/upstream/upstream_backend.h"

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/crypto.h"
#include "gateway/io_threads.h"
#include "gateway/upstream/header_rules.h"
#include "gateway/upstream/pass_through.h"
#include "gateway/upstream/request_body.h"
#include "gateway/upstream/upstream_run.h"
#include "gateway/upstream/url.h"
#include "policies/loader.h"

namespace verbatim::gateway {

using policies::UpstreamConfig;
using policies::UpstreamKind;

namespace {

std::string PercentEncode(std::string_view text) {
  static constexpr char kHex[] = "0123456789ABCDEF";
  static constexpr std::string_view kPlain =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    if (kPlain.find(c) != kPlain.npos) {
      out += c;
    } else {
      out += {'%', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  return out;
}

// A segment that would lead out of a path.
bool IsDots(std::string_view segment) { return segment == "." || segment == ".."; }

std::string DefaultCredentialHeader(UpstreamKind kind) {
  if (kind == UpstreamKind::kAzure) return "api-key";
  return kind == UpstreamKind::kAnthropic ? "x-api-key" : "authorization";
}

std::string WithoutSuffix(std::string text, std::string_view suffix) {
  if (text.ends_with(suffix)) text.resize(text.size() - suffix.size());
  return text;
}

// "/chat/completions": what of an endpoint's path is appended to an upstream's URL.
std::string_view BelowV1(Endpoint endpoint) { return EndpointPath(endpoint).substr(3); }

// Of Azure's two forms the older one, with the deployment in the path.
bool HasDeployments(const UpstreamConfig& config, const std::string& base) {
  return config.kind == UpstreamKind::kAzure && !base.ends_with("/openai/v1");
}

// The path of the request, without query; "" where the upstream has none for this endpoint. `base`:
// the configured URL's path, without a slash at its end.
std::string TargetPath(const UpstreamConfig& config, const std::string& base, Endpoint endpoint,
                       const std::string& model) {
  if (!HasDeployments(config, base)) return base + std::string(BelowV1(endpoint));
  const std::string root = WithoutSuffix(base, "/openai") + "/openai";
  switch (endpoint) {
    case Endpoint::kChatCompletions:
    case Endpoint::kCompletions:
    case Endpoint::kEmbeddings:
      return root + "/deployments/" + PercentEncode(model) + std::string(BelowV1(endpoint));
    case Endpoint::kResponses:
      return root + "/responses";
    case Endpoint::kMessages:
    case Endpoint::kCountTokens:
      break;
  }
  return "";
}

// Azure's api-version: the client's own, else the configured one.
std::string ApiVersion(const UpstreamConfig& config, const ForwardedQuery& query) {
  if (config.kind != UpstreamKind::kAzure) return "";
  return query.api_version.empty() ? config.api_version : query.api_version;
}

std::string Target(const std::string& path, const std::string& api_version,
                   const ForwardedQuery& query) {
  std::string target = path;
  if (!api_version.empty()) target += "?api-version=" + api_version;
  if (!query.sent.empty()) target += (api_version.empty() ? "?" : "&") + query.sent;
  return target;
}

// A list of texts, or of lists of tokens; a list of numbers is one prompt.
uint64_t PromptsOf(const json::Value* prompt) {
  if (prompt == nullptr || !prompt->is_array() || prompt->items().empty()) return 1;
  return prompt->items()[0].is_number() ? 1 : prompt->items().size();
}

// How many choices an answer has to have: n for each prompt; or embeddings, one for each input.
uint32_t ChoicesOf(Endpoint endpoint, const json::Value& body) {
  constexpr uint64_t kMost = 65'536;
  uint64_t choices = 1;
  if (endpoint == Endpoint::kChatCompletions || endpoint == Endpoint::kCompletions) {
    const json::Value* n = body.Find("n");
    choices = n != nullptr ? std::min(n->AsUint64().value_or(1), kMost) : 1;
  }
  if (endpoint == Endpoint::kCompletions) {
    choices *= std::min(PromptsOf(body.Find("prompt")), kMost);
  } else if (endpoint == Endpoint::kEmbeddings) {
    choices = PromptsOf(body.Find("input"));
  }
  return static_cast<uint32_t>(std::clamp<uint64_t>(choices, 1, kMost));
}

class PreparedUpstreamRequest : public PreparedRequest,
                                public std::enable_shared_from_this<PreparedUpstreamRequest> {
 public:
  std::shared_ptr<Upstream> upstream;
  Outgoing outgoing;
  Reuse reuse_of = Reuse::kStateful;
  bool usage_in_stream = false;
  json::Value identity_value;
  json::Value parameters_value = json::Value::MakeObject();
  json::Value description_value;

  Reuse reuse() const override { return reuse_of; }
  bool external() const override { return true; }
  bool requests_usage() const override { return usage_in_stream; }
  std::string credentials_digest() const override {
    if (upstream->config.credentials.from != policies::UpstreamCredentials::From::kClient)
      return "";
    // Secrets may stand in the query, too.
    std::string all = outgoing.target;
    for (const auto& [name, value] : outgoing.client_credentials) {
      all += "\n" + name + ": " + value;
    }
    return HexEncode(Sha256(all));
  }
  bool timeless() const override { return true; }
  const json::Value& identity() const override { return identity_value; }
  std::string system_fingerprint() const override { return ""; }
  uint32_t choices() const override { return outgoing.choices; }
  uint32_t prompt_tokens() const override { return 0; }
  json::Value parameters() const override { return parameters_value; }
  json::Value description() const override { return description_value; }
  std::string model_digest() const override { return ""; }
  std::string numerics() const override { return ""; }

  Answered<std::unique_ptr<Run>> Start(const RunOptions& options,
                                       RunObserver observer) const override {
    // Of this request's own, which lives as long as the run then.
    std::shared_ptr<const Outgoing> shared(shared_from_this(), &outgoing);
    return StartUpstreamRun(upstream, std::move(shared), options, std::move(observer));
  }
};

class UpstreamBackendImpl : public UpstreamBackend {
 public:
  UpstreamBackendImpl(std::shared_ptr<Upstream> upstream, std::string base)
      : upstream_(std::move(upstream)), base_(std::move(base)) {}

  Answered<GenerationRequest> Decode(Endpoint endpoint, const json::Value& body) const override {
    return DecodeForUpstream(endpoint, body);
  }
  Answered<std::shared_ptr<const PreparedRequest>> Prepare(
      const GenerationRequest& request, const PrepareOptions& options) const override;
  Answered<std::shared_ptr<const PreparedRequest>> PreparePassThrough(
      std::string_view method, std::string_view path, const PrepareOptions& options) const override;
  std::vector<std::string> fallbacks() const override { return config().fallbacks; }
  json::Value Describe() const override;
  int breaker_state() const override;

 private:
  const UpstreamConfig& config() const { return upstream_->config; }

  // What every request has, whichever its endpoint: headers, query, identity.
  std::shared_ptr<PreparedUpstreamRequest> Begin(const std::string& path, const std::string& model,
                                                 const PrepareOptions& options) const;

  const std::shared_ptr<Upstream> upstream_;
  const std::string base_;  // the URL's path, without a slash at its end
};

std::shared_ptr<PreparedUpstreamRequest> UpstreamBackendImpl::Begin(
    const std::string& path, const std::string& model, const PrepareOptions& options) const {
  static const Headers kNone;
  const Headers& client = options.headers != nullptr ? *options.headers : kNone;
  ForwardedHeaders headers = ForwardHeaders(config(), client);
  ForwardedQuery query = ForwardQuery(config(), options.query);
  const std::string api_version = ApiVersion(config(), query);

  auto prepared = std::make_shared<PreparedUpstreamRequest>();
  prepared->upstream = upstream_;
  prepared->outgoing.target = Target(path, api_version, query);
  prepared->outgoing.target_secrets = std::move(query.secrets);
  prepared->outgoing.headers = std::move(headers.sent);
  if (FindHeader(prepared->outgoing.headers, "user-agent").empty()) {
    prepared->outgoing.headers.emplace_back("user-agent", "verbatim");
  }
  if (config().credentials.from == policies::UpstreamCredentials::From::kClient) {
    prepared->outgoing.client_credentials = ClientCredentials(config(), client);
  }

  json::Value about = json::Value::MakeObject();
  about.Set("upstream", upstream_->id);
  about.Set("kind", policies::UpstreamKindName(config().kind));
  if (!api_version.empty()) about.Set("api_version", api_version);
  if (!model.empty()) about.Set("model", model);
  if (!config().model_version.empty()) about.Set("model_version", config().model_version);
  prepared->description_value = about;

  about.Set("backend", "upstream");
  about.Set("headers", std::move(headers.identity));
  about.Set("query", std::move(query.identity));
  prepared->identity_value = std::move(about);
  return prepared;
}

Answered<std::shared_ptr<const PreparedRequest>> UpstreamBackendImpl::Prepare(
    const GenerationRequest& request, const PrepareOptions& options) const {
  const auto model = policies::UpstreamModelName(config(), request.model);
  if (!model || IsDots(*model)) {
    return HttpError{.status = 404,
                     .message = "The model `" + request.model.substr(0, 200) +
                                "` is none of the upstream `" + upstream_->id + "`.",
                     .param = "model",
                     .code = "model_not_found"};
  }
  const std::string path = TargetPath(config(), base_, request.endpoint, *model);
  if (path.empty()) {
    return HttpError{.status = 404,
                     .message = "The upstream `" + upstream_->id + "` has no " +
                                std::string(EndpointPath(request.endpoint)) + ".",
                     .code = "unsupported_endpoint"};
  }
  auto prepared = Begin(path, *model, options);
  const bool streamed_usage = request.stream && UsageMustBeAskedFor(request.endpoint);
  const bool ask = streamed_usage && !request.include_usage && config().ask_usage &&
                   config().kind != UpstreamKind::kAnthropic;
  prepared->usage_in_stream = streamed_usage && (ask || request.include_usage);
  prepared->reuse_of = ReuseOf(request.endpoint, request.body);
  prepared->parameters_value = ParametersOf(request.body);

  Outgoing& outgoing = prepared->outgoing;
  outgoing.endpoint = request.endpoint;
  outgoing.model = request.model;
  outgoing.choices = ChoicesOf(request.endpoint, request.body);
  outgoing.headers.emplace_back("content-type", "application/json");
  outgoing.headers.emplace_back("accept",
                                request.stream ? "text/event-stream" : "application/json");
  const BodyChanges changes{.model = *model, .ask_usage = ask};
  outgoing.body =
      std::make_shared<const std::string>(UpstreamBody(request.body, options.body, changes));
  return std::shared_ptr<const PreparedRequest>(std::move(prepared));
}

Answered<std::shared_ptr<const PreparedRequest>> UpstreamBackendImpl::PreparePassThrough(
    std::string_view method, std::string_view path, const PrepareOptions& options) const {
  if (!MayPassThrough(path)) {
    return HttpError{.status = 404,
                     .message = "Unknown request URL. Please check the URL for typos.",
                     .code = "unknown_url"};
  }
  std::string target = base_;
  if (HasDeployments(config(), base_)) target = WithoutSuffix(base_, "/openai") + "/openai";
  // The client's own spelling, but for what no target may hold.
  for (size_t i = 0; i < path.size(); ++i) {
    const bool visible = path[i] > ' ' && path[i] < 0x7f && path[i] != '?' && path[i] != '#';
    target += visible ? std::string(1, path[i]) : PercentEncode(path.substr(i, 1));
  }
  auto prepared = Begin(target, "", options);
  Outgoing& outgoing = prepared->outgoing;
  outgoing.method = method;
  outgoing.judged = false;
  if (options.headers != nullptr) {
    for (const char* name : {"content-type", "accept"}) {
      const std::string_view value = FindHeader(*options.headers, name);
      if (!value.empty()) outgoing.headers.emplace_back(name, value);
    }
  }
  if (method != "GET" && (method != "DELETE" || !options.body.empty())) {
    outgoing.body = std::make_shared<const std::string>(options.body);
  }
  return std::shared_ptr<const PreparedRequest>(std::move(prepared));
}

int UpstreamBackendImpl::breaker_state() const {
  switch (upstream_->breaker.state(MonotonicMicros())) {
    case CircuitBreaker::State::kClosed:
      return 0;
    case CircuitBreaker::State::kHalfOpen:
      return 1;
    case CircuitBreaker::State::kOpen:
      return 2;
  }
  return 0;
}

json::Value UpstreamBackendImpl::Describe() const {
  json::Value about = json::Value::MakeObject();
  about.Set("kind", policies::UpstreamKindName(config().kind));
  about.Set("url", config().url);
  if (!config().api_version.empty()) about.Set("api_version", config().api_version);
  if (!config().model_version.empty()) about.Set("model_version", config().model_version);
  return about;
}

HttpClientOptions ClientOptions(const UpstreamConfig& config, const Url& url, std::string proxy,
                                size_t clients) {
  const auto& times = config.timeouts;
  HttpClientOptions options;
  options.url = url.Origin();
  options.ca_file = config.ca_file;
  options.client_certificate_file = config.client_certificate;
  options.client_key_file = config.client_key;
  options.proxy = std::move(proxy);
  options.connect_ms = static_cast<int64_t>(times.connect_ms);
  options.first_byte_ms = static_cast<int64_t>(times.first_byte_ms);
  options.idle_ms = static_cast<int64_t>(times.idle_ms);
  options.total_ms = static_cast<int64_t>(times.total_ms);
  options.keep_alive_ms = static_cast<int64_t>(std::max<uint64_t>(1, config.pool.idle_ms));
  options.max_connections =
      static_cast<uint32_t>((config.pool.connections + clients - 1) / clients);
  options.body_bytes = config.reply_bytes;
  return options;
}

// The secrets that the configuration refers to, each read once now, so that a missing one is found
// at the start.
Status ReadSecrets(Upstream& upstream) {
  const UpstreamConfig& config = upstream.config;
  upstream.credential_header = config.credentials.header.empty()
                                   ? DefaultCredentialHeader(config.kind)
                                   : config.credentials.header;
  if (config.credentials.from == policies::UpstreamCredentials::From::kConfig) {
    auto credential = Credential::Make(config.credentials.value);
    if (!credential.ok()) return credential.error();
    upstream.credential = *std::move(credential);
  }
  for (const auto& [name, reference] : SecretHeaders(config)) {
    auto credential = Credential::Make(reference);
    if (!credential.ok()) return credential.error();
    upstream.secret_headers.emplace_back(name, *std::move(credential));
  }
  return {};
}

Result<std::unique_ptr<UpstreamBackend>> Make(const std::string& id, const UpstreamConfig& config,
                                              UpstreamOptions options) {
  auto url = ParseUrl(config.url);
  if (!url.ok()) return url.error();
  std::string proxy = config.proxy;
  if (proxy.starts_with("env:") || proxy.starts_with("file:")) {
    auto value = policies::ResolveSecret(proxy);
    if (!value.ok()) return value.error();
    proxy = *std::move(value);
  }
  IoThreads& io = *options.io;
  auto origin = HttpOrigin::Make(ClientOptions(config, *url, std::move(proxy), io.size()));
  if (!origin.ok()) return origin.error();

  auto upstream = std::make_shared<Upstream>(id, config);
  if (Status status = ReadSecrets(*upstream); !status.ok()) return status.error();
  upstream->on_attempt = std::move(options.on_attempt);
  upstream->next_client = [&io] { return io.Here(); };
  for (size_t i = 0; i < io.size(); ++i) {
    upstream->clients.push_back(
        std::make_unique<HttpClient>(io.context(i).get_executor(), *origin));
  }
  std::string base = WithoutSuffix(url->path, "/");
  return std::unique_ptr<UpstreamBackend>(
      std::make_unique<UpstreamBackendImpl>(std::move(upstream), std::move(base)));
}

}  // namespace

Result<std::unique_ptr<UpstreamBackend>> MakeUpstream(const std::string& id,
                                                      const UpstreamConfig& config,
                                                      UpstreamOptions options) {
  auto made = Make(id, config, std::move(options));
  if (made.ok()) return made;
  return Error{made.error().code, "upstream " + id + ": " + made.error().message};
}

}  // namespace verbatim::gateway
