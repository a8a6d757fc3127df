#include "base/crypto.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "base/json.h"
#include "tests/base/vectors.h"

namespace verbatim {
namespace {

std::string Hex(std::string_view hex) { return std::move(*HexDecode(hex)); }

TEST(Crypto, Sha256) {
  // FIPS 180-4 examples.
  EXPECT_EQ(HexEncode(Sha256("")),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(HexEncode(Sha256("abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  const std::string million(1'000'000, 'a');
  const char* want = "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0";
  EXPECT_EQ(HexEncode(Sha256(million)), want);
  Sha256Stream stream;
  for (size_t at = 0, step = 1; at < million.size(); at += step, step = step * 3 % 4099 + 1) {
    stream.Update(std::string_view(million).substr(at, step));
  }
  EXPECT_EQ(HexEncode(stream.Finish()), want);
}

TEST(Crypto, HmacSha256) {
  // RFC 4231, cases 1, 2 and 6.
  EXPECT_EQ(HexEncode(HmacSha256(std::string(20, '\x0b'), "Hi There")),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(HexEncode(HmacSha256("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(HexEncode(HmacSha256(std::string(131, '\xaa'),
                                 "Test Using Larger Than Block-Size Key - Hash Key First")),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(Crypto, AKeyThatIsExpandedOnceGivesTheSame) {
  for (const std::string& key : {std::string(), std::string("Jefe"), std::string(131, '\xaa')}) {
    HmacSha256Key expanded(key);
    for (const std::string& text :
         {std::string(), std::string("Hi There"), std::string(5000, 'x')}) {
      EXPECT_EQ(HexEncode(expanded.Of(text)), HexEncode(HmacSha256(key, text)));
    }
    HmacSha256Key moved(std::move(expanded));
    EXPECT_EQ(HexEncode(moved.Of("again")), HexEncode(HmacSha256(key, "again")));
  }
}

TEST(Crypto, AesGcm) {
  struct Case {
    const char *key, *nonce, *aad, *plain, *sealed;
  };
  // The GCM specification's test cases 13, 14 and 16 (McGrew, Viega).
  const Case cases[] = {
      {"0000000000000000000000000000000000000000000000000000000000000000",
       "000000000000000000000000", "", "", "530f8afbc74536b9a963b4f1c4cb738b"},
      {"0000000000000000000000000000000000000000000000000000000000000000",
       "000000000000000000000000", "", "00000000000000000000000000000000",
       "cea7403d4d606b6e074ec5d3baf39d18d0d1c8a799996bf0265b98b5d48ab919"},
      {"feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308",
       "cafebabefacedbaddecaf888", "feedfacedeadbeeffeedfacedeadbeefabaddad2",
       "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a721c3c0c95956809532fcf0e2449a"
       "6b525"
       "b16aedf5aa0de657ba637b39",
       "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa8cb08e48590dbb3da7b08b10568"
       "28838"
       "c5f61e6393ba7a0abcc9f66276fc6ece0f4e1768cddf8853bb2d551b"},
  };
  for (const Case& c : cases) {
    const std::string sealed = AesGcmSeal(Hex(c.key), Hex(c.nonce), Hex(c.aad), Hex(c.plain));
    EXPECT_EQ(HexEncode(sealed), c.sealed);
    EXPECT_EQ(*AesGcmOpen(Hex(c.key), Hex(c.nonce), Hex(c.aad), sealed), Hex(c.plain));
    for (size_t bit = 0; bit < sealed.size() * 8; ++bit) {
      std::string damaged = sealed;
      damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
      const auto opened = AesGcmOpen(Hex(c.key), Hex(c.nonce), Hex(c.aad), damaged);
      ASSERT_FALSE(opened.ok()) << "bit " << bit;
      ASSERT_EQ(opened.error().code, Code::kCorrupt);
    }
    EXPECT_FALSE(AesGcmOpen(Hex(c.key), Hex(c.nonce), Hex(c.aad) + "x", sealed).ok());
    EXPECT_FALSE(AesGcmOpen(Hex(c.key), Hex(c.nonce), Hex(c.aad), sealed.substr(0, 15)).ok());
  }
}

TEST(Crypto, Ed25519) {
  struct Case {
    const char *seed, *key, *message, *signature;
  };
  // RFC 8032, section 7.1, tests 1 to 3.
  const Case cases[] = {
      {"9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
       "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a", "",
       "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf"
       "9b46b"
       "d25bf5f0595bbe24655141438e7a100b"},
      {"4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
       "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c", "72",
       "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f"
       "11d8c"
       "387b2eaeb4302aeeb00d291612bb0c00"},
      {"c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
       "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025", "af82",
       "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984"
       "dc659"
       "4a7c15e9716ed28dc027beceea1ec40a"},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(HexEncode(Ed25519PublicKey(Hex(c.seed))), c.key);
    EXPECT_EQ(HexEncode(Ed25519Sign(Hex(c.seed), Hex(c.message))), c.signature);
    EXPECT_TRUE(Ed25519Verify(Hex(c.key), Hex(c.message), Hex(c.signature)));
    EXPECT_FALSE(Ed25519Verify(Hex(c.key), Hex(c.message) + "x", Hex(c.signature)));
    EXPECT_FALSE(Ed25519Verify(Hex(c.key), Hex(c.message), Hex(c.signature).substr(1)));
  }
}

// The verifier follows the rule of ref10 and OpenSSL: cofactorless, S below the order, R compared
// as bytes, keys of low order accepted. Apart are only signatures whose k was taken over a
// re-encoded R or A while A has low order: there k does not matter, and they verify.
TEST(Crypto, Ed25519EdgeCasesFollowOneRule) {
  SKIP_WITHOUT_VECTORS("ed25519");
  const auto cases = json::Parse(test::ReadFile(test::Vectors("ed25519/cctv-subset.json")));
  ASSERT_TRUE(cases.ok());
  size_t apart = 0;
  for (const json::Value& c : cases->items()) {
    const bool got = Ed25519Verify(Hex(c.Find("key")->as_string()), c.Find("msg")->as_string(),
                                   Hex(c.Find("sig")->as_string()));
    const bool ref10 = c.Find("expect")->Find("ref10_openssl")->as_bool();
    if (got == ref10) continue;
    ++apart;
    bool reencoded = false, low_order = false;
    for (const json::Value& flag : c.Find("flags")->items()) {
      reencoded |= flag.as_string() == "reencoded_k";
      low_order |= flag.as_string() == "low_order_A";
    }
    EXPECT_TRUE(got && reencoded && low_order) << json::Serialize(c);
  }
  EXPECT_GT(cases->items().size(), 50u);
  EXPECT_LE(apart, 9u);
}

// Nobody gets what another one got: not another call, thread or process.
TEST(Crypto, RandomBytesAreGivenOnce) {
  std::vector<std::string> drawn;
  for (const size_t n : {0u, 1u, 12u, 255u, 256u, 257u, 1024u, 5000u}) {
    EXPECT_EQ(RandomBytes(n).size(), n);
  }
  for (int i = 0; i < 2000; ++i) drawn.push_back(RandomBytes(12));
  std::vector<std::string> of_thread;
  std::thread([&] {
    for (int i = 0; i < 2000; ++i) of_thread.push_back(RandomBytes(12));
  }).join();
  drawn.insert(drawn.end(), of_thread.begin(), of_thread.end());
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    const std::string bytes = RandomBytes(48);
    _exit(write(ends[1], bytes.data(), bytes.size()) == 48 ? 0 : 1);
  }
  std::string of_child(48, '\0');
  ASSERT_EQ(read(ends[0], of_child.data(), of_child.size()), 48);
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  const std::string here = RandomBytes(48);
  EXPECT_NE(of_child, here);
  for (size_t at = 0; at < here.size(); at += 12) {
    drawn.push_back(here.substr(at, 12));
    drawn.push_back(of_child.substr(at, 12));
  }
  std::sort(drawn.begin(), drawn.end());
  EXPECT_EQ(std::adjacent_find(drawn.begin(), drawn.end()), drawn.end());
}

TEST(Crypto, SmallThings) {
  EXPECT_EQ(RandomBytes(32).size(), 32u);
  EXPECT_NE(RandomBytes(32), RandomBytes(32));
  EXPECT_TRUE(ConstantTimeEqual("abc", "abc"));
  EXPECT_FALSE(ConstantTimeEqual("abc", "abd"));
  EXPECT_FALSE(ConstantTimeEqual("abc", "ab"));
  std::string secret = "secret";
  Wipe(secret);
  EXPECT_EQ(secret.find("secret"), std::string::npos);
}

}  // namespace
}  // namespace verbatim
