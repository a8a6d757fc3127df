#include "gateway/endpoint.h"

namespace verbatim::gateway {

namespace {

constexpr Endpoint kAll[] = {Endpoint::kChatCompletions, Endpoint::kCompletions,
                             Endpoint::kResponses,       Endpoint::kEmbeddings,
                             Endpoint::kMessages,        Endpoint::kCountTokens};

constexpr InboundRoute kRoutes[] = {
    {"/v1/chat/completions", Endpoint::kChatCompletions},
    {"/v1/completions", Endpoint::kCompletions},
    {"/v1/responses", Endpoint::kResponses},
    {"/v1/embeddings", Endpoint::kEmbeddings},
    {"/v1/messages", Endpoint::kMessages},
    {"/v1/messages/count_tokens", Endpoint::kCountTokens},
    {"/openai/deployments/{}/chat/completions", Endpoint::kChatCompletions},
    {"/openai/deployments/{}/completions", Endpoint::kCompletions},
    {"/openai/deployments/{}/embeddings", Endpoint::kEmbeddings},
    {"/openai/responses", Endpoint::kResponses},
    {"/openai/v1/chat/completions", Endpoint::kChatCompletions},
    {"/openai/v1/completions", Endpoint::kCompletions},
    {"/openai/v1/responses", Endpoint::kResponses},
    {"/openai/v1/embeddings", Endpoint::kEmbeddings},
};

}  // namespace

std::span<const Endpoint> AllEndpoints() { return kAll; }

std::string_view EndpointPath(Endpoint endpoint) {
  switch (endpoint) {
    case Endpoint::kChatCompletions:
      return "/v1/chat/completions";
    case Endpoint::kCompletions:
      return "/v1/completions";
    case Endpoint::kResponses:
      return "/v1/responses";
    case Endpoint::kEmbeddings:
      return "/v1/embeddings";
    case Endpoint::kMessages:
      return "/v1/messages";
    case Endpoint::kCountTokens:
      return "/v1/messages/count_tokens";
  }
  return "";
}

std::span<const InboundRoute> InboundRoutes() { return kRoutes; }

std::optional<Endpoint> EndpointOfPath(std::string_view path) {
  for (const InboundRoute& route : kRoutes) {
    const size_t hole = route.pattern.find("{}");
    if (hole == std::string_view::npos) {
      if (route.pattern == path) return route.endpoint;
      continue;
    }
    const std::string_view before = route.pattern.substr(0, hole);
    const std::string_view after = route.pattern.substr(hole + 2);
    if (path.size() <= before.size() + after.size() || !path.starts_with(before) ||
        !path.ends_with(after)) {
      continue;
    }
    const size_t length = path.size() - before.size() - after.size();
    if (path.substr(hole, length).find('/') == std::string_view::npos) return route.endpoint;
  }
  return std::nullopt;
}

ErrorForm ErrorFormOf(Endpoint endpoint) { return ErrorFormOfPath(EndpointPath(endpoint)); }

ErrorForm ErrorFormOfPath(std::string_view path) {
  const std::string_view messages = EndpointPath(Endpoint::kMessages);
  const bool anthropic =
      path == messages || (path.starts_with(messages) && path[messages.size()] == '/');
  return anthropic ? ErrorForm::kAnthropic : ErrorForm::kOpenAi;
}

}  // namespace verbatim::gateway
