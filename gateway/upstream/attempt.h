// One attempt of a run: takes an upstream's reply apart as it comes, and tells the run's observer.
// Internal to upstream_run.cc; lives on the run's executor.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gateway/upstream/http_client.h"
#include "gateway/upstream/upstream_run.h"
#include "gateway/wire/reply_reader.h"

namespace verbatim::gateway {

class Attempt : public FetchSink {
 public:
  // All three outlive it.
  Attempt(const Upstream& upstream, const Outgoing& outgoing, const RunObserver& observer);

  // What went out with this attempt, so that it can be found in what comes back.
  std::vector<std::string> secrets;
  std::function<void(int status)> on_head;
  // The stream said its protocol's own end, and its transfer goes on. Once.
  std::function<void()> on_protocol_end{};

  void OnHead(FetchHead head) override;
  void OnBody(std::string_view bytes) override;
  bool WantsMore() override;

  bool began() const { return head_.status != 0; }
  bool succeeded() const { return head_.status >= 200 && head_.status < 300; }
  const FetchHead& head() const { return head_; }

  // Of a reply with status 2xx whose fetch ended. `timed_out`: by a time limit. Where answers
  // are judged, only 200 and 201 give a complete one (206 is part of one): else the cause names the
  // status.
  RunEnd Finish(const FetchEnd& end, bool timed_out);
  // Of any other reply: what the client gets, which is what came.
  HttpError Error(const FetchEnd& end);
  // The upstream's id of the request, or "".
  std::string RequestId() const;

 private:
  // Makes what went out unreadable in `text`: some upstreams repeat the key that they refuse. True
  // where there was any.
  bool Redact(std::string& text) const;
  void RedactSummary(ReplySummary& summary) const;
  void Pass(std::vector<ReplyPiece> pieces);
  // Of a reply that is no stream: whatever of `held_` cannot be a part of a secret. `all`: all.
  void PassHeld(bool all);
  bool is_whole_status() const { return head_.status == 200 || head_.status == 201; }

  const Upstream& upstream_;
  const Outgoing& outgoing_;
  const RunObserver& observer_;
  FetchHead head_;
  std::optional<ReplyReader> reader_;
  bool told_end_ = false;  // on_protocol_end was called
  bool streamed_ = false;
  bool redacted_ = false;   // of the reply's body
  bool completes_ = false;  // what comes of `held_` completes the answer
  std::string held_;        // the end of a body that is no stream, while a secret may go on in it
  std::string error_body_;
};

}  // namespace verbatim::gateway
