// Reads an upstream's reply as it arrives: cuts it into the pieces that are passed on, and judges
// whether it is a complete answer. No single field decides that; the rules, per API:
//
//   chat completions, completions
//     stream  [DONE], and a finish_reason for each choice seen and each one asked for. Of vendors
//             whose chunks have no finish_reason member at all: [DONE] after a chunk with usage.
//     plain   a finish_reason for each choice; or none in any, and usage
//   responses
//     stream  response.completed, or response.incomplete, with a response of that status
//     plain   status "completed"; or "incomplete" with a reason in incomplete_details (cut at the
//             length, filtered), which is then its finish reason
//   messages
//     stream  message_start, message_delta with a stop_reason, message_stop
//     plain   type "message" with a stop_reason
//   embeddings      an embedding for each entry of `data`, and as many as inputs
//   count_tokens    an integer input_tokens
//
// and in none of them an error: an `error` event, an `error` member that is not null, or the
// finish_reason "error". What follows the end of a stream is passed on and not read. The end counts
// only with its blank line; of messages its line is enough (recordings of the vendor's end so).
//
// The reader keeps no more than judging needs: of a stream the event that is arriving, of a plain
// body all of it, which Finish hands over. One reader per reply; no thread safety, no I/O.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "gateway/endpoint.h"
#include "gateway/reply.h"

namespace verbatim::gateway {

struct ReplyOptions {
  size_t max_bytes = size_t{64} << 20;        // of the body; a longer one is no result
  size_t max_event_bytes = size_t{16} << 20;  // of one event, likewise
  uint32_t choices = 1;                       // asked for: `n` of all prompts, or inputs
};

class ReplyReader {
 public:
  // streamed: the reply is an event stream (its content type says so), whatever was asked for.
  ReplyReader(Endpoint endpoint, bool streamed, ReplyOptions options = {});
  ~ReplyReader();
  ReplyReader(ReplyReader&&) noexcept;
  ReplyReader& operator=(ReplyReader&&) noexcept;

  // The next bytes of the content-decoded body. Gives the pieces that are complete by now: of a
  // stream whole events, with `completes` from the one that completes the answer on; of a plain
  // body nothing, as long as it is not too large. Joined, all pieces are all bytes fed.
  std::vector<ReplyPiece> Feed(std::string_view bytes);

  // Bytes fed that were not given yet.
  size_t held() const;

  // Of a stream: the end that its protocol demands was fed. A body that goes on all the same says
  // nothing that counts.
  bool ended() const;

  // The body ended; `whole` says that the transfer did not break off and had the length announced.
  // Appends what is left to `rest`. Call once; nothing may be fed afterwards.
  //
  // why_not, where it is not complete:
  //   truncated         not `whole`
  //   empty             no byte, or a stream without any event
  //   too_large         longer than the options allow
  //   not_json          a body or an event that is no JSON object
  //   unknown_shape     JSON, but not of this endpoint
  //   error_event       an error inside
  //   no_end            the end of the protocol did not come ([DONE], message_stop, ...)
  //   no_finish_reason  the end came, but a choice has no finish_reason
  //   missing_choice    fewer choices, or embeddings, than asked for
  //   not_completed     of a response whose status is another: failed, incomplete, cancelled,
  //   queued
  //
  // The other members are filled as far as the reply got. prompt_tokens counts cached tokens too
  // (Anthropic's input_tokens does not); usage of messages is message_start's with message_delta's
  // over it. A choice without a finish reason has "" in finish_reasons.
  ReplySummary Finish(bool whole, std::vector<ReplyPiece>& rest);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace verbatim::gateway
