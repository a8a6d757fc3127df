#include "gateway/log_api.h"

#include <memory>
#include <utility>

#include "gateway/operator_json.h"
#include "store/anchors.h"
#include "store/ledger.h"
#include "store/tlog_proof.h"

namespace verbatim::gateway {

namespace asio = boost::asio;

namespace {

constexpr size_t kTimestampsShown = 100;

// A tlog-proof file is asked for by its media type or by name.
bool WantsTlogProof(const Request& http) {
  if (http.query == "form=tlog-proof") return true;
  const std::string_view accept = http.Header("accept");
  const size_t text = accept.find("text/plain");
  return text != std::string_view::npos && text < accept.find("application/json");
}

class LogApi {
 public:
  explicit LogApi(store::Ledger& ledger) : ledger_(ledger) {}

  asio::awaitable<void> Checkpoint(ResponseSink& sink) const {
    Headers headers;
    headers.emplace_back("content-type", "text/plain; charset=utf-8");
    headers.emplace_back("cache-control", "no-cache");
    // With witnesses a head is for the world once a quorum of them has seen it.
    std::string checkpoint = ledger_.anchors().Cosigned();
    if (checkpoint.empty()) checkpoint = ledger_.Checkpoint();
    (void)co_await sink.SendWhole(200, std::move(headers), std::move(checkpoint));
  }

  asio::awaitable<void> Tile(const Request& http, ResponseSink& sink) const {
    auto tile = ledger_.Tile(http.params.at(0));
    if (!tile.ok()) co_return co_await SendStoreError(sink, tile.error());
    Headers headers;
    headers.emplace_back("content-type", "application/octet-stream");
    headers.emplace_back("cache-control", "private, max-age=31536000, immutable");
    (void)co_await sink.SendWhole(200, std::move(headers), std::move(*tile));
  }

  asio::awaitable<void> Log(ResponseSink& sink) const {
    const auto log = ledger_.Log();
    json::Value v = json::Value::MakeObject();
    v.Set("origin", log.origin);
    v.Set("vkey", log.vkey);
    json::Value keys = json::Value::MakeArray();
    for (const store::LogIdentity::Key& key : log.keys) {
      keys.Append(json::Object{{"vkey", key.vkey}, {"from", key.from}});
    }
    v.Set("keys", std::move(keys));
    const store::AnchorOptions& options = ledger_.anchors().options();
    json::Value witnesses = json::Value::MakeArray();
    for (const store::CosignerKey& key : options.witnesses) {
      witnesses.Append(store::FormatCosignerKey(key));
    }
    v.Set("witnesses", std::move(witnesses));
    v.Set("quorum", static_cast<uint64_t>(options.quorum));
    co_await SendJson(sink, v);
  }

  // The newest checkpoint as the log signed it, the newest that a quorum cosigned, and timestamps.
  asio::awaitable<void> Anchors(ResponseSink& sink) const {
    auto stamps = ledger_.anchors().Timestamps(kTimestampsShown);
    if (!stamps.ok()) co_return co_await SendStoreError(sink, stamps.error());
    json::Value v = json::Value::MakeObject();
    v.Set("checkpoint", ledger_.Checkpoint());
    const std::string cosigned = ledger_.anchors().Cosigned();
    v.Set("cosigned", cosigned.empty() ? json::Value() : json::Value(cosigned));
    json::Value list = json::Value::MakeArray();
    for (const store::StoredTimestamp& stamp : *stamps) {
      list.Append(json::Object{{"size", stamp.size},
                               {"checkpoint", stamp.checkpoint},
                               {"response", Base64Encode(stamp.response)}});
    }
    v.Set("timestamps", std::move(list));
    co_await SendJson(sink, v);
  }

  asio::awaitable<void> Proof(const Request& http, ResponseSink& sink) const {
    auto entry = ParseNumber(http.params.at(0));
    if (!entry) co_return co_await SendStoreError(sink, NoSuchEntry(http.params.at(0)));
    auto proof = ledger_.Proof(*entry);
    if (!proof.ok()) co_return co_await SendStoreError(sink, proof.error());
    if (!WantsTlogProof(http)) {
      const json::Value v = ProofJson(*proof);
      co_return co_await SendJson(sink, v);
    }
    // The file is for those who trust witnesses: a cosigned head, where one covers the entry.
    auto cosigned = ledger_.CosignedProof(*entry);
    if (cosigned.ok()) proof = std::move(cosigned);
    const store::TlogProof file{proof->entry, proof->path, proof->checkpoint, ""};
    std::string text = store::FormatTlogProof(file);
    co_await SendText(sink, 200, std::move(text));
  }

 private:
  store::Ledger& ledger_;
};

}  // namespace

void AddLogRoutes(Router& router, LogApiOptions options) {
  const auto api = std::make_shared<const LogApi>(*options.ledger);
  const auto auditor = static_cast<uint8_t>(Role::kAuditor);
  const uint8_t readers = options.open ? 0 : auditor;
  const auto anyone = static_cast<uint8_t>(auditor | static_cast<uint8_t>(Role::kOperator) |
                                           static_cast<uint8_t>(Role::kClient));
  const auto get = [&](const char* pattern, uint8_t roles, Handler handler) {
    router.Add({"GET", pattern, roles, std::move(handler)});
  };
  get("/log/checkpoint", readers,
      [api](const Request&, ResponseSink& sink) { return api->Checkpoint(sink); });
  get("/log/tile/{*}", readers,
      [api](const Request& http, ResponseSink& sink) { return api->Tile(http, sink); });
  get("/verbatim/v1/log", anyone,
      [api](const Request&, ResponseSink& sink) { return api->Log(sink); });
  get("/verbatim/v1/log/anchors", anyone,
      [api](const Request&, ResponseSink& sink) { return api->Anchors(sink); });
  get("/verbatim/v1/entries/{}/proof", auditor,
      [api](const Request& http, ResponseSink& sink) { return api->Proof(http, sink); });
}

}  // namespace verbatim::gateway
