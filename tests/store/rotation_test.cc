// The log's key: rotation, and keys on a PKCS#11 token (SoftHSM, where it is installed).
#include "store/rotation.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "store/pkcs11.h"
#include "store/promise.h"
#include "store/tlog_proof.h"
#include "tests/store/ledger_fixture.h"

namespace verbatim::store {
namespace {

std::vector<LogKey> KeysOf(const LogIdentity& log) {
  std::vector<LogKey> keys;
  for (const LogIdentity::Key& key : log.keys) {
    keys.push_back({ParseVerifierKey(key.vkey).value(), key.from});
  }
  return keys;
}

class RotationTest : public LedgerFixture {
 protected:
  // What a first key's holder can check of a rotation: its signature in the leaf.
  static void CheckLeaf(const Leaf& leaf, const LogIdentity& before, const LogIdentity& after) {
    EXPECT_EQ(leaf.kind, Kind::kKeyMade);
    EXPECT_EQ(leaf.detail.Find("old")->as_string(), before.vkey);
    EXPECT_EQ(leaf.detail.Find("new")->as_string(), after.vkey);
    const VerifierKey old_key = ParseVerifierKey(before.vkey).value();
    const std::string text = RotationText(old_key, ParseVerifierKey(after.vkey).value());
    EXPECT_TRUE(Ed25519Verify(old_key.public_key, text,
                              Base64Decode(leaf.detail.Find("signature")->as_string()).value()));
  }
};

TEST_F(RotationTest, LeafComesBeforeTheNewKeysFirstHead) {
  KvMemory kv;
  auto ledger = Open(&kv);
  ASSERT_TRUE(ledger->Append(Generated("a")).ok());
  const EntryProof before = WaitForProof(*ledger, 1);
  const LogIdentity old_log = ledger->Log();
  ASSERT_EQ(old_log.keys.size(), 1u);
  const std::string stolen = ReadFile(folder_.path() + "/keys/log.key").value();

  const LogIdentity log = ledger->RotateKey({}).value();
  EXPECT_NE(log.vkey, old_log.vkey);
  EXPECT_EQ(log.origin, old_log.origin);
  ASSERT_EQ(log.keys.size(), 2u);
  EXPECT_EQ(log.keys[0].vkey, old_log.vkey);
  const uint64_t leaf = log.keys[1].from - 1;
  CheckLeaf(ledger->Entry(leaf, false).value().leaf, old_log, log);

  const EntryProof after = WaitForProof(*ledger, leaf);
  const std::vector<LogKey> keys = KeysOf(log);
  EXPECT_TRUE(OpenCheckpoint(before.checkpoint, keys).ok());
  EXPECT_TRUE(OpenCheckpoint(after.checkpoint, keys).ok());
  EXPECT_TRUE(OpenCheckpoint(after.checkpoint, keys[1].key).ok());
  EXPECT_FALSE(OpenCheckpoint(after.checkpoint, keys[0].key).ok());
  // Whoever stole the old key signs nothing any more that a log with this rotation would show.
  const auto thief = SignerFromText(stolen.substr(0, stolen.size() - 1)).value();
  for (const uint64_t size : {leaf + 1, leaf + 2, leaf + 1000}) {
    const std::string forged =
        SignNote(FormatCheckpoint({log.origin, size, Sha256("another tree"), ""}), *thief).value();
    EXPECT_TRUE(OpenCheckpoint(forged, keys[0].key).ok());
    EXPECT_FALSE(OpenCheckpoint(forged, keys).ok()) << size;
  }
  // Each key signs its own sizes only.
  std::vector<LogKey> moved = keys;
  moved[1].from = after.size + 1;
  EXPECT_EQ(OpenCheckpoint(after.checkpoint, moved).error().code, Code::kCorrupt);
  moved[1].from = 1;
  EXPECT_EQ(OpenCheckpoint(before.checkpoint, moved).error().code, Code::kCorrupt);
  // A proof from before and one of today, with the keys as they are served.
  for (const uint64_t entry : {uint64_t{1}, leaf}) {
    const EntryProof proof = ledger->Proof(entry).value();
    const TlogProof file{entry, proof.path, proof.checkpoint, ""};
    EXPECT_TRUE(
        VerifyTlogProof(file, ledger->Entry(entry, false).value().leaf_bytes, keys, {}, 0).ok());
  }
  ASSERT_TRUE(ledger->Close().ok());
  ledger.reset();
  EXPECT_TRUE(Check(kv).clean()) << Findings(Check(kv));
  ledger = Open(&kv);
  EXPECT_EQ(ledger->Log().vkey, log.vkey);
  EXPECT_EQ(ledger->RotateKey({}).value().keys.size(), 3u);
  ASSERT_TRUE(ledger->Close().ok());
  EXPECT_TRUE(Check(kv).clean()) << Findings(Check(kv));
}

TEST_F(RotationTest, IsSettledByTheDatabaseAfterACrash) {
  KvMemory kv;
  std::string old_vkey, new_vkey;
  const DataFolder folder = DataFolder::Unlocked(folder_.path());
  const std::string key_file = folder.keys() + "/log.key";
  {
    auto ledger = Open(&kv);
    old_vkey = ledger->Log().vkey;
    const std::string old_file = ReadFile(key_file).value();
    new_vkey = ledger->RotateKey({}).value().vkey;
    ASSERT_TRUE(ledger->Close().ok());
    ledger.reset();
    // As if the process had died between the commit and the files.
    ASSERT_TRUE(WriteFileDurably(key_file + ".next", ReadFile(key_file).value()).ok());
    ASSERT_TRUE(WriteFileDurably(key_file, old_file).ok());
  }
  {
    auto ledger = Open(&kv);
    EXPECT_EQ(ledger->Log().vkey, new_vkey);
    EXPECT_FALSE(std::filesystem::exists(key_file + ".next"));
    ASSERT_TRUE(ledger->Close().ok());
  }
  // A key that never became the log's is removed.
  ASSERT_TRUE(MakeNextSigner(folder, "x", {}).ok());
  {
    auto ledger = Open(&kv);
    EXPECT_EQ(ledger->Log().vkey, new_vkey);
    EXPECT_FALSE(std::filesystem::exists(key_file + ".next"));
    ASSERT_TRUE(ledger->Close().ok());
  }
  // Neither file is the key that the database names.
  ASSERT_TRUE(WriteFileDurably(key_file, FormatSignerKey("x", std::string(32, 's')) + "\n").ok());
  EXPECT_EQ(TryOpen(&kv).error().code, Code::kFailedPrecondition);
}

TEST_F(RotationTest, CommitThatFailedOrNotIsFoundOut) {
  for (const auto fault :
       {KvMemory::Fault::kNotPersisted, KvMemory::Fault::kPersistedButReported}) {
    TemporaryFolder data;
    KvMemory kv;
    LedgerOptions options;
    const auto open = [&] {
      LedgerOptions o;
      o.publish_interval_micros = 1000;
      o.control_socket = false;
      o.kv = std::make_unique<BorrowedKv>(kv);
      return Ledger::Open(DataFolder::Open(data.path()).value(), std::move(o)).value();
    };
    auto ledger = open();
    const std::string old_vkey = ledger->Log().vkey;
    WaitForProof(*ledger, 0);
    kv.FailCommit(1, fault);
    EXPECT_FALSE(ledger->RotateKey({}).ok());
    (void)ledger->Close();
    ledger.reset();
    ledger = open();
    const LogIdentity log = ledger->Log();
    EXPECT_EQ(log.keys.size(), fault == KvMemory::Fault::kNotPersisted ? 1u : 2u);
    EXPECT_EQ(log.vkey == old_vkey, fault == KvMemory::Fault::kNotPersisted);
    const EntryProof proof = WaitForProof(*ledger, ledger->Size() - 1);
    EXPECT_TRUE(OpenCheckpoint(proof.checkpoint, KeysOf(log)).ok());
    ASSERT_TRUE(ledger->Close().ok());
  }
}

TEST_F(RotationTest, PromisesAreSignedAndSpelledOneWay) {
  KvMemory kv;
  auto ledger = Open(&kv);
  ASSERT_TRUE(ledger->Append(Generated("a", "acme", "req_1")).ok());
  ASSERT_TRUE(ledger->RecordHit(HitOf(1, "req_2")).ok());
  for (const char* id : {"req_1", "req_2"}) {
    const Receipt receipt = ledger->FindReceipt(id).value();
    const std::string note = ledger->Promise(receipt).value();
    const Promise promise = OpenPromise(note, KeysOf(ledger->Log())).value();
    EXPECT_EQ(promise.request_id, id);
    EXPECT_EQ(promise.tenant, ledger->Pseudonym("acme"));
    EXPECT_EQ(promise.until - promise.given, kPromiseMicros);
    EXPECT_EQ(promise.entry.has_value(), !receipt.hit);
    const Digest hash = receipt.hit ? receipt.hit->commitment
                                    : LeafHash(ledger->Entry(1, false).value().leaf_bytes);
    EXPECT_EQ(promise.hash, hash);
    // No promise is a checkpoint.
    EXPECT_FALSE(OpenCheckpoint(note, KeysOf(ledger->Log())).ok());
    std::string forged = note;
    forged[forged.find("req_")] = 'R';
    EXPECT_EQ(OpenPromise(forged, KeysOf(ledger->Log())).error().code, Code::kCorrupt);
  }
  Promise odd{"log", "two\nlines", "t", 1, {}, 0, 0};
  EXPECT_FALSE(FormatPromise(odd).ok());
  odd.request_id = "a";
  const std::string text = FormatPromise(odd).value();
  EXPECT_TRUE(ParsePromise(text).ok());
  for (const auto& [from, to] :
       {std::pair("entry 1 ", "entry 01 "), std::pair("entry 1 ", "entry 1"),
        std::pair("entry 1 ", "leaf 1 "), std::pair("promise-1", "promise-2"),
        std::pair("entry 1 ", "hit  ")}) {
    std::string bad = text;
    bad.replace(bad.find(from), std::string(from).size(), to);
    EXPECT_FALSE(ParsePromise(bad).ok()) << bad;
  }
  EXPECT_FALSE(ParsePromise(text + "\n").ok());
  ASSERT_TRUE(ledger->Close().ok());
}

TEST_F(RotationTest, HeartbeatWhereNothingElseWasCommitted) {
  KvMemory kv;
  LedgerOptions options;
  options.heartbeat_micros = 20'000;
  auto ledger = Open(&kv, std::move(options));
  for (int i = 0; i < 1000 && ledger->Size() < 3; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  ASSERT_GE(ledger->Size(), 3u);
  EXPECT_EQ(ledger->Entry(1, false).value().leaf.kind, Kind::kHeartbeat);
  ASSERT_TRUE(ledger->Close().ok());
  EXPECT_TRUE(Check(kv).clean()) << Findings(Check(kv));
}

// A token of SoftHSM in a folder of its own.
class TokenTest : public RotationTest {
 protected:
  void SetUp() override {
    for (const char* path :
         {"/usr/lib/softhsm/libsofthsm2.so", "/usr/lib/x86_64-linux-gnu/softhsm/libsofthsm2.so"}) {
      if (std::filesystem::exists(path)) config_.module = path;
    }
    if (config_.module.empty() || std::system("command -v softhsm2-util >/dev/null") != 0) {
      GTEST_SKIP() << "no SoftHSM: tools/install --test installs it";
    }
#if defined(__SANITIZE_ADDRESS__)
    GTEST_SKIP() << "SoftHSM leaks a few bytes with each signature, in its own code";
#endif
    // The library reads its configuration once a process.
    static const TemporaryFolder tokens;
    static bool made = false;
    if (!made) {
      std::filesystem::create_directory(tokens.path("tokens"));
      std::ofstream(tokens.path("conf"))
          << "directories.tokendir = " << tokens.path("tokens") << "\nlog.level = ERROR\n";
      ::setenv("SOFTHSM2_CONF", tokens.path("conf").c_str(), 1);
      ::setenv("VERBATIM_TEST_PIN", "4711-user", 1);
      made = std::system(
                 "softhsm2-util --init-token --free --label log --so-pin so-secret "
                 "--pin 4711-user >/dev/null") == 0;
      ASSERT_TRUE(made);
    }
    config_.token = "log";
    config_.pin = "env:VERBATIM_TEST_PIN";
    config_.label = "key-" + HexEncode(RandomBytes(4));
    config_.wrapping_label = "wrap-" + HexEncode(RandomBytes(4));
  }
  LedgerOptions WithToken() const {
    LedgerOptions options;
    options.token = config_;
    return options;
  }
  TokenConfig config_;
};

TEST_F(TokenTest, SignsAndWraps) {
  KvMemory kv;
  std::string vkey;
  {
    auto ledger = Open(&kv, WithToken());
    vkey = ledger->Log().vkey;
    ASSERT_TRUE(ledger->Append(Generated("a")).ok());
    const EntryProof proof = WaitForProof(*ledger, 1);
    EXPECT_TRUE(OpenCheckpoint(proof.checkpoint, ParseVerifierKey(vkey).value()).ok());
    ASSERT_TRUE(ledger->Close().ok());
  }
  // No secret of the token is in the folder, and the folder itself says where they are.
  const DataFolder folder = DataFolder::Unlocked(folder_.path());
  EXPECT_FALSE(std::filesystem::exists(folder.keys() + "/wrapping.key"));
  EXPECT_TRUE(ReadFile(folder.keys() + "/log.key").value().starts_with("PKCS11+KEY+"));
  EXPECT_EQ(ReadFile(folder.keys() + "/token").value().find("4711"), std::string::npos);
  {
    auto ledger = Open(&kv);
    EXPECT_EQ(ledger->Log().vkey, vkey);
    EXPECT_EQ(ledger->Lookup("acme", FingerprintOf("a")).value()->response, "answer to a");
    ASSERT_TRUE(ledger->Close().ok());
  }
  EXPECT_TRUE(Check(kv).clean()) << Findings(Check(kv));
  // A key of another label on the same token is not the log's.
  TokenConfig other = config_;
  other.wrapping_label = "another";
  LedgerOptions options;
  options.token = other;
  EXPECT_EQ(TryOpen(&kv, std::move(options)).error().code, Code::kFailedPrecondition);
}

TEST_F(TokenTest, RotatesFromFileToTokenAndOn) {
  KvMemory kv;
  config_.wrapping_label.clear();
  auto ledger = Open(&kv);
  const LogIdentity first = ledger->Log();
  const LogIdentity second = ledger->RotateKey(config_).value();
  CheckLeaf(ledger->Entry(second.keys[1].from - 1, false).value().leaf, first, second);
  config_.label += "-b";
  const LogIdentity third = ledger->RotateKey(config_).value();
  CheckLeaf(ledger->Entry(third.keys[2].from - 1, false).value().leaf, second, third);
  ASSERT_TRUE(ledger->Close().ok());
  ledger.reset();
  ledger = Open(&kv);
  EXPECT_EQ(ledger->Log().vkey, third.vkey);
  // The same label again is the same key.
  EXPECT_EQ(ledger->RotateKey(config_).error().code, Code::kAlreadyExists);
  EXPECT_TRUE(ledger->Append(Generated("b")).ok());
  WaitForProof(*ledger, ledger->Size() - 1);
  ASSERT_TRUE(ledger->Close().ok());
  EXPECT_TRUE(Check(kv).clean()) << Findings(Check(kv));
}

TEST_F(TokenTest, ErrorsSayWhatToDoAndHoldNoPin) {
  ::setenv("VERBATIM_WRONG_PIN", "0815-wrong", 1);
  const struct {
    std::string TokenConfig::*field;
    const char* value;
    const char* part;
  } cases[] = {{&TokenConfig::module, "/nowhere/lib.so", "log.key.pkcs11.module"},
               {&TokenConfig::module, "libc.so.6", "no PKCS#11 module"},
               {&TokenConfig::token, "elsewhere", "log.key.pkcs11.token"},
               {&TokenConfig::pin, "env:VERBATIM_WRONG_PIN", "PIN is wrong"},
               {&TokenConfig::pin, "env:VERBATIM_NO_SUCH", "VERBATIM_NO_SUCH"}};
  for (const auto& c : cases) {
    TemporaryFolder data;
    LedgerOptions options;
    options.token = config_;
    options.token.*c.field = c.value;
    options.kv = std::make_unique<KvMemory>();
    const auto opened = Ledger::Open(DataFolder::Open(data.path()).value(), std::move(options));
    // Where the token is open already, its PIN is not asked again.
    if (opened.ok() && c.field == &TokenConfig::pin) continue;
    ASSERT_FALSE(opened.ok()) << c.part;
    EXPECT_NE(opened.error().message.find(c.part), std::string::npos) << opened.error().message;
    EXPECT_EQ(opened.error().message.find("0815"), std::string::npos);
  }
}

TEST_F(TokenTest, WrappedKeysOpenUnderTheirOwnContextOnly) {
  const auto token = Pkcs11Token::Open({config_.module, config_.token, "4711-user"}).value();
  ASSERT_TRUE(token->MakeWrappingKey(config_.wrapping_label).ok());
  EXPECT_EQ(token->MakeWrappingKey(config_.wrapping_label).error().code, Code::kAlreadyExists);
  const auto wrapper = MakeTokenWrapper(
      [&]() -> Result<std::shared_ptr<Pkcs11Token>> { return token; }, config_.wrapping_label);
  const std::string key(32, 'k');
  std::string wrapped = wrapper->Wrap(key, "context").value();
  EXPECT_EQ(wrapper->Unwrap(wrapped, "context").value(), key);
  EXPECT_EQ(wrapper->Unwrap(wrapped, "other").error().code, Code::kCorrupt);
  wrapped[20] ^= 1;
  EXPECT_EQ(wrapper->Unwrap(wrapped, "context").error().code, Code::kCorrupt);
  EXPECT_EQ(wrapper->Unwrap("short", "context").error().code, Code::kCorrupt);
  // After a refused call the token goes on working.
  EXPECT_EQ(wrapper->Unwrap(wrapper->Wrap(key, "c").value(), "c").value(), key);
  EXPECT_EQ(token->Sign("no such", "m").error().code, Code::kNotFound);
}

}  // namespace
}  // namespace verbatim::store
