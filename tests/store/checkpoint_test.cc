// Signed notes and checkpoints against vectors that others published.
#include "store/checkpoint.h"

#include <gtest/gtest.h>

#include "store/merkle.h"
#include "tests/store/vectors.h"

namespace verbatim::store {
namespace {

TEST(SignedNote, OpensAndRefusesWhatGoDoes) {
  VERBATIM_LOAD_VECTORS(vectors, "merkle/signed-note.json");
  for (const json::Value& v : vectors.Find("open")->items()) {
    std::vector<VerifierKey> keys;
    for (const json::Value& key : v.Find("vkeys")->items()) {
      keys.push_back(ParseVerifierKey(key.as_string()).value());
    }
    const std::string bytes = Base64Decode(v.Find("note_b64")->as_string()).value();
    const std::string want = v.Find("want")->as_string();
    const Result<Note> note = OpenNote(bytes, keys);
    SCOPED_TRACE(v.Find("desc")->as_string());
    ASSERT_EQ(note.ok(), want == "ok") << (note.ok() ? "" : note.error().message);
    if (!note.ok()) {
      if (want.starts_with("error: ")) {
        EXPECT_NE(note.error().message.find(want.substr(7)), std::string::npos)
            << note.error().message;
      }
      continue;
    }
    std::vector<std::string> names[2];
    for (const NoteSignature& s : note->verified) names[0].push_back(s.name);
    for (const NoteSignature& s : note->unverified) names[1].push_back(s.name);
    for (int i = 0; i < 2; ++i) {
      std::vector<std::string> wanted;
      for (const json::Value& name : v.Find(i == 0 ? "verified" : "unverified")->items()) {
        wanted.push_back(name.as_string());
      }
      EXPECT_EQ(names[i], wanted);
    }
  }
}

TEST(SignedNote, VerifierKeys) {
  VERBATIM_LOAD_VECTORS(vectors, "merkle/signed-note.json");
  for (const json::Value& v : vectors.Find("vkeys")->items()) {
    const std::string text = v.Find("vkey")->as_string();
    const Result<VerifierKey> key = ParseVerifierKey(text);
    EXPECT_EQ(key.ok(), v.Find("ok")->as_bool()) << text;
    if (key.ok()) {
      EXPECT_EQ(FormatVerifierKey(*key), text);
    }
  }
}

TEST(SignedNote, SignsByteForByte) {
  VERBATIM_LOAD_VECTORS(vectors, "merkle/signed-note.json");
  const json::Value& v = *vectors.Find("sign");
  const auto signer = SignerFromText(v.Find("skey_published_test_only")->as_string()).value();
  EXPECT_EQ(SignNote(v.Find("text")->as_string(), *signer).value(), v.Find("want")->as_string());
  EXPECT_FALSE(SignNote("no newline at the end", *signer).ok());
  EXPECT_FALSE(SignNote("a tab\tinside\n", *signer).ok());
}

TEST(SignedNote, NamesOfKeys) {
  for (const char* name :
       {"", "a b", "a+b", "a\tb", "a\nb", "a\xC2\xA0z", "a\xE2\x80\x83z", "\xFF"}) {
    EXPECT_FALSE(IsKeyName(name)) << name;
  }
  for (const char* name : {"a", "verbatim/0123456789abcdef", "B\xC3\xBCro"}) {
    EXPECT_TRUE(IsKeyName(name)) << name;
  }
}

TEST(Checkpoint, ParsesStrictly) {
  VERBATIM_LOAD_VECTORS(vectors, "merkle/checkpoint-parse.json");
  for (const json::Value& v : vectors.items()) {
    const std::string body = v.Find("body")->as_string();
    const Result<TreeHead> head = ParseCheckpoint(body);
    SCOPED_TRACE(v.Find("desc")->as_string());
    if (!v.Find("ok")->as_bool()) {
      EXPECT_FALSE(head.ok());
      continue;
    }
    const json::Value& want = *v.Find("want");
    // Their parser takes roots of any length; ours those of SHA-256 only.
    if (!want.Find("hash_bytes")->is_null() && want.Find("hash_bytes")->as_string().size() != 32) {
      EXPECT_FALSE(head.ok());
      continue;
    }
    ASSERT_TRUE(head.ok()) << head.error().message;
    EXPECT_EQ(head->origin, want.Find("origin")->as_string());
    EXPECT_EQ(head->size, want.Find("size")->AsUint64());
    EXPECT_EQ(head->rest, want.Find("rest")->as_string());
    EXPECT_EQ(FormatCheckpoint(*head), body);
  }
}

TEST(Checkpoint, SameEntriesAndKeyGiveTesserasBytes) {
  VERBATIM_LOAD_VECTORS(keys, "merkle/tessera-log/KEYS.json");
  const auto signer = SignerFromText(keys.Find("skey_published_test_only")->as_string()).value();
  const VerifierKey key = ParseVerifierKey(keys.Find("vkey")->as_string()).value();
  EXPECT_EQ(FormatVerifierKey(signer->key()), FormatVerifierKey(key));
  const json::Array& leaves = keys.Find("leaves")->items();
  CompactRange tree;
  for (size_t size = 0; size <= leaves.size(); ++size) {
    const std::string note =
        SignNote(FormatCheckpoint({key.name, size, tree.Root(), ""}), *signer).value();
    const std::string file =
        VectorsFolder() + "/merkle/tessera-log/checkpoint." + std::to_string(size);
    EXPECT_EQ(note, ReadFile(file).value()) << file;
    EXPECT_EQ(OpenCheckpoint(note, key).value().root, tree.Root());
    std::string flipped = note;
    flipped[30] ^= 1;
    EXPECT_FALSE(OpenCheckpoint(flipped, key).ok());
    if (size < leaves.size()) tree.Append(LeafHash(leaves[size].as_string()), nullptr);
  }
}

TEST(Checkpoint, AnotherLogsIsRefused) {
  const std::string seed(32, 's');
  const auto signer = SignerFromText(FormatSignerKey("one.example/log", seed)).value();
  const std::string note =
      SignNote(FormatCheckpoint({"two.example/log", 0, EmptyRoot(), ""}), *signer).value();
  EXPECT_FALSE(OpenCheckpoint(note, signer->key()).ok());
}

}  // namespace
}  // namespace verbatim::store
