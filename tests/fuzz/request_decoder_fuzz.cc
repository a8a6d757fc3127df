// Request bodies of every endpoint: decoded or refused by name, whatever they hold. The first byte
// chooses the endpoint.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "base/bytes.h"
#include "base/check.h"
#include "base/json.h"
#include "gateway/wire/openai.h"

using namespace verbatim;
using namespace verbatim::gateway;

namespace {

void CheckError(const HttpError& error) {
  CHECK(error.status == 400 || error.status == 404);
  CHECK(!error.message.empty() && IsUtf8(error.message));
  for (const ErrorForm form : {ErrorForm::kOpenAi, ErrorForm::kAnthropic}) {
    CHECK(json::Parse(ErrorJson(error, form, "req_1")).ok());
  }
}

void CheckRequest(const GenerationRequest& request, const std::string& canonical) {
  CHECK(json::Canonical(request.body) == canonical);  // every field is kept
  CHECK(std::is_sorted(request.ignored.begin(), request.ignored.end()));
  CHECK(std::none_of(request.stop.begin(), request.stop.end(),
                     [](const std::string& stop) { return stop.empty(); }));
  CHECK(request.has_prompt_tokens || request.prompt_tokens.empty());
  const std::string header = IgnoredHeader(request);
  CHECK(header.size() <= 1'003);
  CHECK(std::all_of(header.begin(), header.end(), [](char c) { return c >= 0x20 && c < 0x7f; }));
  if (const auto refused = CheckEngine(request)) CheckError(*refused);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  const Endpoint endpoint = AllEndpoints()[data[0] % AllEndpoints().size()];
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  auto body = ParseBody(text);
  if (const auto* error = std::get_if<HttpError>(&body)) {
    CheckError(*error);
    return 0;
  }
  const std::string canonical = json::Canonical(std::get<json::Value>(body));
  auto decoded = Decode(endpoint, std::move(std::get<json::Value>(body)));

  // The same request, written in another way, is the same request.
  auto again = ParseBody(canonical);
  CHECK(std::holds_alternative<json::Value>(again));
  auto other = Decode(endpoint, std::move(std::get<json::Value>(again)));
  CHECK(decoded.index() == other.index());
  if (const auto* error = std::get_if<HttpError>(&decoded)) {
    CheckError(*error);
    return 0;
  }
  const GenerationRequest& request = std::get<GenerationRequest>(decoded);
  const GenerationRequest& same = std::get<GenerationRequest>(other);
  CheckRequest(request, canonical);
  CHECK(request.model == same.model && request.prompt == same.prompt);
  CHECK(request.max_tokens == same.max_tokens && request.seed == same.seed);
  CHECK(request.stop == same.stop && request.ignored == same.ignored);
  CHECK(request.stream == same.stream && request.messages == same.messages);
  return 0;
}
