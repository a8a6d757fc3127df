// GET /v1/models and /v1/models/{}, and Azure's paths of them: the models that the caller may use,
// in OpenAI's form, or in Anthropic's where the request has anthropic-version. Lists are always
// whole: what asks for a page of them gets all. Handlers as in http.h.
#pragma once

#include <boost/asio/awaitable.hpp>

#include "gateway/http.h"
#include "gateway/in_force.h"

namespace verbatim::gateway {

// `now` outlives the coroutine, as the request does.
boost::asio::awaitable<void> ListModels(const InForce& now, const Request& http,
                                        ResponseSink& sink);
// params[0]: its name.
boost::asio::awaitable<void> ShowModel(const InForce& now, const Request& http, ResponseSink& sink);

}  // namespace verbatim::gateway
