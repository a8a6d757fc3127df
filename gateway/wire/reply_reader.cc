#include "gateway/wire/reply_reader.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/json.h"
#include "gateway/wire/json_read.h"
#include "gateway/wire/reply_convert.h"
#include "gateway/wire/sse.h"

namespace verbatim::gateway {

namespace {

using json::Value;

constexpr json::ParseLimits kEventLimits{
    .max_bytes = size_t{64} << 20, .max_depth = 128, .max_values = size_t{1} << 18};
constexpr json::ParseLimits kBodyLimits{
    .max_bytes = size_t{256} << 20, .max_depth = 128, .max_values = size_t{1} << 22};

// What is known of an answer so far, whatever form it comes in.
class Judge {
 public:
  Judge(Endpoint endpoint, uint32_t choices) : endpoint_(endpoint), asked_(choices) {}

  // An event of a stream. Its data as a value, where it had to be read for that.
  std::optional<Value> TakeEvent(const SseEvent& event);
  // The whole of a plain body.
  void TakeBody(std::string_view body);

  bool ended() const { return ended_; }
  bool failed() const { return !error_.empty(); }
  // Everything that the answer says is there; only its end may be missing.
  bool answered() const;

  void Fill(bool whole, ReplySummary& summary);
  void Fail(std::string_view why) {
    if (error_.empty() || why == "error_event") error_ = why;
  }

 private:
  void TakeObject(const Value& object);
  void TakeChunk(const Value& chunk);
  void TakeChoice(const Value& choice, size_t position);
  void TakeResponseEvent(const Value& event);
  void TakeResponse(const Value& response);
  void TakeMessageEvent(const Value& event);
  void TakeMessage(const Value& message);
  void TakeUsage(const Value& usage);
  void TakeHead(const Value& object);
  void TakeEmbeddings(const Value& body);
  std::string_view WhyNot(bool whole) const;

  const Endpoint endpoint_;
  const uint32_t asked_;
  bool any_ = false;                // an event with data, or a body
  bool ended_ = false;              // as the protocol demands, or a plain body was read
  bool answers_ = false;            // of a response: its status is an answer's
  bool started_ = false;            // of a message
  bool has_reason_member_ = false;  // a choice with a finish_reason, be it null
  bool has_answer_ = false;         // of embeddings and count_tokens
  size_t entries_ = 0;              // of embeddings
  std::string error_;
  std::vector<std::string> reasons_;
  std::vector<bool> seen_;
  Value usage_;
  std::string id_, model_, system_fingerprint_;
};

bool IsChunked(Endpoint endpoint) {
  return endpoint == Endpoint::kChatCompletions || endpoint == Endpoint::kCompletions;
}

std::optional<Value> Judge::TakeEvent(const SseEvent& event) {
  // Keep-alives of some vendors are events without anything in them.
  const bool empty = event.data.find_first_not_of(" \t\r\n") == std::string::npos;
  if (ended_ || empty) return std::nullopt;
  any_ = true;
  if (event.type == "error") {
    Fail("error_event");
    return std::nullopt;
  }
  if (event.data == "[DONE]") {
    if (IsChunked(endpoint_)) ended_ = true;
    return std::nullopt;
  }
  Result<Value> parsed = json::Parse(event.data, kEventLimits);
  if (!parsed.ok() || !parsed->is_object()) {
    // Chunks have no name; what has one there is a ping of some kind.
    if (!IsChunked(endpoint_) || event.type == "message") Fail("not_json");
    return std::nullopt;
  }
  TakeObject(*parsed);
  return std::move(*parsed);
}

void Judge::TakeObject(const Value& object) {
  if (FindPresent(object, "error") != nullptr) return Fail("error_event");
  switch (endpoint_) {
    case Endpoint::kChatCompletions:
    case Endpoint::kCompletions:
      return TakeChunk(object);
    case Endpoint::kResponses:
      return TakeResponseEvent(object);
    case Endpoint::kMessages:
      return TakeMessageEvent(object);
    case Endpoint::kEmbeddings:
    case Endpoint::kCountTokens:
      return Fail("unknown_shape");
  }
}

void Judge::TakeBody(std::string_view body) {
  any_ = !body.empty();
  const Result<Value> parsed = json::Parse(body, kBodyLimits);
  if (!parsed.ok() || !parsed->is_object()) return Fail("not_json");
  ended_ = true;
  if (FindPresent(*parsed, "error") != nullptr) return Fail("error_event");
  switch (endpoint_) {
    case Endpoint::kChatCompletions:
    case Endpoint::kCompletions:
      return TakeChunk(*parsed);
    case Endpoint::kResponses:
      return TakeResponse(*parsed);
    case Endpoint::kMessages:
      return TakeMessage(*parsed);
    case Endpoint::kEmbeddings:
      return TakeEmbeddings(*parsed);
    case Endpoint::kCountTokens: {
      const Value* tokens = parsed->Find("input_tokens");
      has_answer_ = tokens != nullptr && tokens->AsUint64().has_value();
      return;
    }
  }
}

void Judge::TakeHead(const Value& object) {
  if (id_.empty()) id_ = FindText(object, "id");
  if (model_.empty()) model_ = FindText(object, "model");
  if (const std::string_view s = FindText(object, "system_fingerprint"); !s.empty()) {
    system_fingerprint_ = s;
  }
}

void Judge::TakeUsage(const Value& usage) {
  if (usage.members().size() > kMaxMembers) return Fail("unknown_shape");
  if (!usage_.is_object()) {
    usage_ = usage;
    return;
  }
  for (const auto& [key, value] : usage.members()) {
    if (!value.is_null()) usage_.Set(key, value);
  }
  if (usage_.members().size() > kMaxMembers) Fail("unknown_shape");
}

// A chunk, or a whole plain answer: both hold choices.
void Judge::TakeChunk(const Value& chunk) {
  TakeHead(chunk);
  if (const Value* usage = FindObject(chunk, "usage")) usage_ = *usage;
  if (const Value* groq = FindObject(chunk, "x_groq")) {
    if (FindPresent(*groq, "error") != nullptr) return Fail("error_event");
    const Value* usage = FindObject(*groq, "usage");
    if (usage != nullptr && usage_.is_null()) usage_ = *usage;
  }
  // Vendors put what is no chunk between the chunks: pings, moderation. Where there is no other
  // event, no choice is seen.
  const Value* choices = FindPresent(chunk, "choices");
  if (choices == nullptr) return;
  if (!choices->is_array()) return Fail("unknown_shape");
  for (size_t i = 0; i < choices->items().size(); ++i) TakeChoice(choices->items()[i], i);
}

void Judge::TakeChoice(const Value& choice, size_t position) {
  if (!choice.is_object()) return Fail("unknown_shape");
  const Value* given = choice.Find("index");
  const std::optional<uint64_t> index = given == nullptr ? position : given->AsUint64();
  if (!index || *index >= kMaxChoices) return Fail("unknown_shape");
  if (FindPresent(choice, "error") != nullptr) return Fail("error_event");
  const size_t at = static_cast<size_t>(*index);
  if (at >= seen_.size()) {
    seen_.resize(at + 1);
    reasons_.resize(at + 1);
  }
  seen_[at] = true;
  if (choice.Find("finish_reason") != nullptr) has_reason_member_ = true;
  const std::string_view reason = FindText(choice, "finish_reason");
  if (reason == "error") return Fail("error_event");
  if (!reason.empty()) reasons_[at] = reason;
}

void Judge::TakeResponseEvent(const Value& event) {
  const std::string_view type = FindText(event, "type");
  if (type == "error") return Fail("error_event");
  const Value* response = FindObject(event, "response");
  if (response == nullptr) return;
  if (type == "response.created") return TakeHead(*response);
  if (type == "response.completed" || type == "response.incomplete" || type == "response.failed") {
    ended_ = true;
    TakeResponse(*response);
    answers_ = answers_ && type == "response." + std::string(FindText(*response, "status"));
  }
}

void Judge::TakeResponse(const Value& response) {
  TakeHead(response);
  if (const Value* usage = FindObject(response, "usage")) usage_ = *usage;
  if (FindPresent(response, "error") != nullptr) return Fail("error_event");
  if (FindArray(response, "output") == nullptr) return Fail("unknown_shape");
  const std::string_view status = FindText(response, "status");
  const Value* details = FindObject(response, "incomplete_details");
  const std::string_view reason = details ? FindText(*details, "reason") : std::string_view();
  answers_ = status == "completed" || (status == "incomplete" && !reason.empty());
  reasons_ = {std::string(reason.empty() ? status : reason)};
}

void Judge::TakeMessageEvent(const Value& event) {
  const std::string_view type = FindText(event, "type");
  if (type == "error") return Fail("error_event");
  if (type == "message_start") {
    const Value* message = FindObject(event, "message");
    if (message == nullptr) return Fail("unknown_shape");
    started_ = true;
    TakeHead(*message);
    if (const Value* usage = FindObject(*message, "usage")) TakeUsage(*usage);
  } else if (type == "message_delta") {
    if (const Value* usage = FindObject(event, "usage")) TakeUsage(*usage);
    const Value* delta = FindObject(event, "delta");
    const std::string_view reason = delta ? FindText(*delta, "stop_reason") : std::string_view();
    if (started_ && !reason.empty()) reasons_ = {std::string(reason)};
  } else if (type == "message_stop") {
    ended_ = true;
  }
}

void Judge::TakeMessage(const Value& message) {
  TakeHead(message);
  if (const Value* usage = FindObject(message, "usage")) TakeUsage(*usage);
  if (FindText(message, "type") != "message" || FindArray(message, "content") == nullptr) {
    return Fail("unknown_shape");
  }
  started_ = true;
  if (const std::string_view reason = FindText(message, "stop_reason"); !reason.empty()) {
    reasons_ = {std::string(reason)};
  }
}

void Judge::TakeEmbeddings(const Value& body) {
  TakeHead(body);
  if (const Value* usage = FindObject(body, "usage")) usage_ = *usage;
  const Value* data = FindArray(body, "data");
  if (data == nullptr) return;
  entries_ = data->items().size();
  has_answer_ = !data->items().empty() &&
                std::all_of(data->items().begin(), data->items().end(), [](const Value& item) {
                  const Value* embedding = FindPresent(item, "embedding");
                  return embedding != nullptr && (embedding->is_array() || embedding->is_string() ||
                                                  embedding->is_object());
                });
}

bool Judge::answered() const {
  if (failed()) return false;
  const auto given = [](const std::string& reason) { return !reason.empty(); };
  if (!IsChunked(endpoint_)) return ended_ || !reasons_.empty();
  if (ended_) return true;
  return reasons_.size() >= std::max<size_t>(asked_, 1) &&
         std::all_of(reasons_.begin(), reasons_.end(), given);
}

// "" where it is complete. Codes: reply_reader.h.
std::string_view Judge::WhyNot(bool whole) const {
  if (error_ == "error_event" || error_ == "too_large") return error_;
  if (!whole) return "truncated";
  if (!any_) return "empty";
  if (!error_.empty()) return error_;
  if (!ended_) return "no_end";
  switch (endpoint_) {
    case Endpoint::kChatCompletions:
    case Endpoint::kCompletions: {
      const auto missing = std::count(seen_.begin(), seen_.end(), false);
      if (seen_.empty()) return "unknown_shape";
      if (missing > 0 || seen_.size() < asked_) return "missing_choice";
      const bool reasons = std::all_of(reasons_.begin(), reasons_.end(),
                                       [](const std::string& reason) { return !reason.empty(); });
      const bool never_says = !has_reason_member_ && usage_.is_object();
      return reasons || never_says ? "" : "no_finish_reason";
    }
    case Endpoint::kResponses:
      return answers_ ? "" : "not_completed";
    case Endpoint::kMessages:
      if (!started_) return "unknown_shape";
      return reasons_.empty() ? "no_finish_reason" : "";
    case Endpoint::kEmbeddings:
      if (!has_answer_) return "unknown_shape";
      return entries_ < asked_ ? "missing_choice" : "";
    case Endpoint::kCountTokens:
      return has_answer_ ? "" : "unknown_shape";
  }
  return "unknown_shape";
}

void Judge::Fill(bool whole, ReplySummary& summary) {
  summary.why_not = WhyNot(whole);
  summary.complete = summary.why_not.empty();
  summary.finish_reasons = std::move(reasons_);
  summary.prompt_tokens =
      std::max(FindCount(usage_, "prompt_tokens"), FindCount(usage_, "input_tokens"));
  if (endpoint_ == Endpoint::kMessages) {
    for (const char* cached : {"cache_creation_input_tokens", "cache_read_input_tokens"}) {
      const uint64_t tokens = FindCount(usage_, cached);
      summary.prompt_tokens += std::min(tokens, UINT64_MAX - summary.prompt_tokens);
    }
  }
  summary.completion_tokens =
      std::max(FindCount(usage_, "completion_tokens"), FindCount(usage_, "output_tokens"));
  summary.usage = std::move(usage_);
  summary.id = std::move(id_);
  summary.model = std::move(model_);
  summary.system_fingerprint = std::move(system_fingerprint_);
}

}  // namespace

struct ReplyReader::State {
  State(Endpoint of, bool is_streamed, const ReplyOptions& given)
      : endpoint(of),
        streamed(is_streamed),
        options(given),
        parser(given.max_event_bytes),
        judge(of, given.choices) {}

  void Judged(std::vector<SsePiece>& from, std::vector<ReplyPiece>& out);

  const Endpoint endpoint;
  const bool streamed;
  const ReplyOptions options;
  SseParser parser;
  Judge judge;
  std::string body;  // of a plain reply, as long as it is not too large
  size_t total = 0;  // bytes fed
  bool too_large = false;
};

void ReplyReader::State::Judged(std::vector<SsePiece>& from, std::vector<ReplyPiece>& out) {
  if (total > options.max_bytes || parser.too_large()) {
    too_large = true;
    judge.Fail("too_large");
  }
  for (SsePiece& piece : from) {
    std::optional<Value> chunk;
    if (piece.event && !too_large) chunk = judge.TakeEvent(*piece.event);
    ByteRange usage;
    if (IsChunked(endpoint) && chunk) {
      usage = UsageIn(piece.bytes, piece.event->data, *chunk);
    } else if (IsChunked(endpoint)) {
      usage = UsageIn(piece.bytes);
    }
    out.push_back({std::move(piece.bytes), judge.answered(), usage});
  }
}

ReplyReader::ReplyReader(Endpoint endpoint, bool streamed, ReplyOptions options)
    : state_(std::make_unique<State>(endpoint, streamed, options)) {}
ReplyReader::~ReplyReader() = default;
ReplyReader::ReplyReader(ReplyReader&&) noexcept = default;
ReplyReader& ReplyReader::operator=(ReplyReader&&) noexcept = default;

bool ReplyReader::ended() const { return state_->streamed && state_->judge.ended(); }

size_t ReplyReader::held() const { return state_->body.capacity() + state_->parser.pending(); }

std::vector<ReplyPiece> ReplyReader::Feed(std::string_view bytes) {
  State& s = *state_;
  std::vector<ReplyPiece> out;
  if (bytes.empty()) return out;
  s.total += bytes.size();
  if (s.streamed) {
    std::vector<SsePiece> pieces;
    s.parser.Feed(bytes, pieces);
    s.Judged(pieces, out);
    return out;
  }
  s.body += bytes;
  if (s.total > s.options.max_bytes) {
    s.too_large = true;
    s.judge.Fail("too_large");
    out.push_back({std::exchange(s.body, {}), false});
  }
  return out;
}

ReplySummary ReplyReader::Finish(bool whole, std::vector<ReplyPiece>& rest) {
  State& s = *state_;
  if (s.streamed) {
    std::vector<SsePiece> pieces;
    s.parser.Finish(pieces);
    s.Judged(pieces, rest);
    const std::optional<SseEvent>& last = s.parser.unfinished();
    if (s.endpoint == Endpoint::kMessages && last && last->type == "message_stop") {
      (void)s.judge.TakeEvent(*last);
    }
  } else if (!s.too_large) {
    if (whole && !s.body.empty()) s.judge.TakeBody(s.body);
    if (!s.body.empty()) rest.push_back({std::move(s.body), whole});
  }
  ReplySummary summary;
  s.judge.Fill(whole, summary);
  return summary;
}

}  // namespace verbatim::gateway
