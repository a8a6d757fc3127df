// The first steps of a request's life (pipeline.cc, Generate): from what a client sent to what its
// backend would run, and the fingerprint of that. Each fills its part of a Call (recorder.h). An
// error is what the client gets; it has left no trace yet. Any thread may call these; Decode,
// decide and prepare take time by the body's size.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "base/json.h"
#include "gateway/auth.h"
#include "gateway/http.h"
#include "gateway/recorder.h"

namespace verbatim::gateway {

// manifest: digest in hex.
std::shared_ptr<Call> AcceptCall(Endpoint endpoint, const Request& http,
                                 std::shared_ptr<const InForce> in_force, std::string manifest);

// The endpoint's JSON, and the backend that its model names. `body`: the client's object.
std::optional<HttpError> DecodeCall(Call& call, json::Value& body);

// What policy makes of it.
std::optional<HttpError> DecideCall(Call& call, const json::Value& body);

// What the call's backend makes of that. The credentials that are `authenticator`'s own never go
// upstream.
std::optional<HttpError> PrepareCall(const Authenticator& authenticator, Call& call);

void TakeFingerprint(Call& call);

// Whether answers from the store may serve it: by its mode.
bool ServesHits(const Call& call);

// Whether a result has grown too old for policy, so that what is run now takes its place; and
// whether it is as fresh as policy and the client want it.
bool IsExpired(const Call& call, const store::StoredResult& hit);
bool IsFresh(const Call& call, const store::StoredResult& hit);

// For one whose form cannot be had of the others' answer: from now on only results in its own form
// are looked for, joined and made. False where that was so already.
bool NarrowToForm(Call& call);

// The next of the upstreams that may answer `call` in its first backend's place, as a request of
// its own with its own fingerprint. `next` counts the ones that were looked at. Null where none is
// left.
std::shared_ptr<Call> StandIn(const Authenticator& authenticator, const Call& call, size_t& next);

}  // namespace verbatim::gateway
