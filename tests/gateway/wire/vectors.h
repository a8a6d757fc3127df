// Recorded answers of many vendors (vectors/streams), and ways to cut bytes into packets.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "gateway/endpoint.h"
#include "tests/base/vectors.h"

namespace verbatim::test {

struct Recording {
  std::string name;
  gateway::Endpoint endpoint = gateway::Endpoint::kChatCompletions;
  int status = 0;
  bool streamed = false;
  bool cacheable = false;
  uint32_t choices = 1;
  std::string body;
  json::Value assembled;  // null for plain ones
};

inline json::Value ParseJson(std::string_view text) {
  auto v = json::Parse(text);
  EXPECT_TRUE(v.ok()) << (v.ok() ? "" : v.error().message) << "\n" << text.substr(0, 200);
  return v.ok() ? std::move(*v) : json::Value();
}

inline gateway::Endpoint EndpointOfApi(const std::string& api, const std::string& path) {
  if (path.find("count_tokens") != std::string::npos) return gateway::Endpoint::kCountTokens;
  if (api == "completions") return gateway::Endpoint::kCompletions;
  if (api == "responses") return gateway::Endpoint::kResponses;
  if (api == "messages") return gateway::Endpoint::kMessages;
  return gateway::Endpoint::kChatCompletions;
}

inline std::vector<Recording> Recordings() {
  std::vector<Recording> all;
  for (const auto& file : std::filesystem::directory_iterator(Vectors("streams"))) {
    const std::string name = file.path().stem().string();
    if (file.path().extension() != ".json" || name == "INDEX") continue;
    const json::Value v = ParseJson(ReadFile(file.path()));
    const json::Value& response = *v.Find("response");
    const json::Value* request = v.Find("request");
    const json::Value* path = request ? request->Find("path") : nullptr;
    Recording r;
    r.name = name;
    r.endpoint =
        EndpointOfApi(v.Find("api")->as_string(), path != nullptr ? path->as_string() : "");
    r.status = static_cast<int>(*response.Find("status")->AsInt64());
    r.body = response.Find("body")->as_string();
    r.streamed = response.Find("headers")
                     ->Find("content-type")
                     ->as_string()
                     .starts_with("text/event-stream");
    const json::Value* cacheable = v.Find("cacheable");
    r.cacheable = cacheable != nullptr && cacheable->is_bool() && cacheable->as_bool();
    if (const json::Value* assembled = v.Find("assembled")) r.assembled = *assembled;
    if (const json::Value* choices = r.assembled.Find("choices")) {
      r.choices = std::max<uint32_t>(1, static_cast<uint32_t>(choices->members().size()));
    }
    all.push_back(std::move(r));
  }
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return all;
}

// `bytes` in packets of random lengths, most of them short.
inline std::vector<std::string_view> Packets(std::string_view bytes, std::mt19937& random) {
  std::vector<std::string_view> packets;
  while (!bytes.empty()) {
    const size_t most = random() % 4 == 0 ? 2000 : 40;
    const size_t length = std::min<size_t>(1 + random() % most, bytes.size());
    packets.push_back(bytes.substr(0, length));
    bytes.remove_prefix(length);
  }
  return packets;
}

inline std::string WithCrLf(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\n') out += '\r';
    out += c;
  }
  return out;
}

}  // namespace verbatim::test
