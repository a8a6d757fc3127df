#include "gateway/rendition.h"

#include <utility>

#include "gateway/wire/reply_convert.h"

namespace verbatim::gateway {

namespace {

bool ChoosesUsage(Endpoint endpoint) {
  return endpoint == Endpoint::kChatCompletions || endpoint == Endpoint::kCompletions;
}

}  // namespace

Headers ReplyHeaders(const ReplyHead& reply) {
  Headers headers;
  if (!reply.content_type.empty()) headers.emplace_back("content-type", reply.content_type);
  headers.insert(headers.end(), reply.headers.begin(), reply.headers.end());
  return headers;
}

bool StripsUsage(Endpoint endpoint, bool has_usage, const AnswerForm& asked) {
  return ChoosesUsage(endpoint) && has_usage && !asked.include_usage;
}

std::optional<Rendition> RenderReply(Endpoint endpoint, const ReplyHead& reply, std::string body,
                                     bool has_usage, const AnswerForm& asked) {
  Rendition rendition;
  rendition.status = reply.status;
  rendition.streamed = asked.streamed;
  if (reply.streamed == asked.streamed) {
    rendition.headers = ReplyHeaders(reply);
    if (!reply.streamed) {
      rendition.body = std::move(body);
    } else if (StripsUsage(endpoint, has_usage, asked)) {
      rendition.body = StreamWithoutUsage(body);
    } else if (ChoosesUsage(endpoint) && asked.include_usage && !has_usage) {
      return std::nullopt;
    } else {
      rendition.body = std::move(body);
    }
    return rendition;
  }
  auto converted = asked.streamed ? PlainToStream(endpoint, body, asked.include_usage)
                                  : StreamToPlain(endpoint, body);
  if (!converted) return std::nullopt;
  rendition.converted = true;
  rendition.body = *std::move(converted);
  ReplyHead head = reply;
  head.content_type = asked.streamed ? "text/event-stream; charset=utf-8" : "application/json";
  rendition.headers = ReplyHeaders(head);
  return rendition;
}

}  // namespace verbatim::gateway
