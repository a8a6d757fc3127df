// The endpoints under /v1 whose requests are recorded, and the two families of error objects. Pure
// functions; any thread may call them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace verbatim::gateway {

enum class Endpoint {
  kChatCompletions,
  kCompletions,
  kResponses,
  kEmbeddings,
  kMessages,     // Anthropic's
  kCountTokens,  // Anthropic's
};

std::span<const Endpoint> AllEndpoints();

// "/v1/chat/completions", as fingerprints and records name it, whatever path the request came by.
std::string_view EndpointPath(Endpoint endpoint);

// The routes by which requests come: the endpoints' own paths, and Azure's, where {} is the
// deployment, which names the model.
struct InboundRoute {
  std::string_view pattern;
  Endpoint endpoint;
};
std::span<const InboundRoute> InboundRoutes();
std::optional<Endpoint> EndpointOfPath(std::string_view path);  // of one that fits such a route

// Whose error object a client expects: OpenAI's {"error":{"message","type","param","code"}}, or
// Anthropic's {"type":"error","error":{"type","message"},"request_id"}.
enum class ErrorForm { kOpenAi, kAnthropic };
ErrorForm ErrorFormOf(Endpoint endpoint);
ErrorForm ErrorFormOfPath(std::string_view path);  // of any request, known or not

}  // namespace verbatim::gateway
