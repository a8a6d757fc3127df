#include "gateway/operator_json.h"

#include <charconv>
#include <utility>

namespace verbatim::gateway {

namespace asio = boost::asio;

HttpError FromStore(const Error& error) {
  HttpError http;
  http.message = error.message;
  switch (error.code) {
    case Code::kNotFound:
      http.status = 404;
      http.code = "not_found";
      break;
    case Code::kUnavailable:
      http.status = 503;
      http.code = "pending";
      http.headers.emplace_back("retry-after", "1");
      break;
    default:
      http.status = 500;
      http.code = CodeName(error.code);
  }
  return http;
}

asio::awaitable<void> SendStoreError(ResponseSink& sink, Error error) {
  (void)co_await SendError(sink, FromStore(error));
}

asio::awaitable<void> SendJson(ResponseSink& sink, const json::Value& value) {
  Headers headers;
  headers.emplace_back("cache-control", "no-store");
  (void)co_await sink.SendWhole(200, std::move(headers), json::Serialize(value) + "\n");
}

asio::awaitable<void> SendText(ResponseSink& sink, int status, std::string text) {
  Headers headers;
  headers.emplace_back("content-type", "text/plain; charset=utf-8");
  headers.emplace_back("cache-control", "no-store");
  (void)co_await sink.SendWhole(status, std::move(headers), std::move(text));
}

std::optional<uint64_t> ParseNumber(std::string_view text) {
  uint64_t n = 0;
  const char* end = text.data() + text.size();
  auto [at, error] = std::from_chars(text.data(), end, n);
  if (text.empty() || error != std::errc() || at != end) return std::nullopt;
  return n;
}

Error NoSuchEntry(const std::string& text) {
  return {Code::kNotFound, "entry \"" + text + "\": entries are numbered from 0"};
}

json::Value HashList(const std::vector<Digest>& hashes) {
  json::Value list = json::Value::MakeArray();
  for (const Digest& hash : hashes) list.Append(HexEncode(hash));
  return list;
}

json::Value ProofJson(const store::EntryProof& proof) {
  json::Value v = json::Value::MakeObject();
  v.Set("index", proof.entry);
  v.Set("tree_size", proof.size);
  v.Set("leaf_hash", HexEncode(proof.leaf_hash));
  v.Set("hashes", HashList(proof.path));
  v.Set("checkpoint", proof.checkpoint);
  return v;
}

}  // namespace verbatim::gateway
