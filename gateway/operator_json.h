// What the operator's and the log's routes share: answers from the store as HTTP.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/json.h"
#include "gateway/http.h"
#include "store/ledger.h"

namespace verbatim::gateway {

HttpError FromStore(const Error& error);
boost::asio::awaitable<void> SendStoreError(ResponseSink& sink, Error error);
// No cache may keep what these send: the same path gives other forms and newer states.
boost::asio::awaitable<void> SendJson(ResponseSink& sink, const json::Value& value);
boost::asio::awaitable<void> SendText(ResponseSink& sink, int status, std::string text);

// Digits alone.
std::optional<uint64_t> ParseNumber(std::string_view text);
// kNotFound: `text` is no entry's number.
Error NoSuchEntry(const std::string& text);

json::Value HashList(const std::vector<Digest>& hashes);
json::Value ProofJson(const store::EntryProof& proof);

}  // namespace verbatim::gateway
