// From a ledger to a bundle, and what the checks say of it. Damages of bundles, with both
// verifiers: tests/e2e/test_evidence.py.
#include "audit/export.h"

#include <map>

#include "audit/archive.h"
#include "audit/verify.h"
#include "store/checkpoint.h"
#include "store/cosignature.h"
#include "store/kv_memory.h"
#include "store/merkle.h"
#include "tests/store/ledger_fixture.h"

namespace verbatim::audit {
namespace {

using store::Kind;

class ExportTest : public store::LedgerFixture {
 protected:
  // server_started, then acme, globex, acme, globex, ..., and hits of both.
  void Fill(int pairs) {
    ledger_ = Open(&kv_);
    for (int i = 0; i < pairs; ++i) {
      for (const char* tenant : {"acme", "globex"}) {
        store::AppendRequest request = store::Generated("question " + std::to_string(i), tenant);
        request.record.chain_heads.clear();
        request.trace.clear();
        ASSERT_TRUE(ledger_->Append(std::move(request)).ok());
      }
    }
    for (int i = 0; i < 5; ++i) {
      ASSERT_TRUE(ledger_->RecordHit(store::HitOf(1, "a" + std::to_string(i))).ok());
      ASSERT_TRUE(ledger_->RecordHit(store::HitOf(2, "g" + std::to_string(i), "globex")).ok());
    }
    ASSERT_TRUE(ledger_->Close().ok());
    const store::DataFolder folder = store::DataFolder::Unlocked(folder_.path());
    checkpoint_ = store::ReadFile(folder.checkpoint()).value();
    keys_ = store::LoadKeys(folder, "", false).value();
    for (const auto& [name, ring] : {std::pair("entries", &entries_), std::pair("hits", &hits_)}) {
      *ring =
          store::Keyring::Open(folder.keyring() + "/" + name, name, *keys_.wrapper, false).value();
    }
    reader_ = std::make_unique<store::Reader>(kv_, keys_, *entries_, *hits_);
  }

  Result<std::string> Bundle(const ExportRequest& request, std::string checkpoint = "") {
    const std::string path = folder_.path("bundle" + std::to_string(++bundles_));
    if (checkpoint.empty()) checkpoint = checkpoint_;
    Result<ExportResult> result = WriteBundle(*reader_, checkpoint, request, path);
    if (!result.ok()) return result.error();
    std::string bytes = store::ReadFile(path).value();
    EXPECT_EQ(Sha256(bytes), result->digest);
    return bytes;
  }

  VerifyOptions WithKey() const {
    VerifyOptions options;
    options.key = keys_.signer->key();
    return options;
  }

  static const audit::Check& Find(const Verification& verification, const std::string& name) {
    for (const audit::Check& check : verification.checks) {
      if (check.name == name) return check;
    }
    CHECK(false);
  }

  store::KvMemory kv_;
  std::unique_ptr<store::Ledger> ledger_;
  std::string checkpoint_;
  store::Keys keys_;
  std::unique_ptr<store::Keyring> entries_, hits_;
  std::unique_ptr<store::Reader> reader_;
  int bundles_ = 0;
};

TEST_F(ExportTest, AWholeLogHoldsAndComesOutTheSameAgain) {
  Fill(3);
  const std::string bundle = Bundle({}).value();
  EXPECT_EQ(Bundle({}).value(), bundle);
  const Verification verification = VerifyBundle(bundle, WithKey());
  EXPECT_TRUE(verification.holds()) << ToText(verification);
  EXPECT_EQ(Find(verification, "inclusion").holds, verification.size);
  EXPECT_EQ(Find(verification, "range").holds, verification.size);
  EXPECT_EQ(Find(verification, "hits").holds, 10u);
  EXPECT_EQ(Find(verification, "sequence").holds, 2u);
}

TEST_F(ExportTest, ATenantsBundleOpensNobodyElses) {
  Fill(4);
  ExportRequest request;
  request.tenants = {"acme"};
  request.range = {3, 5};
  const std::string bundle = Bundle(request).value();
  const Verification verification = VerifyBundle(bundle, WithKey());
  EXPECT_TRUE(verification.holds()) << ToText(verification);
  EXPECT_EQ(Find(verification, "sequence").holds, 1u);
  EXPECT_TRUE(Find(verification, "sequence").unknown.empty());
  EXPECT_EQ(bundle.find("globex"), std::string::npos);
  // Nothing of it comes later: whether it is the last cannot be known.
  request.range.reset();
  const Verification whole = VerifyBundle(Bundle(request).value(), WithKey());
  EXPECT_TRUE(whole.holds()) << ToText(whole);
  EXPECT_EQ(Find(whole, "sequence").unknown.size(), 1u);
}

TEST_F(ExportTest, ATenantWithoutEntriesInTheRangeIsShownToHaveNone) {
  Fill(4);
  ExportRequest request;
  request.tenants = {"acme"};
  request.range = {4, 4};  // globex's
  const Verification verification = VerifyBundle(Bundle(request).value(), WithKey());
  EXPECT_TRUE(verification.holds()) << ToText(verification);
  EXPECT_EQ(Find(verification, "sequence").holds, 1u);
  EXPECT_TRUE(Find(verification, "sequence").unknown.empty());
}

TEST_F(ExportTest, TimesAreResolvedToEntries) {
  Fill(2);
  ExportRequest request;
  request.since = reader_->Entry(2, false).value().leaf.time;
  request.until = request.since;
  const Result<std::string> bundle = Bundle(request);
  ASSERT_TRUE(bundle.ok()) << bundle.error().message;
  EXPECT_LE(VerifyBundle(*bundle, {}).from, 2u);
  EXPECT_GE(VerifyBundle(*bundle, {}).to, 2u);
  request.since = *request.until + 1'000'000'000'000;
  request.until.reset();
  EXPECT_EQ(Bundle(request).error().code, Code::kInvalid);
}

TEST_F(ExportTest, WhatNoCheckpointCoversIsRefused) {
  Fill(1);
  ExportRequest request;
  request.range = {0, 1000};
  EXPECT_EQ(Bundle(request).error().code, Code::kInvalid);
  request.range = {2, 1};
  EXPECT_EQ(Bundle(request).error().code, Code::kInvalid);
}

TEST_F(ExportTest, ACheckpointOfAnotherTreeIsNotContinued) {
  Fill(2);
  const auto& key = keys_.signer->key();
  const std::string fork =
      store::SignNote(store::FormatCheckpoint({key.name, 3, Sha256("fork"), ""}), *keys_.signer)
          .value();
  ExportRequest request;
  request.checkpoints = {fork};
  EXPECT_EQ(Bundle(request).error().code, Code::kCorrupt);
}

TEST_F(ExportTest, WitnessesAreTheOnesThatSigned) {
  Fill(1);
  const std::string seed(32, 'w');
  const store::CosignerKey witness =
      store::MakeCosignerKey("witness.example", Ed25519PublicKey(seed));
  const std::string text = checkpoint_.substr(0, checkpoint_.find("\n\n") + 1);
  const std::string line = store::SignCosignature(witness, seed, text, 1'796'054'400);
  const std::string bundle = Bundle({}, checkpoint_ + line).value();
  VerifyOptions options = WithKey();
  options.witnesses = {witness};
  const Verification signed_one = VerifyBundle(bundle, options);
  EXPECT_TRUE(signed_one.holds()) << ToText(signed_one);
  EXPECT_EQ(Find(signed_one, "witnesses").holds, 1u);
  EXPECT_FALSE(VerifyBundle(Bundle({}).value(), options).holds());
  options.witnesses = {store::MakeCosignerKey("other.example", Ed25519PublicKey(seed))};
  EXPECT_FALSE(VerifyBundle(bundle, options).holds());
}

TEST_F(ExportTest, StoredCosignaturesAreTakenAndDamagedOnesLeftOut) {
  Fill(2);
  const std::string seed(32, 'w');
  const store::CosignerKey witness =
      store::MakeCosignerKey("witness.example", Ed25519PublicKey(seed));
  const auto row = [](char kind, uint64_t size) {
    std::string key(1, kind);
    AppendU64(key, size);
    return key;
  };
  const uint64_t size = VerifyBundle(Bundle({}).value(), {}).size;
  const std::string older =
      store::SignNote(store::FormatCheckpoint({keys_.signer->key().name, 3,
                                               store::RootAt(3, reader_->nodes()).value(), ""}),
                      *keys_.signer)
          .value();
  VerifyOptions options = WithKey();
  options.witnesses = {witness};
  ExportRequest early;
  early.range = {0, 2};
  for (const std::string& note : {checkpoint_, older}) {
    const uint64_t covered = note == older ? 3 : size;
    const std::string text = note.substr(0, note.find("\n\n") + 1);
    const std::string line = store::SignCosignature(witness, seed, text, 1'796'054'400);
    store::Batch batch;
    batch.Delete(store::Table::kAnchor, row(1, size));
    batch.Put(store::Table::kAnchor, row(1, covered), note + line);
    // A timestamp's row whose checkpoint is none of this log.
    batch.Put(store::Table::kAnchor, row(2, 2), std::string("\0\0\0\1xy", 6));
    ASSERT_TRUE(kv_.Commit(batch, true).ok());
    const Verification whole = VerifyBundle(Bundle({}).value(), options);
    EXPECT_TRUE(whole.holds()) << ToText(whole);
    EXPECT_EQ(Find(whole, "witnesses").holds, covered == size ? 1u : 0u);
    EXPECT_EQ(Find(whole, "witnesses").unknown.size(), covered == size ? 0u : 1u);
    const Verification part = VerifyBundle(Bundle(early).value(), options);
    EXPECT_TRUE(part.holds()) << ToText(part);
    EXPECT_EQ(Find(part, "witnesses").holds, 1u);
  }
  store::Batch damage;
  damage.Put(store::Table::kAnchor, row(1, 3), "garbage");
  ASSERT_TRUE(kv_.Commit(damage, true).ok());
  const Verification without = VerifyBundle(Bundle({}).value(), WithKey());
  EXPECT_TRUE(without.holds()) << ToText(without);
  EXPECT_FALSE(VerifyBundle(Bundle({}).value(), options).holds());
}

TEST_F(ExportTest, AnswersThatComeOutOtherwiseFail) {
  Fill(1);
  const std::string bundle = Bundle({}).value();
  VerifyOptions options = WithKey();
  std::map<uint64_t, std::string> executed;
  options.execute = [&](const ExecutableEntry& entry) -> Status {
    executed[entry.entry] = std::string(entry.response);
    if (entry.entry == 1) return {};
    return Error{Code::kCorrupt, "other bytes"};
  };
  const Verification verification = VerifyBundle(bundle, options);
  EXPECT_FALSE(verification.holds());
  EXPECT_EQ(Find(verification, "reexecution").holds, 1u);
  EXPECT_EQ(Find(verification, "reexecution").fails.size(), 1u);
  EXPECT_EQ(executed.at(1), "answer to question 0");
}

}  // namespace
}  // namespace verbatim::audit
