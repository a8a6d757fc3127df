#include "store/pkcs11.h"

#include <dlfcn.h>
#include <p11-kit/pkcs11.h>

#include <algorithm>
#include <mutex>
#include <vector>

#include "base/crypto.h"

namespace verbatim::store {
namespace {

constexpr size_t kNonceBytes = 12, kTagBytes = 16;
// DER of the object identifier 1.3.101.112 (Ed25519, RFC 8410), and the name that older tokens
// take in its place: PrintableString "edwards25519" (PKCS#11 3.0, 6.3.8).
constexpr std::string_view kEd25519Oid("\x06\x03\x2b\x65\x70", 5);
constexpr std::string_view kEd25519Name(
    "\x13\x0c"
    "edwards25519",
    14);

unsigned char* Bytes(std::string_view s) {
  return reinterpret_cast<unsigned char*>(const_cast<char*>(s.data()));
}

Error Failed(const std::string& what, CK_RV rv) {
  char code[32];
  std::snprintf(code, sizeof(code), "0x%lx", static_cast<unsigned long>(rv));
  std::string why = std::string("PKCS#11 error ") + code;
  Code kind = Code::kUnavailable;
  if (rv == CKR_PIN_INCORRECT || rv == CKR_PIN_INVALID || rv == CKR_PIN_LEN_RANGE) {
    why = "the PIN is wrong; correct what log.key.pkcs11.pin refers to before the token locks";
    kind = Code::kInvalid;
  }
  if (rv == CKR_PIN_LOCKED) {
    why = "the PIN is locked; its security officer can unlock it";
    kind = Code::kInvalid;
  }
  if (rv == CKR_MECHANISM_INVALID) {
    why = "the token does not have that mechanism; use another token or keys in files";
    kind = Code::kUnsupported;
  }
  if (rv == CKR_TOKEN_NOT_PRESENT || rv == CKR_DEVICE_REMOVED) why = "the token is not there";
  return {kind, "the token cannot " + what + ": " + why};
}

std::string Padded(const unsigned char* text, size_t size) {
  std::string out(reinterpret_cast<const char*>(text), size);
  out.erase(out.find_last_not_of(' ') + 1);
  return out;
}

CK_ATTRIBUTE Attribute(CK_ATTRIBUTE_TYPE type, std::string_view value) {
  return {type, Bytes(value), value.size()};
}
template <typename T>
CK_ATTRIBUTE Attribute(CK_ATTRIBUTE_TYPE type, T& value) {
  return {type, &value, sizeof(value)};
}

class Token : public Pkcs11Token {
 public:
  Token(CK_FUNCTION_LIST* f, CK_SLOT_ID slot, std::string pin)
      : f_(*f), slot_(slot), pin_(std::move(pin)) {}
  ~Token() override {
    // Other users of the library in this process stay logged in: no C_Logout, no C_Finalize.
    if (session_ != 0) (void)f_.C_CloseSession(session_);
    Wipe(pin_);
  }

  Status LogIn() {
    std::lock_guard lock(mutex_);
    return Session();
  }

  Result<std::string> MakeSigningKey(const std::string& label) override {
    std::lock_guard lock(mutex_);
    if (Status s = Free(label, CKO_PRIVATE_KEY); !s.ok()) return s.error();
    const std::string id = RandomBytes(8);
    CK_BBOOL yes = CK_TRUE, no = CK_FALSE;
    CK_MECHANISM mechanism = {CKM_EC_EDWARDS_KEY_PAIR_GEN, nullptr, 0};
    CK_OBJECT_HANDLE public_key = 0, private_key = 0;
    CK_RV rv = CKR_OK;
    for (const std::string_view curve : {kEd25519Oid, kEd25519Name}) {
      CK_ATTRIBUTE for_public[] = {Attribute(CKA_TOKEN, yes), Attribute(CKA_VERIFY, yes),
                                   Attribute(CKA_LABEL, std::string_view(label)),
                                   Attribute(CKA_ID, std::string_view(id)),
                                   Attribute(CKA_EC_PARAMS, curve)};
      CK_ATTRIBUTE for_private[] = {Attribute(CKA_TOKEN, yes),
                                    Attribute(CKA_PRIVATE, yes),
                                    Attribute(CKA_SIGN, yes),
                                    Attribute(CKA_SENSITIVE, yes),
                                    Attribute(CKA_EXTRACTABLE, no),
                                    Attribute(CKA_LABEL, std::string_view(label)),
                                    Attribute(CKA_ID, std::string_view(id))};
      rv = f_.C_GenerateKeyPair(session_, &mechanism, for_public, std::size(for_public),
                                for_private, std::size(for_private), &public_key, &private_key);
      if (rv == CKR_OK) break;
    }
    if (rv != CKR_OK) return Lost("make an Ed25519 key", rv);
    return ReadPublicKey(label);
  }

  Status MakeWrappingKey(const std::string& label) override {
    std::lock_guard lock(mutex_);
    if (Status s = Free(label, CKO_SECRET_KEY); !s.ok()) return s;
    CK_BBOOL yes = CK_TRUE, no = CK_FALSE;
    CK_ULONG size = 32;
    CK_ATTRIBUTE attributes[] = {
        Attribute(CKA_TOKEN, yes),      Attribute(CKA_PRIVATE, yes),
        Attribute(CKA_ENCRYPT, yes),    Attribute(CKA_DECRYPT, yes),
        Attribute(CKA_SENSITIVE, yes),  Attribute(CKA_EXTRACTABLE, no),
        Attribute(CKA_VALUE_LEN, size), Attribute(CKA_LABEL, std::string_view(label))};
    CK_MECHANISM mechanism = {CKM_AES_KEY_GEN, nullptr, 0};
    CK_OBJECT_HANDLE key = 0;
    const CK_RV rv =
        f_.C_GenerateKey(session_, &mechanism, attributes, std::size(attributes), &key);
    return rv == CKR_OK ? Status() : Status(Lost("make an AES key", rv));
  }

  Result<std::string> PublicKey(const std::string& label) override {
    std::lock_guard lock(mutex_);
    if (Status s = Session(); !s.ok()) return s.error();
    return ReadPublicKey(label);
  }

  Result<std::string> Sign(const std::string& label, std::string_view message) override {
    std::lock_guard lock(mutex_);
    Result<CK_OBJECT_HANDLE> key = Key(label, CKO_PRIVATE_KEY);
    if (!key.ok()) return key.error();
    CK_MECHANISM mechanism = {CKM_EDDSA, nullptr, 0};
    CK_RV rv = f_.C_SignInit(session_, &mechanism, *key);
    if (rv != CKR_OK) return Lost("sign", rv);
    std::string signature(256, '\0');
    CK_ULONG size = signature.size();
    rv = f_.C_Sign(session_, Bytes(message), message.size(), Bytes(signature), &size);
    if (rv != CKR_OK) return Lost("sign", rv);
    signature.resize(size);
    return signature;
  }

  Result<std::string> Seal(const std::string& label, std::string_view nonce, std::string_view aad,
                           std::string_view plaintext) override {
    return Gcm(label, nonce, aad, plaintext, true);
  }
  Result<std::string> Open(const std::string& label, std::string_view nonce, std::string_view aad,
                           std::string_view sealed) override {
    return Gcm(label, nonce, aad, sealed, false);
  }

 private:
  // Whatever failed may have lost the session: the next call opens another.
  Error Lost(const std::string& what, CK_RV rv) {
    (void)f_.C_CloseSession(session_);
    session_ = 0;
    return Failed(what, rv);
  }

  Status Session() {
    if (session_ != 0) {
      CK_SESSION_INFO info;
      if (f_.C_GetSessionInfo(session_, &info) == CKR_OK && info.state == CKS_RW_USER_FUNCTIONS) {
        return {};
      }
      (void)f_.C_CloseSession(session_);
      session_ = 0;
    }
    CK_RV rv =
        f_.C_OpenSession(slot_, CKF_SERIAL_SESSION | CKF_RW_SESSION, nullptr, nullptr, &session_);
    if (rv != CKR_OK) {
      session_ = 0;
      return Failed("open a session", rv);
    }
    rv = f_.C_Login(session_, CKU_USER, Bytes(pin_), pin_.size());
    if (rv != CKR_OK && rv != CKR_USER_ALREADY_LOGGED_IN) return Lost("log in", rv);
    return {};
  }

  Result<std::vector<CK_OBJECT_HANDLE>> Find(const std::string& label, CK_OBJECT_CLASS kind) {
    if (Status s = Session(); !s.ok()) return s.error();
    CK_ATTRIBUTE wanted[] = {Attribute(CKA_CLASS, kind),
                             Attribute(CKA_LABEL, std::string_view(label))};
    CK_RV rv = f_.C_FindObjectsInit(session_, wanted, std::size(wanted));
    if (rv != CKR_OK) return Lost("search its keys", rv);
    std::vector<CK_OBJECT_HANDLE> found(2);
    CK_ULONG count = 0;
    rv = f_.C_FindObjects(session_, found.data(), found.size(), &count);
    (void)f_.C_FindObjectsFinal(session_);
    if (rv != CKR_OK) return Lost("search its keys", rv);
    found.resize(count);
    return found;
  }
  Status Free(const std::string& label, CK_OBJECT_CLASS kind) {
    Result<std::vector<CK_OBJECT_HANDLE>> found = Find(label, kind);
    if (!found.ok()) return found.error();
    if (found->empty()) return {};
    return Error{Code::kAlreadyExists,
                 "the token has a key with the label " + label + " already; name another label"};
  }
  Result<CK_OBJECT_HANDLE> Key(const std::string& label, CK_OBJECT_CLASS kind) {
    Result<std::vector<CK_OBJECT_HANDLE>> found = Find(label, kind);
    if (!found.ok()) return found.error();
    if (found->size() == 1) return found->front();
    if (found->empty()) {
      return Error{Code::kNotFound, "the token has no key with the label " + label +
                                        "; correct log.key.pkcs11, or use the token that has it"};
    }
    return Error{Code::kInvalid,
                 "the token has several keys with the label " + label + "; remove the others"};
  }

  Result<std::string> ReadPublicKey(const std::string& label) {
    Result<CK_OBJECT_HANDLE> key = Key(label, CKO_PUBLIC_KEY);
    if (!key.ok()) return key.error();
    std::string point(256, '\0');
    CK_ATTRIBUTE attribute = {CKA_EC_POINT, Bytes(point), point.size()};
    const CK_RV rv = f_.C_GetAttributeValue(session_, *key, &attribute, 1);
    if (rv != CKR_OK) return Lost("show its public key", rv);
    point.resize(std::min<size_t>(attribute.ulValueLen, point.size()));
    // 32 bytes, which most tokens wrap into a DER OCTET STRING.
    if (point.size() == 34 && point.starts_with("\x04\x20")) point.erase(0, 2);
    if (point.size() == 32) return point;
    return Error{Code::kUnsupported, "the key with the label " + label + " is not an Ed25519 key"};
  }

  Result<std::string> Gcm(const std::string& label, std::string_view nonce, std::string_view aad,
                          std::string_view in, bool seal) {
    CHECK(nonce.size() == kNonceBytes);
    std::lock_guard lock(mutex_);
    Result<CK_OBJECT_HANDLE> key = Key(label, CKO_SECRET_KEY);
    if (!key.ok()) return key.error();
    CK_GCM_PARAMS gcm = {Bytes(nonce), nonce.size(), 8 * nonce.size(),
                         Bytes(aad),   aad.size(),   8 * kTagBytes};
    CK_MECHANISM mechanism = {CKM_AES_GCM, &gcm, sizeof(gcm)};
    const std::string what = seal ? "wrap a key" : "unwrap a key";
    CK_RV rv = seal ? f_.C_EncryptInit(session_, &mechanism, *key)
                    : f_.C_DecryptInit(session_, &mechanism, *key);
    if (rv != CKR_OK) return Lost(what, rv);
    std::string out(in.size() + kTagBytes, '\0');
    CK_ULONG size = out.size();
    rv = seal ? f_.C_Encrypt(session_, Bytes(in), in.size(), Bytes(out), &size)
              : f_.C_Decrypt(session_, Bytes(in), in.size(), Bytes(out), &size);
    // Tokens report a wrong tag in more than one way; these say that the token itself is there.
    const bool refused = rv == CKR_ENCRYPTED_DATA_INVALID || rv == CKR_GENERAL_ERROR ||
                         rv == CKR_ENCRYPTED_DATA_LEN_RANGE || rv == CKR_DATA_INVALID;
    if (!seal && refused) {
      (void)Lost(what, rv);
      return Error{Code::kCorrupt, "the token does not accept the wrapped key"};
    }
    if (rv != CKR_OK) return Lost(what, rv);
    out.resize(size);
    return out;
  }

  CK_FUNCTION_LIST& f_;
  const CK_SLOT_ID slot_;
  std::string pin_;
  std::mutex mutex_;               // guards session_, and that one operation runs at a time
  CK_SESSION_HANDLE session_ = 0;  // 0: none
};

class TokenSigner : public Signer {
 public:
  TokenSigner(TokenSource source, std::string label, VerifierKey key)
      : source_(std::move(source)), label_(std::move(label)), key_(std::move(key)) {}
  const VerifierKey& key() const override { return key_; }
  Status Check() const override {
    Result<std::shared_ptr<Pkcs11Token>> token = source_();
    if (!token.ok()) return token.error();
    Result<std::string> held = (*token)->PublicKey(label_);
    if (!held.ok()) return held.error();
    if (*held == key_.public_key) return {};
    return Error{Code::kFailedPrecondition, "the token's key with the label " + label_ +
                                                " is not the log's key " + FormatVerifierKey(key_) +
                                                "; use the token that has it"};
  }
  Result<std::string> Sign(std::string_view message) const override {
    Result<std::shared_ptr<Pkcs11Token>> token = source_();
    if (!token.ok()) return token.error();
    Result<std::string> signature = (*token)->Sign(label_, message);
    if (signature.ok() && !Ed25519Verify(key_.public_key, message, *signature)) {
      return Error{Code::kUnavailable,
                   "the token's signature is not by the log's key; use the "
                   "token that has it"};
    }
    return signature;
  }

 private:
  const TokenSource source_;
  const std::string label_;
  const VerifierKey key_;
};

class TokenWrapper : public KeyWrapper {
 public:
  TokenWrapper(TokenSource source, std::string label)
      : source_(std::move(source)), label_(std::move(label)) {}
  Result<std::string> Wrap(std::string_view key, std::string_view context) const override {
    Result<std::shared_ptr<Pkcs11Token>> token = source_();
    if (!token.ok()) return token.error();
    const std::string nonce = RandomBytes(kNonceBytes);
    Result<std::string> sealed = (*token)->Seal(label_, nonce, context, key);
    if (!sealed.ok()) return sealed;
    return nonce + *sealed;
  }
  Result<std::string> Unwrap(std::string_view wrapped, std::string_view context) const override {
    if (wrapped.size() < kNonceBytes + kTagBytes) {
      return Error{Code::kCorrupt, "the wrapped key is too short"};
    }
    Result<std::shared_ptr<Pkcs11Token>> token = source_();
    if (!token.ok()) return token.error();
    return (*token)->Open(label_, wrapped.substr(0, kNonceBytes), context,
                          wrapped.substr(kNonceBytes));
  }

 private:
  const TokenSource source_;
  const std::string label_;
};

}  // namespace

Result<std::shared_ptr<Pkcs11Token>> Pkcs11Token::Open(const Pkcs11Options& options) {
  void* library = ::dlopen(options.module.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char* why = ::dlerror();
    return Error{Code::kNotFound, "the PKCS#11 module " + options.module +
                                      " does not load: " + (why ? why : "unknown error") +
                                      "; correct log.key.pkcs11.module"};
  }
  const auto get_list =
      reinterpret_cast<CK_C_GetFunctionList>(::dlsym(library, "C_GetFunctionList"));
  CK_FUNCTION_LIST* f = nullptr;
  if (!get_list || get_list(&f) != CKR_OK || !f) {
    return Error{Code::kInvalid, options.module + " is no PKCS#11 module"};
  }
  CK_C_INITIALIZE_ARGS arguments = {};
  arguments.flags = CKF_OS_LOCKING_OK;
  CK_RV rv = f->C_Initialize(&arguments);
  if (rv != CKR_OK && rv != CKR_CRYPTOKI_ALREADY_INITIALIZED) return Failed("start", rv);

  CK_ULONG count = 0;
  rv = f->C_GetSlotList(CK_TRUE, nullptr, &count);
  if (rv != CKR_OK) return Failed("list its slots", rv);
  std::vector<CK_SLOT_ID> slots(count);
  if (count > 0) rv = f->C_GetSlotList(CK_TRUE, slots.data(), &count);
  if (rv != CKR_OK) return Failed("list its slots", rv);
  slots.resize(std::min<size_t>(count, slots.size()));
  std::vector<CK_SLOT_ID> found;
  for (const CK_SLOT_ID slot : slots) {
    CK_TOKEN_INFO info;
    if (f->C_GetTokenInfo(slot, &info) != CKR_OK) continue;
    if (Padded(info.label, sizeof(info.label)) == options.token) found.push_back(slot);
  }
  if (found.size() != 1) {
    return Error{Code::kNotFound,
                 (found.empty() ? "no token has the label " : "several tokens have the label ") +
                     options.token + "; correct log.key.pkcs11.token, or insert the token"};
  }
  auto token = std::make_shared<Token>(f, found[0], options.pin);
  if (Status in = token->LogIn(); !in.ok()) return in.error();
  return std::shared_ptr<Pkcs11Token>(std::move(token));
}

std::unique_ptr<Signer> MakeTokenSigner(TokenSource source, std::string label, VerifierKey key) {
  return std::make_unique<TokenSigner>(std::move(source), std::move(label), std::move(key));
}

std::unique_ptr<KeyWrapper> MakeTokenWrapper(TokenSource source, std::string label) {
  return std::make_unique<TokenWrapper>(std::move(source), std::move(label));
}

}  // namespace verbatim::store
