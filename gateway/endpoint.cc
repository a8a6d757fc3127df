#include "gateway/endpoint.h"

namespace verbatim::gateway {

namespace {

constexpr Endpoint kAll[] = {Endpoint::kChatCompletions, Endpoint::kCompletions,
                             Endpoint::kResponses,       Endpoint::kEmbeddings,
                             Endpoint::kMessages,        Endpoint::kCountTokens};

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

std::optional<Endpoint> EndpointOfPath(std::string_view path) {
  for (const Endpoint endpoint : kAll) {
    if (EndpointPath(endpoint) == path) return endpoint;
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
