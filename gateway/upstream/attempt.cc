#include "gateway/upstream/attempt.h"

#include <algorithm>
#include <utility>

#include "gateway/upstream/header_rules.h"
#include "gateway/wire/reply_convert.h"

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
  reply.streamed = streamed_ = IsEventStream(reply.content_type);
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
  PassHeld(true);
  out.redacted = redacted_;
  RedactSummary(out.reply);
  if (out.reply.complete) return out;
  out.outcome = RunEnd::Outcome::kIncomplete;
  out.broken = broken;
  out.cause = out.reply.why_not;
  if (broken) out.cause = "upstream_broken";
  if (timed_out) out.cause = "upstream_timeout";
  if (end.fault == FetchFault::kTooLarge) out.cause = "too_large";
  if (out.cause == "too_large") {
    out.error = {.status = 502,
                 .message = "The answer of the upstream `" + upstream_.id +
                            "` is larger than this server takes (its limits.reply_bytes is " +
                            std::to_string(upstream_.config.reply_bytes) +
                            "): ask for a shorter one, or raise the limit.",
                 .type = "server_error",
                 .code = "upstream_too_large",
                 .headers = {{"x-should-retry", "false"}}};
  }
  return out;
}

HttpError Attempt::Error(const FetchEnd& end) {
  const std::string status = std::to_string(head_.status);
  HttpError error{
      .status = head_.status,
      .message = "The upstream `" + upstream_.id + "` answered with status " + status + ".",
      .code = "upstream_" + status,
      .headers = KeptHeaders(upstream_.config, head_.headers)};
  // A redirection is followed nowhere here: whether to is the client's to say.
  const std::string_view location = FindHeader(head_.headers, "location");
  if (head_.status < 400 && !location.empty() && IsPrintable(location)) {
    error.headers.emplace_back("location", location);
  }
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

bool Attempt::Redact(std::string& text) const {
  bool any = false;
  static constexpr std::string_view kInstead = "[redacted]";
  for (const std::string& secret : secrets) {
    if (secret.size() < kLeastSecretBytes || text.find(secret) == text.npos) continue;
    any = true;
    std::string out;
    size_t from = 0;
    for (size_t at; (at = text.find(secret, from)) != text.npos; from = at + secret.size()) {
      out.append(text, from, at - from).append(kInstead);
    }
    text = out.append(text, from);
  }
  return any;
}

void Attempt::RedactSummary(ReplySummary& summary) const {
  for (std::string* text : {&summary.id, &summary.model, &summary.system_fingerprint}) {
    Redact(*text);
  }
  for (std::string& reason : summary.finish_reasons) Redact(reason);
  if (std::string usage = json::Serialize(summary.usage); Redact(usage)) summary.usage = {};
}

void Attempt::Pass(std::vector<ReplyPiece> pieces) {
  for (ReplyPiece& piece : pieces) {
    // No answer is complete with another status, whatever its body says.
    piece.completes = piece.completes && is_whole_status();
    if (streamed_) {
      if (Redact(piece.bytes)) {
        redacted_ = true;
        piece.usage = UsageIn(piece.bytes);
      }
    } else {
      held_ += piece.bytes;
      completes_ = completes_ || piece.completes;
    }
  }
  if (!streamed_) return PassHeld(false);
  if (!pieces.empty() && observer_.on_body) observer_.on_body(std::move(pieces));
}

void Attempt::PassHeld(bool all) {
  redacted_ = Redact(held_) || redacted_;
  size_t kept = 0;
  for (const std::string& secret : secrets) {
    if (!all && secret.size() >= kLeastSecretBytes) kept = std::max(kept, secret.size() - 1);
  }
  if (held_.size() <= kept) return;
  ReplyPiece piece{.bytes = held_.substr(0, held_.size() - kept), .completes = completes_};
  held_.erase(0, piece.bytes.size());
  if (!observer_.on_body) return;
  std::vector<ReplyPiece> pieces;
  pieces.push_back(std::move(piece));
  observer_.on_body(std::move(pieces));
}

}  // namespace verbatim::gateway
