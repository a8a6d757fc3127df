// What others say of the log's heads: witnesses' cosignatures, and timestamps of a local authority.
#include "store/anchors.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "store/checkpoint.h"
#include "store/witness.h"
#include "tests/store/ledger_fixture.h"
#include "tests/store/vectors.h"

namespace verbatim::store {
namespace {

TEST(Witness, BodiesAreThoseOfOthers) {
  VERBATIM_LOAD_VECTORS(vectors, "merkle/witness-add-checkpoint.json");
  size_t bodies = 0;
  const auto check = [&](const json::Value& steps) {
    for (const json::Value& step : steps.items()) {
      const json::Value* body = step.Find("body");
      const json::Value* status = step.Find("status");
      if (!body || !body->is_string() || !status->is_number() || status->AsUint64() != 200u)
        continue;
      const std::string& text = body->as_string();
      const size_t blank = text.find("\n\n");
      std::vector<Digest> proof;
      size_t at = text.find('\n') + 1;
      const uint64_t old = std::stoull(text.substr(4));
      while (at < blank) {
        const size_t end = text.find('\n', at);
        proof.push_back(ToDigest(Base64Decode(text.substr(at, end - at)).value()));
        at = end + 1;
      }
      EXPECT_EQ(AddCheckpointBody(old, proof, text.substr(blank + 2)), text);
      ++bodies;
    }
  };
  check(*vectors.Find("sequence1")->Find("steps"));
  check(*vectors.Find("sequence2")->Find("steps"));
  for (const json::Value& c : vectors.Find("sequences3")->Find("cases")->items()) {
    check(*c.Find("steps"));
  }
  EXPECT_GE(bodies, 10u);
}

TEST(Witness, AnswersAndWhatTheyMean) {
  using Next = WitnessState::Next;
  const struct {
    int status;
    const char* body;
    Next next;
    uint64_t old_size;  // afterwards; before it is 5, and the tree has 9
    const char* error;
  } cases[] = {{200, "", Next::kCosigned, 9, ""},
               {409, "7\n", Next::kAgain, 7, ""},
               {409, "0\n", Next::kAgain, 0, ""},
               {409, "9\n", Next::kAgain, 9, ""},
               {409, "5\n", Next::kRefused, 5, "asked from"},
               {409, "10\n", Next::kRefused, 5, "two of it"},
               {409, "18446744073709551615\n", Next::kRefused, 5, "two of it"},
               {409, "18446744073709551616\n", Next::kRefused, 5, "without a size"},
               {409, "7", Next::kRefused, 5, "without a size"},
               {409, "07\n", Next::kRefused, 5, "without a size"},
               {409, "-7\n", Next::kRefused, 5, "without a size"},
               {409, "7\n8\n", Next::kRefused, 5, "without a size"},
               {409, "", Next::kRefused, 5, "without a size"},
               {403, "no", Next::kRefused, 5, "403"},
               {404, "no", Next::kRefused, 5, "404"},
               {422, "no", Next::kRefused, 5, "422"},
               {301, "no", Next::kRefused, 5, "301"},
               {500, "9\n", Next::kRefused, 5, "500"}};
  for (const auto& c : cases) {
    WitnessState witness;
    ASSERT_EQ(witness.Take(5, 200, ""), Next::kCosigned);
    EXPECT_EQ(witness.Take(9, c.status, c.body), c.next) << c.status << " " << c.body;
    EXPECT_EQ(witness.old_size(), c.old_size) << c.status << " " << c.body;
    EXPECT_NE(witness.error().find(c.error), std::string::npos) << witness.error();
  }
  // The same size from which it was asked: another tree of it.
  WitnessState witness;
  ASSERT_EQ(witness.Take(9, 200, ""), Next::kCosigned);
  EXPECT_EQ(witness.Take(9, 409, "9\n"), Next::kRefused);
  EXPECT_NE(witness.error().find("another tree"), std::string::npos);
}

class AnchorsTest : public LedgerFixture {
 protected:
  static constexpr int64_t kNow = 1'800'000'000'000'000;
  static std::string Seed(int i) { return std::string(32, static_cast<char>('a' + i)); }
  static CosignerKey Witness(int i) {
    return MakeCosignerKey("witness" + std::to_string(i) + ".example", Ed25519PublicKey(Seed(i)));
  }
  LedgerOptions Options(int64_t* now) {
    LedgerOptions options;
    options.now = [now] { return *now; };
    for (int i = 0; i < 3; ++i) options.anchors.witnesses.push_back(Witness(i));
    options.anchors.quorum = 2;
    options.anchors.max_age_micros = 600'000'000;
    options.anchors.timestamp_ca = folder_.path("ca.pem");
    return options;
  }
  static std::string Sign(int witness, const std::string& checkpoint, int64_t micros) {
    const Note note = ParseNote(checkpoint).value();
    return SignCosignature(Witness(witness), Seed(witness), note.text,
                           static_cast<uint64_t>(micros / 1'000'000));
  }
};

TEST_F(AnchorsTest, QuorumOfWitnesses) {
  KvMemory kv;
  int64_t now = kNow;
  auto ledger = Open(&kv, Options(&now));
  Anchors& anchors = ledger->anchors();
  const std::string head = WaitForProof(*ledger, 0).checkpoint;
  EXPECT_EQ(anchors.Cosigned(), "");
  EXPECT_EQ(anchors.Stale(), "");

  EXPECT_TRUE(anchors.AddCosignatures(head, Sign(0, head, now), Witness(0)).ok());
  EXPECT_TRUE(anchors.AddCosignatures(head, Sign(0, head, now), Witness(0)).ok());
  EXPECT_EQ(anchors.Cosigned(), "");  // one witness twice is no quorum
  EXPECT_TRUE(anchors.AddCosignatures(head, Sign(1, head, now - 60'000'000), Witness(1)).ok());
  const std::string cosigned = anchors.Cosigned();
  ASSERT_TRUE(cosigned.starts_with(head));
  EXPECT_EQ(OpenCosignatures(cosigned, Options(&now).anchors.witnesses).value().size(), 2u);
  EXPECT_EQ(anchors.quorum().size, 1u);
  EXPECT_EQ(anchors.quorum().age_micros, 60'000'000);
  // A third one makes the quorum newer.
  EXPECT_TRUE(anchors.AddCosignatures(head, Sign(2, head, now), Witness(2)).ok());
  EXPECT_EQ(anchors.quorum().age_micros, 0);

  now += 600'000'000;
  EXPECT_EQ(anchors.Stale(), "");
  now += 1'000'000;
  EXPECT_NE(anchors.Stale().find("for 601 s"), std::string::npos) << anchors.Stale();

  // It outlives the server.
  const std::string newest = anchors.Cosigned();
  ASSERT_TRUE(ledger->Close().ok());
  ledger.reset();
  ledger = Open(&kv, Options(&now));
  EXPECT_EQ(ledger->anchors().Cosigned(), newest);
  EXPECT_EQ(ReadCosigned(kv, 1).value(), newest);
  EXPECT_EQ(ReadCosigned(kv, 0).value(), "");
  // A larger head takes its place, and within the hour also in the store.
  const std::string larger = WaitForProof(*ledger, ledger->Size() - 1).checkpoint;
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(ledger->anchors().AddCosignatures(larger, Sign(i, larger, now), Witness(i)).ok());
  }
  EXPECT_TRUE(ledger->anchors().Cosigned().starts_with(larger));
  EXPECT_EQ(ReadCosigned(kv, UINT64_MAX).value(), ledger->anchors().Cosigned());
  ASSERT_TRUE(ledger->Close().ok());
  EXPECT_TRUE(Check(kv).clean()) << Findings(Check(kv));
}

TEST_F(AnchorsTest, HostileWitnesses) {
  KvMemory kv;
  int64_t now = kNow;
  auto ledger = Open(&kv, Options(&now));
  Anchors& anchors = ledger->anchors();
  const std::string head = WaitForProof(*ledger, 0).checkpoint;
  const std::string good = Sign(0, head, now);
  std::string other_head = head;
  other_head[head.find('\n') + 1] = '7';
  std::string flipped = good;
  flipped[flipped.size() - 10] = flipped[flipped.size() - 10] == 'A' ? 'B' : 'A';
  const struct {
    const char* what;
    std::string lines;
    Code code;
  } cases[] = {{"another witness's key", Sign(1, head, now), Code::kNotFound},
               {"of another head", Sign(0, other_head, now), Code::kCorrupt},
               {"one bit wrong", flipped, Code::kCorrupt},
               {"an hour ahead", Sign(0, head, now + 3'600'000'000), Code::kInvalid},
               {"an hour old", Sign(0, head, now - 3'600'000'000), Code::kInvalid},
               {"the end of time", Sign(0, head, INT64_MAX), Code::kInvalid},
               {"nothing", "", Code::kNotFound},
               {"garbage", std::string("\x00\xFF garbage", 10), Code::kInvalid},
               {"a page", "<html>\n", Code::kInvalid},
               {"no end of line", good.substr(0, good.size() - 1), Code::kInvalid},
               {"another text in front", "\nevil\n1\n\n" + good, Code::kInvalid},
               {"too many lines",
                [&] {
                  std::string lines;
                  for (int i = 0; i < 101; ++i) lines += good;
                  return lines;
                }(),
                Code::kInvalid}};
  for (const auto& c : cases) {
    const Status added = anchors.AddCosignatures(head, c.lines, Witness(0));
    ASSERT_FALSE(added.ok()) << c.what;
    EXPECT_EQ(added.error().code, c.code) << c.what << ": " << added.error().message;
  }
  EXPECT_FALSE(anchors.AddCosignatures(other_head, Sign(0, other_head, now), Witness(0)).ok());
  EXPECT_EQ(anchors.Cosigned(), "");
  // Lines of others beside the right one are passed over, and not kept.
  EXPECT_TRUE(anchors.AddCosignatures(head, Sign(1, head, now) + good, Witness(0)).ok());
  EXPECT_EQ(anchors.Cosigned(), "");
  now += 700'000'000;
  EXPECT_NE(anchors.Stale().find("yet"), std::string::npos);
  ASSERT_TRUE(ledger->Close().ok());
}

// A time-stamping authority made by the openssl program.
class TimestampTest : public AnchorsTest {
 protected:
  void SetUp() override {
    if (std::system("command -v openssl >/dev/null") != 0) GTEST_SKIP() << "no openssl";
    std::ofstream(folder_.path("tsa.cnf")) << R"(
[req]
distinguished_name = dn
prompt = no
[dn]
CN = Test Authority
[ca]
basicConstraints = critical,CA:TRUE
keyUsage = critical,keyCertSign
[tsa]
basicConstraints = CA:FALSE
keyUsage = critical,digitalSignature
extendedKeyUsage = critical,timeStamping
[web]
basicConstraints = CA:FALSE
extendedKeyUsage = serverAuth
[tsa_config]
serial = serial
crypto_device = builtin
signer_digest = sha256
default_policy = 1.2.3.4.1
digests = sha256
accuracy = secs:1
ess_cert_id_alg = sha256
)";
    for (const char* name : {"ca", "other"}) {
      Run("openssl req -x509 -config tsa.cnf -extensions ca -newkey ec -pkeyopt "
          "ec_paramgen_curve:P-256 -nodes -days 20000 -subj '/CN=" +
          std::string(name) + "' -keyout " + name + ".key -out " + name + ".pem");
    }
    MakeCertificate("tsa", "tsa", 30);
  }
  void Run(const std::string& command) {
    const std::string line = "cd '" + folder_.path("") + "' && " + command + " 2>>log";
    ASSERT_EQ(std::system(line.c_str()), 0) << command << "\n"
                                            << ReadFile(folder_.path("log")).value();
  }
  void MakeCertificate(const std::string& name, const std::string& section, int days) {
    Run("openssl req -new -config tsa.cnf -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes "
        "-keyout " +
        name + ".key -out " + name + ".csr");
    Run("openssl x509 -req -in " + name + ".csr -CA ca.pem -CAkey ca.key -CAcreateserial -days " +
        std::to_string(days) + " -extfile tsa.cnf -extensions " + section + " -out " + name +
        ".pem");
  }
  // The authority's response to the request. prefix: in front of its command ("faketime ...").
  std::string Respond(const std::string& request, const std::string& signer = "tsa") {
    std::ofstream(folder_.path("query"), std::ios::binary) << request;
    Run("openssl ts -reply -config tsa.cnf -section tsa_config -queryfile query -signer " + signer +
        ".pem -inkey " + signer + ".key -out response");
    return ReadFile(folder_.path("response")).value();
  }
};

TEST_F(TimestampTest, HoldsAtTheTimeInTheToken) {
  const std::string bytes = "checkpoint";
  const std::string response = Respond(MakeTimestampRequest(bytes, 77));
  const std::string ca = folder_.path("ca.pem");
  const Timestamp timestamp = VerifyTimestamp(response, bytes, ca).value();
  EXPECT_EQ(timestamp.nonce, 77u);
  EXPECT_NE(timestamp.authority.find("Test Authority"), std::string::npos) << timestamp.authority;
  EXPECT_LT(std::abs(timestamp.time - NowMicros()), 60'000'000);
  // The other way round: openssl accepts the response to our request.
  std::ofstream(folder_.path("data"), std::ios::binary) << bytes;
  Run("openssl ts -verify -queryfile query -in response -CAfile ca.pem >/dev/null");
  Run("openssl ts -verify -data data -in response -CAfile ca.pem >/dev/null");

  EXPECT_FALSE(VerifyTimestamp(response, "checkpoint2", ca).ok());
  EXPECT_FALSE(VerifyTimestamp(response, bytes, folder_.path("other.pem")).ok());
  EXPECT_EQ(VerifyTimestamp(response, bytes, folder_.path("none.pem")).error().code,
            Code::kNotFound);
  EXPECT_EQ(VerifyTimestamp(response, bytes, folder_.path("tsa.cnf")).error().code, Code::kInvalid);
  EXPECT_FALSE(VerifyTimestamp(response + "x", bytes, ca).ok());
  EXPECT_FALSE(VerifyTimestamp(response.substr(0, response.size() - 1), bytes, ca).ok());
  EXPECT_FALSE(VerifyTimestamp("", bytes, ca).ok());
  for (size_t i = 0; i < response.size(); i += 7) {
    std::string damaged = response;
    damaged[i] ^= 0x20;
    const Result<Timestamp> read = VerifyTimestamp(damaged, bytes, ca);
    // A bit that says nothing (of an unused text) may be any; what the token says is never another.
    if (read.ok()) {
      EXPECT_EQ(read->time, timestamp.time) << i;
    }
  }
  // A certificate that is not for time stamping.
  MakeCertificate("web", "web", 30);
  std::ofstream(folder_.path("query"), std::ios::binary) << MakeTimestampRequest(bytes, 1);
  const std::string line = "cd '" + folder_.path("") +
                           "' && openssl ts -reply -config tsa.cnf "
                           "-section tsa_config -queryfile query -signer web.pem -inkey web.key "
                           "-out web.response 2>/dev/null";
  if (std::system(line.c_str()) == 0) {
    EXPECT_FALSE(VerifyTimestamp(ReadFile(folder_.path("web.response")).value(), bytes, ca).ok());
  }
}

TEST_F(TimestampTest, IsKeptBesideTheCheckpoint) {
  KvMemory kv;
  int64_t now = kNow;
  auto ledger = Open(&kv, Options(&now));
  const std::string head = WaitForProof(*ledger, 0).checkpoint;
  const std::string response = Respond(MakeTimestampRequest(head, 5));
  EXPECT_EQ(ledger->anchors().AddTimestamp(head, response, 6).error().code, Code::kCorrupt);
  EXPECT_EQ(ledger->anchors().AddTimestamp(head + " ", response, 5).ok(), false);
  EXPECT_TRUE(ReadTimestamps(kv, 10).value().empty());
  ASSERT_TRUE(ledger->anchors().AddTimestamp(head, response, 5).ok());
  const std::vector<StoredTimestamp> stored = ReadTimestamps(kv, 10).value();
  ASSERT_EQ(stored.size(), 1u);
  EXPECT_EQ(stored[0].size, 1u);
  EXPECT_EQ(stored[0].checkpoint, head);
  EXPECT_TRUE(VerifyTimestamp(stored[0].response, head, folder_.path("ca.pem")).ok());
  ASSERT_TRUE(ledger->Close().ok());
  EXPECT_TRUE(Check(kv).clean()) << Findings(Check(kv));
}

}  // namespace
}  // namespace verbatim::store
