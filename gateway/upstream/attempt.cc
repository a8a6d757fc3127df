#include "gateway/upstream/attempt.h"

#include <algorithm>
#include <utility>

#include "gateway/upstream/header_rules.h"

namespace verbatim::gateway {

namespace {

constexpr size_t kErrorBodyBytes = size_t{1} << 20;  // of a reply that is no 2xx; the rest is cut
constexpr size_t kReportedBytes = 200;               // of what an upstream says of itself
constexpr size_t kLeastSecretBytes = 8;  // what is shorter guards nothing, and stands everywhere

bool IsEventStream(std::string_view content_type) {
  std::string type(content_type.substr(0, content_type.find(';')));
  while (type.ends_with(' ')) type.pop_back();
  std::transform(type.begin(), type.end(), type.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return type == "text/event-stream";
}

bool IsPrintable(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c < 0x7f; });
}

}  // namespace

Attempt::Attempt(const Upstream& upstream, const Outgoing& outgoing, const RunObserver& observer)
    : upstream_(upstream), outgoing_(outgoing), observer_(observer) {}

void Attempt::OnHead(FetchHead head) {
  head_ = std::move(head);
  on_head(head_.status);
  if (!succeeded()) return;
  ReplyHead reply{.status = head_.status,
                  .content_type = std::string(FindHeader(head_.headers, "content-type")),
                  .headers = KeptHeaders(upstream_.config, head_.headers),
                  .streamed = false};
  if (!IsPrintable(reply.content_type)) reply.content_type = "application/octet-stream";
  reply.streamed = IsEventStream(reply.content_type);
  for (auto& [name, value] : reply.headers) Redact(value);
  if (outgoing_.judged) {
    const size_t limit = upstream_.config.reply_bytes;
    const ReplyOptions options{.max_bytes = limit,
                               .max_event_bytes = std::min(limit, ReplyOptions().max_event_bytes),
                               .choices = outgoing_.choices};
    reader_.emplace(outgoing_.endpoint, reply.streamed, options);
  }
  if (observer_.on_reply) observer_.on_reply(std::move(reply));
}

void Attempt::OnBody(std::string_view bytes) {
  if (!succeeded()) {
    error_body_ += bytes.substr(0, kErrorBodyBytes - error_body_.size());
  } else if (reader_) {
    Pass(reader_->Feed(bytes));
    if (reader_->ended() && !std::exchange(told_end_, true) && on_protocol_end) on_protocol_end();
  } else {
    Pass({{.bytes = std::string(bytes)}});
  }
}

bool Attempt::WantsMore() {
  return !observer_.wants_more || observer_.wants_more(reader_ ? reader_->held() : 0);
}

RunEnd Attempt::Finish(const FetchEnd& end, bool timed_out) {
  const bool broken = end.outcome == FetchOutcome::kBroken;
  RunEnd out;
  if (reader_) {
    std::vector<ReplyPiece> rest;
    out.reply = reader_->Finish(!broken, rest);
    Pass(std::move(rest));
    if (out.reply.complete && !is_whole_status()) {
      out.reply.complete = false;
      out.reply.why_not = "upstream_" + std::to_string(head_.status);
    }
  } else {
    out.reply.complete = !broken;
  }
  if (out.reply.complete) return out;
  out.outcome = RunEnd::Outcome::kIncomplete;
  out.broken = broken;
  out.cause = out.reply.why_not;
  if (broken) out.cause = "upstream_broken";
  if (timed_out) out.cause = "upstream_timeout";
  if (end.fault == FetchFault::kTooLarge) out.cause = "too_large";
  return out;
}

HttpError Attempt::Error(const FetchEnd& end) {
  const std::string status = std::to_string(head_.status);
  if (head_.status < 400) {
    return {.status = 502,
            .message = "The upstream `" + upstream_.id + "` answered with status " + status +
                       " where an answer was expected.",
            .code = "upstream_" + status};
  }
  HttpError error{
      .status = head_.status,
      .message = "The upstream `" + upstream_.id + "` answered with status " + status + ".",
      .code = "upstream_" + status,
      .headers = KeptHeaders(upstream_.config, head_.headers)};
  for (auto& [name, value] : error.headers) Redact(value);
  if (end.outcome == FetchOutcome::kBroken || error_body_.empty()) return error;
  error.body = std::move(error_body_);
  Redact(error.body);
  std::string type(FindHeader(head_.headers, "content-type"));
  if (type.empty() || !IsPrintable(type)) type = "application/octet-stream";
  error.headers.emplace_back("content-type", std::move(type));
  return error;
}

std::string Attempt::RequestId() const {
  std::string id;
  for (const char* name : {"x-request-id", "request-id", "apim-request-id"}) {
    if (id.empty()) id = FindHeader(head_.headers, name);
  }
  if (!IsPrintable(id)) return "";
  Redact(id);
  id.resize(std::min(id.size(), kReportedBytes));
  return id;
}

void Attempt::Redact(std::string& text) const {
  static constexpr std::string_view kInstead = "[redacted]";
  for (const std::string& secret : secrets) {
    if (secret.size() < kLeastSecretBytes || text.find(secret) == text.npos) continue;
    std::string out;
    size_t from = 0;
    for (size_t at; (at = text.find(secret, from)) != text.npos; from = at + secret.size()) {
      out.append(text, from, at - from).append(kInstead);
    }
    text = out.append(text, from);
  }
}

void Attempt::Pass(std::vector<ReplyPiece> pieces) {
  // No answer is complete with another status, whatever its body says.
  for (ReplyPiece& piece : pieces) piece.completes = piece.completes && is_whole_status();
  if (!pieces.empty() && observer_.on_body) observer_.on_body(std::move(pieces));
}

}  // namespace verbatim::gateway
