// Which headers and query parameters pass between client and upstream, and which of them count in
// the fingerprint. Pure functions; any thread may call them.
//
// Of a client's request only these go upstream: anthropic-version, anthropic-beta, openai-beta,
// openai-organization and openai-project (the last two only with the client's own credentials), and
// what the configuration lists. What is sent counts, unless the configuration says that it changes
// no answer, or it never does (tracing, client's library). Credentials go a way of their own
// (credentials.h) and never count.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "gateway/http.h"
#include "policies/upstreams.h"

namespace verbatim::gateway {

// What of a client's request goes upstream, and what of it the fingerprint holds.
struct ForwardedHeaders {
  Headers sent;          // sorted by name, lower-case; a header that came twice is joined by ", "
  json::Value identity;  // an object: of `sent`, those that can change an answer
};

// A header that changes no answer, wherever it goes: tracing, the client's library, what counts
// attempts. `name` in lower case.
bool HeaderNeverCounts(std::string_view name);

// The client's headers that pass, and the configuration's own in their place where both have one. A
// value of the configuration that is a reference is not here: SecretHeaders names those.
ForwardedHeaders ForwardHeaders(const policies::UpstreamConfig& upstream, const Headers& client);

// Names and references ("env:NAME") of the configuration's headers that are secret.
Headers SecretHeaders(const policies::UpstreamConfig& upstream);

// The client's own credentials, as it sent them: authorization, api-key, x-api-key, or the one of
// these that the configuration names. A key of this server's ("vbk_...") is for nobody else.
Headers ClientCredentials(const policies::UpstreamConfig& upstream, const Headers& client);

struct ForwardedQuery {
  std::string sent;  // without '?'; in the client's order; "" where there is none
  // An object of names and values as sent; null without '='; an array where one came twice.
  json::Value identity;
  std::string api_version;           // of the client's; not in `sent` and `identity`
  std::vector<std::string> secrets;  // values of `sent` that are, as sent and percent-decoded
};

// Parameters that carry credentials pass only where the client's own do, and never count.
ForwardedQuery ForwardQuery(const policies::UpstreamConfig& upstream, std::string_view query);

// Of a reply's headers, those that reach the client: what the usual clients read, and what the
// configuration keeps. x-request-id becomes verbatim-upstream-request-id, since the server has one
// of its own.
Headers KeptHeaders(const policies::UpstreamConfig& upstream, const Headers& reply);

// A kept header that speaks of the moment and not of the answer: rate limits, advice to retry,
// request ids. It reaches the client that caused the run, and no hit.
bool IsOfTheMoment(std::string_view name);

}  // namespace verbatim::gateway
