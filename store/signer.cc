#include "store/signer.h"

#include "base/bytes.h"
#include "base/crypto.h"
#include "store/note_key.h"

namespace verbatim::store {
namespace {

constexpr char kEd25519 = 1;
constexpr std::string_view kPrivatePrefix = "PRIVATE+KEY+";

class FileSigner : public Signer {
 public:
  FileSigner(VerifierKey key, std::string seed) : key_(std::move(key)), seed_(std::move(seed)) {}
  ~FileSigner() override { Wipe(seed_); }
  const VerifierKey& key() const override { return key_; }
  Result<std::string> Sign(std::string_view message) const override {
    return Ed25519Sign(seed_, message);
  }

 private:
  VerifierKey key_;
  std::string seed_;
};

}  // namespace

bool IsKeyName(std::string_view name) {
  if (name.empty() || !IsUtf8(name)) return false;
  for (const char c : name) {
    if (static_cast<uint8_t>(c) <= 0x20 || c == '+' || c == 0x7F) return false;
  }
  for (std::string_view space : {"\xC2\x85", "\xC2\xA0", "\xE1\x9A\x80", "\xE2\x80\xA8",
                                 "\xE2\x80\xA9", "\xE2\x80\xAF", "\xE2\x81\x9F", "\xE3\x80\x80"}) {
    if (name.find(space) != std::string_view::npos) return false;
  }
  for (char last = '\x80'; last <= '\x8A'; ++last) {  // U+2000 to U+200A
    const char space[] = {'\xE2', '\x80', last};
    if (name.find(std::string_view(space, 3)) != std::string_view::npos) return false;
  }
  return true;
}

Result<VerifierKey> ParseVerifierKey(std::string_view vkey) {
  Result<NoteKey> key = ParseNoteKey(vkey, "verifier key");
  if (!key.ok()) return key.error();
  if (key->data[0] != kEd25519) {
    return Error{Code::kUnsupported, "verifier key " + key->name + " is not an Ed25519 key"};
  }
  if (key->data.size() != 33) {
    return Error{Code::kInvalid, "verifier key " + key->name + " has the wrong length"};
  }
  return VerifierKey{key->name, key->id, key->data.substr(1)};
}

std::string FormatVerifierKey(const VerifierKey& key) {
  return FormatNoteKey({key.name, key.id, kEd25519 + key.public_key});
}

VerifierKey MakeVerifierKey(std::string_view name, std::string_view public_key) {
  CHECK(IsKeyName(name) && public_key.size() == 32);
  std::string key(public_key);
  return {std::string(name), NoteKeyId(name, kEd25519 + key), std::move(key)};
}

Result<std::unique_ptr<Signer>> SignerFromText(std::string_view skey) {
  if (!skey.starts_with(kPrivatePrefix)) {
    return Error{Code::kInvalid, "a signing key starts with " + std::string(kPrivatePrefix)};
  }
  Result<NoteKey> key = SplitNoteKey(skey.substr(kPrivatePrefix.size()), "signing key");
  if (!key.ok()) return key.error();
  if (key->data.size() != 33 || key->data[0] != kEd25519) {
    return Error{Code::kUnsupported, "signing key " + key->name + " is not an Ed25519 key"};
  }
  std::string seed = key->data.substr(1);
  VerifierKey verifier = MakeVerifierKey(key->name, Ed25519PublicKey(seed));
  if (verifier.id != key->id) {
    return Error{Code::kInvalid, "signing key " + key->name + ": its hash is not that of the key"};
  }
  Wipe(key->data);
  return std::unique_ptr<Signer>(
      std::make_unique<FileSigner>(std::move(verifier), std::move(seed)));
}

std::string FormatSignerKey(std::string_view name, std::string_view seed) {
  const VerifierKey key = MakeVerifierKey(name, Ed25519PublicKey(seed));
  return std::string(kPrivatePrefix) +
         FormatNoteKey({key.name, key.id, kEd25519 + std::string(seed)});
}

}  // namespace verbatim::store
