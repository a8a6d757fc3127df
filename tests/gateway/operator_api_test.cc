// What an auditor gets, and that it is enough to check an entry without trusting the server.
#include "gateway/operator_api.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "base/crypto.h"
#include "base/json.h"
#include "fake_client.h"

namespace verbatim::gateway {
namespace {

json::Value Get(Harness& h, const std::string& path, const std::string& query = "",
                int status = 200, const std::string& tenant = "acme") {
  auto sink = h.Do({.path = path, .method = "GET", .tenant = tenant, .query = query});
  EXPECT_EQ(sink->status(), status) << path << ": " << sink->body();
  auto value = json::Parse(sink->body());
  return value.ok() ? *std::move(value) : json::Value();
}

std::string Text(const json::Value& v, const char* key) {
  const json::Value* member = v.Find(key);
  return member && member->is_string() ? member->as_string() : "";
}

// RFC 9162, 2.1.3.2, written from the text, so that it shares nothing with the store.
std::string RootFromPath(uint64_t index, uint64_t size, std::string hash,
                         const std::vector<std::string>& path) {
  uint64_t fn = index, sn = size - 1;
  for (const std::string& p : path) {
    if ((fn & 1) || fn == sn) {
      hash = AsBytes(Sha256("\x01" + p + hash));
      while (!(fn & 1) && fn != 0) fn >>= 1, sn >>= 1;
    } else {
      hash = AsBytes(Sha256("\x01" + hash + p));
    }
    fn >>= 1, sn >>= 1;
  }
  return sn == 0 ? hash : "the path has another length";
}

// The leaf is in the tree that the checkpoint names, by its bytes and the path alone.
void CheckProof(const json::Value& receipt) {
  const auto leaf = Base64Decode(Text(receipt, "leaf"));
  ASSERT_TRUE(leaf.ok());
  const std::string hash(AsBytes(Sha256(std::string(1, '\0') + *leaf)));
  EXPECT_EQ(Text(receipt, "leaf_hash"), HexEncode(hash));
  const json::Value* proof = receipt.Find("proof");
  ASSERT_TRUE(proof);
  std::vector<std::string> path;
  for (const json::Value& p : proof->Find("hashes")->items()) {
    path.push_back(*HexDecode(p.as_string()));
  }
  const uint64_t size = *proof->Find("tree_size")->AsUint64();
  const std::string root = RootFromPath(*receipt.Find("entry")->AsUint64(), size, hash, path);
  EXPECT_NE(Text(receipt, "checkpoint")
                .find("\n" + std::to_string(size) + "\n" + Base64Encode(root) + "\n"),
            std::string::npos)
      << Text(receipt, "checkpoint");
}

TEST(OperatorApi, ReceiptOfAnAnswerChecks) {
  Harness h;
  auto answer = h.Do({});
  const json::Value receipt = Get(h, "/verbatim/v1/receipts/req_0");
  EXPECT_EQ(Text(receipt, "status"), "committed");
  EXPECT_EQ(Text(receipt, "kind"), "generated");
  EXPECT_EQ(Text(receipt, "output_digest"), HexEncode(Sha256(answer->body())));
  EXPECT_EQ(Text(receipt, "fingerprint"), answer->header("Verbatim-Fingerprint"));
  CheckProof(receipt);
}

TEST(OperatorApi, ReceiptOfAHitHasBothPaths) {
  Harness h;
  auto answer = h.Do({});
  h.Do({});
  const json::Value receipt = Get(h, "/verbatim/v1/receipts/req_1", "wait=10");
  EXPECT_EQ(Text(receipt, "status"), "committed");
  EXPECT_EQ(Text(receipt, "kind"), "hits");
  EXPECT_EQ(Text(receipt, "output_digest"), HexEncode(Sha256(answer->body())));
  CheckProof(receipt);
  const json::Value* hit = receipt.Find("hit");
  ASSERT_TRUE(hit);
  EXPECT_EQ(std::to_string(*hit->Find("result")->AsUint64()), answer->header("Verbatim-Entry"));
}

// A hit with an entry of its own: its record says whose answer it was.
TEST(OperatorApi, ReceiptOfAStrictHitNamesTheResult) {
  policies::Policy policy;
  policy.strict_hits = true;
  Harness h(policy);
  auto answer = h.Do({});
  h.Do({});
  const json::Value receipt = Get(h, "/verbatim/v1/receipts/req_1", "wait=10");
  EXPECT_EQ(Text(receipt, "kind"), "hit");
  EXPECT_EQ(Text(receipt, "output_digest"), HexEncode(Sha256(answer->body())));
  EXPECT_EQ(Text(receipt, "fingerprint"), answer->header("Verbatim-Fingerprint"));
  CheckProof(receipt);
  const json::Value* result = receipt.Find("result");
  ASSERT_TRUE(result);
  EXPECT_EQ(result->Find("entry")->AsUint64(), std::stoull(answer->header("Verbatim-Entry")));
  ASSERT_TRUE(result->Find("opening"));
  const json::Value extra = h.Entry(*receipt.Find("entry")->AsUint64()).record->extra;
  EXPECT_EQ(Text(extra, "output_digest"), Text(receipt, "output_digest"));
  EXPECT_EQ(Text(extra, "fingerprint"), Text(receipt, "fingerprint"));
}

TEST(OperatorApi, EntriesShowNoPayloadUnasked) {
  Harness h;
  auto answer = h.Do({});
  const std::string path = "/verbatim/v1/entries/" + answer->header("Verbatim-Entry");
  const json::Value entry = Get(h, path);
  EXPECT_EQ(Text(*entry.Find("leaf_json"), "kind"), "generated");
  EXPECT_EQ(Text(*entry.Find("record"), "subject"), "anonymous");
  EXPECT_FALSE(entry.Find("response"));
  const json::Value with_payload = Get(h, path, "payload=1");
  EXPECT_EQ(*Base64Decode(Text(with_payload, "response")), answer->body());
  EXPECT_EQ(h.Kinds(), (std::vector<std::string>{"generated", "viewed"}));
}

TEST(OperatorApi, TheRest) {
  Harness h;
  EXPECT_EQ(Get(h, "/verbatim/v1/log")
                .Find("vkey")
                ->as_string()
                .find(Get(h, "/verbatim/v1/log").Find("origin")->as_string() + "+"),
            0u);
  auto manifest = h.Do({.path = "/verbatim/v1/manifest", .method = "GET"});
  EXPECT_EQ(manifest->header("Verbatim-Manifest"), HexEncode(Sha256(manifest->body())));
  EXPECT_EQ(h.Do({.path = "/healthz", .method = "GET"})->status(), 200);
  EXPECT_NE(h.Do({.path = "/metrics", .method = "GET"})->body().find("verbatim_runs_in_flight"),
            std::string::npos);
  Get(h, "/verbatim/v1/entries/99", "", 404);
  Get(h, "/verbatim/v1/entries/-1", "", 404);
  Get(h, "/verbatim/v1/entries/18446744073709551616", "", 404);
  Get(h, "/verbatim/v1/entries/99/proof", "", 404);
  Get(h, "/verbatim/v1/receipts/req_none", "", 404);
}

// Whoever spreads load sees that the ledger took nothing, until it takes something again.
// What a client of tlog-tiles fetches, and a tlog-proof file, by their media types.
TEST(OperatorApi, LogAsOthersReadIt) {
  Harness h;
  h.Do({});
  const json::Value receipt = Get(h, "/verbatim/v1/receipts/req_0");
  const std::string entry = std::to_string(*receipt.Find("entry")->AsUint64());
  const auto get = [&](const std::string& path, const std::string& query = "") {
    return h.Do({.path = path, .method = "GET", .query = query});
  };
  const std::string width = std::to_string(*receipt.Find("proof")->Find("tree_size")->AsUint64());
  auto hashes = get("/log/tile/0/000.p/" + width);
  auto entries = get("/log/tile/entries/000.p/" + width);
  EXPECT_EQ(hashes->status(), 200);
  EXPECT_EQ(hashes->header("content-type"), "application/octet-stream");
  EXPECT_EQ(HexEncode(hashes->body().substr(hashes->body().size() - 32)),
            Text(receipt, "leaf_hash"));
  EXPECT_TRUE(entries->body().ends_with(*Base64Decode(Text(receipt, "leaf"))));
  for (const char* path : {"/log/tile/0/000", "/log/tile/0/0", "/log/tile/0/000.p/0",
                           "/log/tile/64/000.p/1", "/log/tile/0/x000/000", "/log/tile/x"}) {
    EXPECT_EQ(get(path)->status(), 404) << path;
  }
  auto proof = get("/verbatim/v1/entries/" + entry + "/proof", "form=tlog-proof");
  EXPECT_TRUE(proof->body().starts_with("c2sp.org/tlog-proof@v1\nindex " + entry + "\n"));
  EXPECT_NE(proof->body().find("\n\n" + h.ledger->Log().origin + "\n"), std::string::npos);
}

TEST(OperatorApi, ReadyWhileTheLedgerTakesEntries) {
  Harness h;
  const auto status = [&](const char* path) {
    return h.Do({.path = path, .method = "GET"})->status();
  };
  EXPECT_EQ(status("/readyz"), 200);
  h.kv->FailCommit(1, store::KvMemory::Fault::kNotPersisted);
  EXPECT_EQ(h.Do({})->status(), 500);
  EXPECT_EQ(status("/readyz"), 503);
  EXPECT_EQ(status("/healthz"), 200);
  for (int i = 0; i < 500 && h.Do({})->status() != 200; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(status("/readyz"), 200);
}

}  // namespace
}  // namespace verbatim::gateway
