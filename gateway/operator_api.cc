#include "gateway/operator_api.h"

#include <algorithm>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <utility>

#include "base/json.h"
#include "gateway/log_api.h"
#include "gateway/manifest.h"
#include "gateway/metrics.h"
#include "gateway/operator_json.h"
#include "gateway/reproducibility.h"
#include "gateway/wakeup.h"
#include "store/ledger.h"

namespace verbatim::gateway {

namespace asio = boost::asio;
using std::chrono::milliseconds;

namespace {

// How long a receipt waits for the checkpoint that is about to be published, and how often it
// looks.
constexpr milliseconds kCheckpointWait{1'000};
constexpr milliseconds kPoll{20};
constexpr milliseconds kLongestWait{10'000};

// The value of `name` in a query string, undecoded: only numbers are taken here.
std::optional<uint64_t> QueryNumber(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    const size_t end = std::min(query.find('&'), query.size());
    const std::string_view item = query.substr(0, end);
    if (item.size() > name.size() && item.substr(0, name.size()) == name &&
        item[name.size()] == '=') {
      return ParseNumber(item.substr(name.size() + 1));
    }
    query.remove_prefix(std::min(end + 1, query.size()));
  }
  return std::nullopt;
}

// JSON that the store wrote, as a value.
json::Value Reparse(const std::string& text) {
  auto value = json::Parse(text);
  return value.ok() ? *std::move(value) : json::Value();
}

// What opens a commitment: SHA-256(salt || SHA-256(record)). Given only to whom the record belongs.
json::Value OpeningJson(std::string_view record, std::string_view salt) {
  json::Value v = json::Value::MakeObject();
  v.Set("record", Base64Encode(record));
  v.Set("salt", HexEncode(salt));
  return v;
}

// What the entry whose answer was served says of the answer.
void AddResult(json::Value& v, const store::EntryView& result) {
  if (!result.record) return;
  if (result.record->fingerprint) v.Set("fingerprint", HexEncode(*result.record->fingerprint));
  if (result.record->output_digest) {
    v.Set("output_digest", HexEncode(*result.record->output_digest));
  }
}

class OperatorApi {
 public:
  explicit OperatorApi(OperatorApiOptions options) : options_(std::move(options)) {}

  asio::awaitable<void> Receipt(const Request& http, ResponseSink& sink) const {
    const auto wait = milliseconds(1000 * QueryNumber(http.query, "wait").value_or(0));
    const auto now = std::chrono::steady_clock::now();
    const auto until_hits = now + std::min(wait, kLongestWait);
    const auto until_checkpoint = now + std::max(std::min(wait, kLongestWait), kCheckpointWait);
    asio::steady_timer timer(co_await asio::this_coro::executor);
    for (;;) {
      auto body = MakeReceipt(http);
      if (!body.ok()) co_return co_await SendStoreError(sink, body.error());
      const json::Value* status = body->Find("status");
      const bool final = status->as_string() != "pending";
      const bool entry = body->Find("entry") != nullptr;
      const auto until = entry ? until_checkpoint : until_hits;
      if (final || std::chrono::steady_clock::now() >= until) {
        co_return co_await SendJson(sink, *body);
      }
      timer.expires_after(kPoll);
      co_await timer.async_wait(asio::use_awaitable);
    }
  }

  asio::awaitable<void> Entry(const Request& http, ResponseSink& sink) const {
    auto entry = ParseNumber(http.params.at(0));
    if (!entry) co_return co_await SendStoreError(sink, NoSuchEntry(http.params.at(0)));
    const bool payload = QueryNumber(http.query, "payload").value_or(0) != 0;
    auto view = options_.ledger->Entry(*entry, true);
    if (!view.ok()) co_return co_await SendStoreError(sink, view.error());
    // Leaves are for every auditor; what is private of another tenant is for those who are
    // operators, too.
    const bool mine = http.principal.Has(Role::kOperator) ||
                      (view->record && view->record->tenant == http.principal.tenant);
    const bool erased = !view->record;
    if (!mine) view->record.reset();
    if (!mine && payload) {
      HttpError error{.status = 403,
                      .message =
                          "Payloads of other tenants' entries need the roles auditor and "
                          "operator together."};
      co_return (void) co_await SendError(sink, std::move(error));
    }
    json::Value v = json::Value::MakeObject();
    v.Set("entry", view->entry);
    v.Set("leaf", Base64Encode(view->leaf_bytes));
    v.Set("leaf_json", Reparse(view->leaf_bytes));
    v.Set("record", view->record ? Reparse(store::EncodeRecord(*view->record)) : json::Value());
    if (erased) v.Set("erased", true);
    if (payload) {
      // Whoever looks at a prompt or an answer leaves a trace before seeing it.
      if (Status s = co_await RecordView(http, *entry); !s.ok()) {
        co_return co_await SendStoreError(sink, s.error());
      }
      v.Set("request", Base64Encode(view->request));
      v.Set("response", Base64Encode(view->response));
      v.Set("trace", Base64Encode(view->trace));
    }
    co_await SendJson(sink, v);
  }

  asio::awaitable<void> ShowManifest(ResponseSink& sink) const {
    Headers headers;
    headers.emplace_back("Verbatim-Manifest", HexEncode(options_.manifest->digest));
    (void)co_await sink.SendWhole(200, std::move(headers), options_.manifest->canonical);
  }

  asio::awaitable<void> ShowReproducibility(ResponseSink& sink) const {
    const json::Value rates = options_.reproducibility->ToJson();
    co_await SendJson(sink, rates);
  }

  asio::awaitable<void> ShowMetrics(ResponseSink& sink) const {
    Headers headers;
    headers.emplace_back("content-type", "text/plain; version=0.0.4; charset=utf-8");
    (void)co_await sink.SendWhole(200, std::move(headers), options_.metrics->Render());
  }

  asio::awaitable<void> Health(ResponseSink& sink, bool ready) const {
    // In steps: GCC 12 destroys the temporaries of both branches of a conditional in a co_await.
    std::string why_not = options_.not_serving();
    if (ready && why_not.empty() && options_.not_ready) why_not = options_.not_ready();
    std::string text = "ok\n";
    if (!why_not.empty()) text = "not serving: " + why_not + "\n";
    co_await SendText(sink, why_not.empty() ? 200 : 503, std::move(text));
  }

 private:
  asio::awaitable<Status> RecordView(const Request& http, uint64_t entry) const {
    store::AppendRequest viewed;
    viewed.kind = store::Kind::kViewed;
    viewed.manifest = HexEncode(options_.manifest->digest);
    viewed.references.push_back({"viewed", entry});
    viewed.record.tenant = http.principal.tenant;
    viewed.record.subject = http.principal.subject;
    viewed.record.key_id = http.principal.key_id;
    viewed.record.request_id = http.id;
    auto appended = co_await AwaitCallback<Result<store::Appended>>(
        [&](std::function<void(Result<store::Appended>)> done) {
          options_.ledger->AppendAsync(std::move(viewed), std::move(done));
        });
    if (!appended.ok()) co_return appended.error();
    co_return Status();
  }

  // "status" is "committed", or "pending" while the entry or its checkpoint is not there yet.
  Result<json::Value> MakeReceipt(const Request& http) const {
    const store::Ledger& ledger = *options_.ledger;
    const std::string& id = http.params.at(0);
    auto receipt = ledger.FindReceipt(id);
    if (!receipt.ok()) return receipt.error();
    const bool own = receipt->tenant == ledger.Pseudonym(http.principal.tenant);
    if (!own && !http.principal.Has(Role::kAuditor)) {
      return Error{Code::kNotFound, "no receipt of this request id"};
    }
    // As of entries: what is private is its own tenant's, and operators'.
    const bool opens = own || http.principal.Has(Role::kOperator);
    json::Value v = json::Value::MakeObject();
    v.Set("request_id", id);
    v.Set("status", "pending");
    v.Set("tenant", receipt->tenant);
    if (!receipt->entry) {
      AddPromise(v, *receipt);
      return v;
    }

    auto entry = ledger.Entry(*receipt->entry, true);
    if (!entry.ok()) return entry.error();
    v.Set("entry", *receipt->entry);
    v.Set("kind", store::KindName(entry->leaf.kind));
    v.Set("outcome", entry->leaf.outcome);
    v.Set("leaf", Base64Encode(entry->leaf_bytes));
    std::optional<uint64_t> served;  // the entry whose answer this request got
    for (const store::Reference& reference : entry->leaf.references) {
      if (reference.relation == "result") served = reference.entry;
    }
    if (receipt->hit) {
      const store::Receipt::Hit& hit = *receipt->hit;
      json::Value h = json::Value::MakeObject();
      if (hit.erased) {
        h.Set("erased", true);
      } else {
        served = hit.result;
        h.Set("result", hit.result);
      }
      h.Set("number", hit.number);
      h.Set("count", hit.count);
      h.Set("commitment", HexEncode(hit.commitment));
      if (!hit.erased && opens) h.Set("opening", OpeningJson(hit.record, hit.salt));
      h.Set("hashes", HashList(hit.path));
      v.Set("hit", std::move(h));
    } else if (entry->record && opens) {
      v.Set("opening", OpeningJson(store::EncodeRecord(*entry->record), entry->salt));
    } else if (!entry->record) {
      v.Set("erased", true);
    }
    auto proof = ledger.Proof(*receipt->entry);
    if (!proof.ok() && proof.error().code != Code::kUnavailable) return proof.error();
    if (!proof.ok()) AddPromise(v, *receipt);
    if (proof.ok()) {
      v.Set("status", "committed");
      v.Set("leaf_hash", HexEncode(proof->leaf_hash));
      v.Set("proof", ProofJson(*proof));
      v.Set("checkpoint", proof->checkpoint);
    }
    if (!served) {
      AddResult(v, *entry);
      return v;
    }
    auto result = ledger.Entry(*served, true);
    if (!result.ok()) return result.error();
    AddResult(v, *result);
    // The result's entry is older, so whatever checkpoint covers this one covers it too.
    if (proof.ok()) {
      if (Status s = AddServed(http, v, *result); !s.ok()) return s.error();
    }
    return v;
  }

  // What a client can hold against a log that later does not have its entry.
  void AddPromise(json::Value& v, const store::Receipt& receipt) const {
    auto promise = options_.ledger->Promise(receipt);
    if (promise.ok()) v.Set("promise", std::move(*promise));
  }

  // The entry whose answer a hit served, with its own proof, and with its opening where it is not
  // another tenant's: that holds who asked first.
  Status AddServed(const Request& http, json::Value& v, const store::EntryView& result) const {
    auto proof = options_.ledger->Proof(result.entry);
    if (!proof.ok()) return proof.error();
    json::Value served = json::Value::MakeObject();
    served.Set("entry", result.entry);
    served.Set("leaf", Base64Encode(result.leaf_bytes));
    if (!result.record) served.Set("erased", true);
    const bool mine = result.record && result.record->tenant == http.principal.tenant;
    if (mine || (result.record && http.principal.Has(Role::kOperator))) {
      served.Set("opening", OpeningJson(store::EncodeRecord(*result.record), result.salt));
    }
    served.Set("proof", ProofJson(*proof));
    v.Set("result", std::move(served));
    return {};
  }

  OperatorApiOptions options_;
};

}  // namespace

void AddOperatorRoutes(Router& router, OperatorApiOptions options) {
  AddLogRoutes(router, {options.ledger, options.open_log});
  const bool rates = options.reproducibility != nullptr;
  const auto api = std::make_shared<const OperatorApi>(std::move(options));
  const auto client = static_cast<uint8_t>(Role::kClient);
  const auto op = static_cast<uint8_t>(Role::kOperator);
  const auto auditor = static_cast<uint8_t>(Role::kAuditor);
  const auto get = [&](const char* pattern, uint8_t roles, Handler handler) {
    router.Add({"GET", pattern, roles, std::move(handler)});
  };
  get("/verbatim/v1/receipts/{}", client | auditor,
      [api](const Request& http, ResponseSink& sink) { return api->Receipt(http, sink); });
  get("/verbatim/v1/entries/{}", auditor,
      [api](const Request& http, ResponseSink& sink) { return api->Entry(http, sink); });
  get("/verbatim/v1/manifest", auditor | op | client,
      [api](const Request&, ResponseSink& sink) { return api->ShowManifest(sink); });
  if (rates) {
    get("/verbatim/v1/reproducibility", auditor | op,
        [api](const Request&, ResponseSink& sink) { return api->ShowReproducibility(sink); });
  }
  get("/metrics", op, [api](const Request&, ResponseSink& sink) { return api->ShowMetrics(sink); });
  get("/healthz", 0,
      [api](const Request&, ResponseSink& sink) { return api->Health(sink, false); });
  get("/readyz", 0, [api](const Request&, ResponseSink& sink) { return api->Health(sink, true); });
}

}  // namespace verbatim::gateway
