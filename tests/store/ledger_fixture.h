// A ledger in a folder of its own, over a memory Kv that tests can make fail or damage.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>

#include "base/crypto.h"
#include "store/fsck.h"
#include "store/keyring.h"
#include "store/keys.h"
#include "store/kv_memory.h"
#include "store/ledger.h"
#include "store/reader.h"

namespace verbatim::store {

class TemporaryFolder {
 public:
  TemporaryFolder()
      : path_(std::filesystem::temp_directory_path() /
              ("verbatim-store-" + HexEncode(RandomBytes(8)))) {
    std::filesystem::create_directory(path_);
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string path(const std::string& name = "data") const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

// Passes everything on to a Kv that outlives the ledger.
class BorrowedKv : public Kv {
 public:
  explicit BorrowedKv(Kv& kv) : kv_(kv) {}
  Result<std::optional<std::string>> Get(Table table, std::string_view key) const override {
    return kv_.Get(table, key);
  }
  Status Scan(Table table, std::string_view begin, std::string_view end,
              const Visitor& visit) const override {
    return kv_.Scan(table, begin, end, visit);
  }
  Status Commit(const Batch& batch, bool durable) override { return kv_.Commit(batch, durable); }
  Status Recover() override { return kv_.Recover(); }
  Status Snapshot(const std::string& directory) override { return kv_.Snapshot(directory); }
  Status VerifyFiles() const override { return kv_.VerifyFiles(); }

 private:
  Kv& kv_;
};

inline Digest FingerprintOf(const std::string& request) {
  return Sha256("fingerprint of " + request);
}

// A complete answer to `request` that may serve hits.
inline AppendRequest Generated(const std::string& request, const std::string& tenant = "acme",
                               const std::string& request_id = "") {
  AppendRequest append;
  append.model = HexEncode(Sha256("model"));
  append.manifest = HexEncode(Sha256("manifest"));
  append.numerics = "verbatim-numerics-1";
  append.record.tenant = tenant;
  append.record.subject = "alice";
  append.record.key_id = "key-1";
  append.record.request_id = request_id;
  append.record.endpoint = "/v1/chat/completions";
  append.record.name_space = tenant;
  append.record.fingerprint = FingerprintOf(request);
  append.record.serves_hits = true;
  append.record.seed = 18446744073709551615u;
  append.record.chain_heads = {Sha256("chain")};
  append.record.created = 1796054400;
  append.record.usage = json::Parse(R"({"prompt_tokens":3,"completion_tokens":5})").value();
  append.request = "{\"prompt\":\"" + request + "\"}";
  append.response = "answer to " + request;
  append.trace = std::string(80, 't');
  return append;
}

inline HitRequest HitOf(uint64_t entry, const std::string& request_id,
                        const std::string& tenant = "acme", const std::string& subject = "alice") {
  HitRequest hit;
  hit.result = entry;
  hit.tenant = tenant;
  hit.subject = subject;
  hit.key_id = "key-1";
  hit.request_id = request_id;
  return hit;
}

class LedgerFixture : public ::testing::Test {
 protected:
  // Opens the ledger over `kv`, or over RocksDB where it is null.
  Result<std::unique_ptr<Ledger>> TryOpen(Kv* kv, LedgerOptions options = {}) {
    Result<DataFolder> folder = DataFolder::Open(folder_.path());
    if (!folder.ok()) return folder.error();
    options.publish_interval_micros = 1000;
    options.control_socket = kv == nullptr;
    if (kv) options.kv = std::make_unique<BorrowedKv>(*kv);
    return Ledger::Open(std::move(*folder), std::move(options));
  }
  std::unique_ptr<Ledger> Open(Kv* kv, LedgerOptions options = {}) {
    Result<std::unique_ptr<Ledger>> ledger = TryOpen(kv, std::move(options));
    if (!ledger.ok()) ADD_FAILURE() << ledger.error().message;
    CHECK(ledger.ok());
    return std::move(*ledger);
  }

  // Checks the tables of `kv` with the folder's keys, keyring and checkpoint.
  FsckReport Check(const Kv& kv) { return Check(kv, folder_.path()); }
  static FsckReport Check(const Kv& kv, const std::string& path) {
    const DataFolder folder = DataFolder::Unlocked(path);
    const Keys keys = LoadKeys(folder, "", false).value();
    const auto entries =
        Keyring::Open(folder.keyring() + "/entries", "entries", *keys.wrapper, false).value();
    const auto hits =
        Keyring::Open(folder.keyring() + "/hits", "hits", *keys.wrapper, false).value();
    Result<std::string> checkpoint = ReadFile(folder.checkpoint());
    return CheckLedger(Reader(kv, keys, *entries, *hits),
                       checkpoint.ok() ? std::optional(*checkpoint) : std::nullopt, {})
        .value();
  }

  // Waits, at most some seconds, until a checkpoint covers the entry.
  static EntryProof WaitForProof(const Ledger& ledger, uint64_t entry) {
    Result<EntryProof> proof = ledger.Proof(entry);
    for (int i = 0; i < 5000 && !proof.ok(); ++i) {
      CHECK(proof.error().code == Code::kUnavailable);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      proof = ledger.Proof(entry);
    }
    return proof.value();
  }

  TemporaryFolder folder_;
};

inline std::string Findings(const FsckReport& report) {
  std::string text;
  for (const FsckFinding& f : report.findings) {
    text += f.kind + " " + (f.entry ? std::to_string(*f.entry) : "-") + ": " + f.what + "\n";
  }
  return text;
}

}  // namespace verbatim::store
