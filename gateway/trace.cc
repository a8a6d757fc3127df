#include "gateway/trace.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/json.h"

namespace verbatim::gateway {

namespace {

Error Corrupt(const char* what) { return {Code::kCorrupt, std::string("trace: ") + what}; }

// One choice's events of a decoded trace.
Status DecodeChoice(const json::Value& value, uint32_t choice, TraceOrder& order,
                    std::vector<TraceEvent>& out) {
  const json::Value* tokens = value.Find("tokens");
  const json::Value* texts = value.Find("texts");
  const json::Value* digests = value.Find("digests");
  const json::Value* reason = value.Find("finish_reason");
  const json::Value* chain = value.Find("chain");
  const json::Value* stop = value.Find("stop");
  if (!tokens || !tokens->is_array() || !texts || !texts->is_array() || !digests ||
      !digests->is_string() || !reason || !reason->is_string() || !chain || !chain->is_string() ||
      (stop && !stop->is_string())) {
    return Corrupt("a choice lacks a member");
  }
  auto digest_bytes = HexDecode(digests->as_string());
  auto chain_digest = HexDecodeDigest(chain->as_string());
  const size_t count = tokens->items().size();
  if (!digest_bytes.ok() || !chain_digest.ok() || texts->items().size() != count ||
      digest_bytes->size() != 16 * count) {
    return Corrupt("tokens, texts and digests do not correspond");
  }
  for (size_t i = 0; i < count; ++i) {
    auto token = tokens->items()[i].AsInt64();
    if (!token || *token < 0 || *token > std::numeric_limits<int32_t>::max() ||
        !texts->items()[i].is_string()) {
      return Corrupt("a token is out of range, or a text is none");
    }
    TokenPiece piece{choice, static_cast<int32_t>(*token), {}, texts->items()[i].as_string()};
    for (size_t b = 0; b < 16; ++b)
      piece.digest[b] = static_cast<uint8_t>((*digest_bytes)[16 * i + b]);
    order.Add(std::move(piece), out);
  }
  order.Add(ChoiceEnd{choice, reason->as_string(), *chain_digest, stop ? stop->as_string() : ""},
            out);
  return {};
}

std::vector<std::vector<const TraceEvent*>> ByChoice(const Trace& trace) {
  std::vector<std::vector<const TraceEvent*>> choices(trace.choices);
  for (const TraceEvent& event : trace.events) choices[event.choice].push_back(&event);
  return choices;
}

const char* Difference(const TraceEvent& a, const TraceEvent& b) {
  if (a.end != b.end) return "length";
  if (a.end && a.finish_reason != b.finish_reason) return "finish_reason";
  if (a.end && a.stop != b.stop) return "finish_reason";
  if (a.end) return a.chain != b.chain ? "logits" : nullptr;
  if (a.token != b.token) return "token";
  if (a.digest != b.digest) return "logits";
  return a.text != b.text ? "text" : nullptr;
}

}  // namespace

uint64_t Trace::Generated() const {
  return static_cast<uint64_t>(
      std::count_if(events.begin(), events.end(), [](const TraceEvent& e) { return !e.end; }));
}

std::vector<Digest> Trace::Chains() const {
  std::vector<Digest> chains(choices);
  for (const TraceEvent& e : events) {
    if (e.end) chains[e.choice] = e.chain;
  }
  return chains;
}

void TraceOrder::Add(TokenPiece piece, std::vector<TraceEvent>& out) {
  CHECK(piece.choice < waiting_.size());
  TraceEvent event;
  event.choice = piece.choice;
  event.token = piece.token;
  event.digest = piece.digest;
  event.text = std::move(piece.text);
  waiting_[piece.choice].events.push_back(std::move(event));
  Advance(out);
}

void TraceOrder::Add(ChoiceEnd end, std::vector<TraceEvent>& out) {
  CHECK(end.choice < waiting_.size());
  TraceEvent event;
  event.choice = end.choice;
  event.end = true;
  event.finish_reason = std::move(end.finish_reason);
  event.chain = end.chain;
  event.stop = std::move(end.stop);
  waiting_[end.choice].events.push_back(std::move(event));
  Advance(out);
}

void TraceOrder::Advance(std::vector<TraceEvent>& out) {
  while (!complete()) {
    if (!ended_[next_]) {
      auto& [events, first] = waiting_[next_];
      if (first == events.size()) return;
      if (events[first].end) {
        ended_[next_] = true;
        ++open_ended_;
      }
      out.push_back(std::move(events[first++]));
      if (first == events.size()) {
        events.clear();
        first = 0;
      }
    }
    next_ = (next_ + 1) % waiting_.size();
  }
}

std::string EncodeTrace(const Trace& trace) {
  json::Value choices = json::Value::MakeArray();
  for (const auto& events : ByChoice(trace)) {
    json::Value tokens = json::Value::MakeArray(), texts = json::Value::MakeArray();
    json::Value choice = json::Value::MakeObject();
    std::string digests;
    for (const TraceEvent* event : events) {
      if (event->end) {
        choice.Set("finish_reason", event->finish_reason);
        choice.Set("chain", HexEncode(event->chain));
        if (!event->stop.empty()) choice.Set("stop", event->stop);
        break;
      }
      tokens.Append(event->token);
      texts.Append(event->text);
      digests.append(reinterpret_cast<const char*>(event->digest.data()), event->digest.size());
    }
    choice.Set("tokens", std::move(tokens));
    choice.Set("texts", std::move(texts));
    choice.Set("digests", HexEncode(digests));
    choices.Append(std::move(choice));
  }
  json::Value value = json::Value::MakeObject();
  value.Set("trace", 1);
  value.Set("prompt_tokens", static_cast<uint64_t>(trace.prompt_tokens));
  value.Set("choices", std::move(choices));
  return json::Canonical(value);
}

Result<Trace> DecodeTrace(std::string_view bytes) {
  auto value = json::Parse(bytes);
  if (!value.ok()) return Corrupt("no JSON");
  const json::Value* version = value->Find("trace");
  const json::Value* prompt = value->Find("prompt_tokens");
  const json::Value* choices = value->Find("choices");
  if (!version || version->AsInt64() != 1) return Corrupt("another version");
  std::optional<uint64_t> prompt_tokens = prompt ? prompt->AsUint64() : std::nullopt;
  if (!prompt_tokens || *prompt_tokens > std::numeric_limits<uint32_t>::max()) {
    return Corrupt("prompt_tokens is no count");
  }
  if (!choices || !choices->is_array() || choices->items().empty()) return Corrupt("no choices");

  Trace trace;
  trace.choices = static_cast<uint32_t>(choices->items().size());
  trace.prompt_tokens = static_cast<uint32_t>(*prompt_tokens);
  TraceOrder order(trace.choices);
  for (uint32_t i = 0; i < trace.choices; ++i) {
    if (Status s = DecodeChoice(choices->items()[i], i, order, trace.events); !s.ok()) {
      return s.error();
    }
  }
  CHECK(order.complete());
  return trace;
}

std::optional<Divergence> FirstDivergence(const Trace& recorded, const Trace& again) {
  if (recorded.choices != again.choices) return Divergence{"length", 0, 0};
  std::vector<uint64_t> step(recorded.choices, 0);
  const size_t common = std::min(recorded.events.size(), again.events.size());
  for (size_t i = 0; i < common; ++i) {
    const TraceEvent& a = recorded.events[i];
    const TraceEvent& b = again.events[i];
    // Equal so far means equal order, so that the choices correspond.
    if (const char* what = Difference(a, b)) return Divergence{what, step[a.choice], a.choice};
    if (!a.end) ++step[a.choice];
  }
  if (recorded.events.size() != again.events.size()) {
    const TraceEvent& first =
        recorded.events.size() > common ? recorded.events[common] : again.events[common];
    return Divergence{"length", step[first.choice], first.choice};
  }
  return std::nullopt;
}

}  // namespace verbatim::gateway
