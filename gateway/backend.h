// The seam of execution: who turns a request into an answer. The embedded engine is one
// (engine_backend.h), upstreams are others; tests script their own.
//
// Preparing is apart from running, since what a backend is and what it would run (its identity)
// goes into the fingerprint, which decides whether anything runs at all. Backends, prepared
// requests and runs may be used from any thread; what they give to a RunObserver comes from a
// thread of their own or out of Start, one call at a time, and must be taken without blocking.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/bytes.h"
#include "base/json.h"
#include "gateway/endpoint.h"
#include "gateway/http.h"
#include "gateway/reply.h"

namespace verbatim::gateway {

struct GenerationRequest;  // gateway/wire/openai.h

// A value, or the error that the client gets.
template <typename T>
using Answered = std::variant<T, HttpError>;

// One token of one choice. `text` may be empty: what could still become part of a character or of a
// stop string is held back, and the text of an end-of-text token is empty.
struct TokenPiece {
  uint32_t choice = 0;
  int32_t token = 0;
  std::array<uint8_t, 16> digest{};  // of the logits it was chosen from (numerics.md 10)
  std::string text{};
};

// A choice is complete: no further piece of it follows.
struct ChoiceEnd {
  uint32_t choice = 0;
  std::string finish_reason;  // "stop" or "length"
  Digest chain{};             // logits chain over all its tokens
  std::string stop{};         // the stop string that ended it, if one did
};

// The run is over; the last thing that its observer hears.
struct RunEnd {
  enum class Outcome {
    kComplete,
    kIncomplete,  // an upstream's reply with status 2xx that is no complete answer: it reaches the
                  // client as it came, and is never a result
    kCancelled,
    kFailed,
  };
  Outcome outcome = Outcome::kComplete;
  // Where kFailed: what the client gets. Where kIncomplete: what it gets in the place of a reply
  // that cannot be passed on; without a message, that it broke off.
  HttpError error{};
  std::string
      cause{};  // where kFailed or kIncomplete: a short code for the ledger, "numeric_fault"
  // Where kFailed: nothing of an answer came, for a reason that another upstream may not have.
  bool elsewhere = false;
  // Where kIncomplete: the transfer broke off, and the client's must too.
  bool broken = false;
  // The reply repeated credentials that went out with the request; they are not in what came of it,
  // which is never a result.
  bool redacted = false;
  ReplySummary reply{};  // of upstreams, where kComplete or kIncomplete
  json::Value report{};  // null, or an object for the record: attempts, the upstream's request id
};

// Each is called from a thread of the backend's, or out of Start. The engine gives pieces and ends:
// all pieces of one choice come in order; those of different choices as they are made. An upstream
// gives the reply's head once, then its body, and asks before it reads on. on_end comes exactly
// once, and last.
struct RunObserver {
  std::function<void(TokenPiece)> on_piece{};
  std::function<void(ChoiceEnd)> on_choice_end{};
  std::function<void(ReplyHead)> on_reply{};
  std::function<void(std::vector<ReplyPiece>)> on_body{};
  // held: bytes of the reply that the run keeps, and has not given yet. False: nothing more is read
  // until Run::Resume. Empty: always true.
  std::function<bool(size_t held)> wants_more{};
  std::function<void(RunEnd)> on_end{};
};

struct RunOptions {
  uint64_t seed = 0;        // in force where the client gave none (FINGERPRINT.md)
  bool background = false;  // runs where nobody else wants the place (verification)
  std::string tenant{};     // whose turn it takes
  // Of an upstream: sent beside the request's own headers, and no part of the request
  // (traceparent).
  Headers headers{};
};

// A run that was started. Destroying it does not wait: on_end still comes, as cancelled if need be.
class Run {
 public:
  virtual ~Run() = default;
  virtual void Resume() {}    // RunObserver::wants_more is asked again
  virtual void Cancel() = 0;  // on_end follows soon, with what the run had become by then
};

// Whether an answer may serve equal requests later.
enum class Reuse {
  kAlways,    // an equal request gets an equal answer, or would have to
  kSampled,   // drawn at random by someone else, without a seed
  kStateful,  // depends on state outside the request: conversations, files, remote URLs
};

// A request that was checked and can run as often as anyone likes: the engine's rendered and
// tokenised, with the same result each time; an upstream's as the body that it gets. Immutable.
class PreparedRequest {
 public:
  virtual ~PreparedRequest() = default;

  virtual Reuse reuse() const { return Reuse::kAlways; }
  // The request leaves for an upstream: an intent stands in the ledger before it does, and the run
  // reports a reply rather than tokens.
  virtual bool external() const { return false; }
  // Of the client's own credentials that go upstream: different ones never share a run. "": none
  // do.
  virtual std::string credentials_digest() const { return ""; }
  // The stream that comes has usage in it (OpenAI's include_usage), whether or not the client
  // asked.
  virtual bool requests_usage() const { return false; }
  // Preparing an equal request again, at any time, comes to the same: nothing read the clock.
  virtual bool timeless() const { return false; }

  // Who answers, as the fingerprint holds it: only what can change an answer.
  virtual const json::Value& identity() const = 0;
  // Of answers: the same for all requests to this backend as it is configured.
  virtual std::string system_fingerprint() const = 0;

  virtual uint32_t choices() const = 0;
  virtual uint32_t prompt_tokens() const = 0;  // of all prompts together

  // For the record: parameters in force, and what the backend says of itself.
  virtual json::Value parameters() const = 0;
  virtual json::Value description() const = 0;

  // For leaves: digest in hex and version name; empty where the backend has none.
  virtual std::string model_digest() const = 0;
  virtual std::string numerics() const = 0;

  // On an error no callback is called. 429 where the queue is full.
  virtual Answered<std::unique_ptr<Run>> Start(const RunOptions& options,
                                               RunObserver observer) const = 0;
};

struct PrepareOptions {
  int64_t clock_micros = 0;  // what the chat template reads as now
  // The client named no max_tokens (the request's is a default or policy's): it is cut to what the
  // context leaves, where a number of the client's own would be refused.
  bool length_is_open = false;
  // Of the client's HTTP request; they outlive the call to Prepare, not the prepared request.
  const Headers* headers = nullptr;  // null: none
  std::string_view query{};          // as sent
  std::string_view body{};  // as received: values of the request's body that policy did not
                            // change have their place in it (json::Value::text_begin)
};

class Backend {
 public:
  virtual ~Backend() = default;

  // The body as far as this backend must understand it: the engine checks every field, an upstream
  // only what the gateway itself reads. Errors: 400 with the parameter's name.
  virtual Answered<GenerationRequest> Decode(Endpoint endpoint, const json::Value& body) const = 0;

  // Errors: 400 with the parameter's name (context_length_exceeded among the codes), 503 where it
  // cannot serve now.
  virtual Answered<std::shared_ptr<const PreparedRequest>> Prepare(
      const GenerationRequest& request, const PrepareOptions& options) const = 0;

  // Who may answer instead, in this order, where a run failed with `elsewhere`: upstreams by id.
  virtual std::vector<std::string> fallbacks() const { return {}; }

  // For the manifest: what computes here (ISA, device, threads). Never part of a fingerprint.
  virtual json::Value Describe() const = 0;
};

}  // namespace verbatim::gateway
