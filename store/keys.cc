#include "store/keys.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>

#include "base/crypto.h"
#include "base/json.h"
#include "base/secret.h"
#include "store/pkcs11.h"

namespace verbatim::store {
namespace {

// keys/log.key holds a key in a file, or this, the verifier key, a space and the label on the
// token.
constexpr std::string_view kTokenPrefix = "PKCS11+KEY+";

Error Missing(const std::string& path) {
  return {Code::kCorrupt, path +
                              " is missing although the folder holds a log; restore keys/ from a "
                              "backup"};
}

std::string LogKeyPath(const DataFolder& folder) { return folder.keys() + "/log.key"; }
std::string NextKeyPath(const DataFolder& folder) { return folder.keys() + "/log.key.next"; }
std::string TokenPath(const DataFolder& folder) { return folder.keys() + "/token"; }

// Opens the token at the first use, and again until that succeeds.
class TokenOpener {
 public:
  explicit TokenOpener(TokenConfig config) : config_(std::move(config)) {}
  Result<std::shared_ptr<Pkcs11Token>> Get() {
    std::lock_guard lock(mutex_);
    if (token_) return token_;
    Result<std::string> pin = ReadSecret(config_.pin);
    if (!pin.ok()) return pin.error();
    Result<std::shared_ptr<Pkcs11Token>> token =
        Pkcs11Token::Open({config_.module, config_.token, *pin});
    Wipe(*pin);
    if (token.ok()) token_ = *token;
    return token;
  }

 private:
  const TokenConfig config_;
  std::mutex mutex_;
  std::shared_ptr<Pkcs11Token> token_;
};

TokenSource SourceOf(const TokenConfig& config) {
  return [opener = std::make_shared<TokenOpener>(config)] { return opener->Get(); };
}

std::string EncodeTokenFile(const TokenConfig& config) {
  json::Value v = json::Value::MakeObject();
  v.Set("module", config.module);
  v.Set("token", config.token);
  v.Set("pin", config.pin);
  if (!config.wrapping_label.empty()) v.Set("wrapping_label", config.wrapping_label);
  return json::Canonical(v) + "\n";
}

// Of the folder: what keys/token says, and where it is by now. Without a module where the folder's
// keys are in files.
Result<TokenConfig> TokenOf(const DataFolder& folder, const TokenConfig& configured) {
  Result<std::string> text = ReadFile(TokenPath(folder));
  if (!text.ok() && text.error().code == Code::kNotFound) return TokenConfig();
  if (!text.ok()) return text.error();
  const Error damaged{Code::kCorrupt, TokenPath(folder) + " is damaged; restore it from a backup"};
  Result<json::Value> v = json::Parse(*text);
  if (!v.ok() || !v->is_object()) return damaged;
  TokenConfig config;
  for (const auto& [name, slot] :
       {std::pair("module", &config.module), std::pair("token", &config.token),
        std::pair("pin", &config.pin), std::pair("wrapping_label", &config.wrapping_label)}) {
    const json::Value* member = v->Find(name);
    if (!member && slot == &config.wrapping_label) continue;
    if (!member || !member->is_string() || member->as_string().empty()) return damaged;
    *slot = member->as_string();
  }
  if (!configured.module.empty()) {
    config.module = configured.module;
    config.token = configured.token;
    config.pin = configured.pin;
  }
  return config;
}

Result<std::shared_ptr<const Signer>> SignerOf(const std::string& path, std::string text,
                                               const TokenConfig& token) {
  if (!text.empty() && text.back() == '\n') text.pop_back();
  const auto damaged = [&](const std::string& why) {
    return Error{Code::kCorrupt, path + ": " + why + "; restore it from a backup"};
  };
  if (text.starts_with(kTokenPrefix)) {
    const size_t space = text.find(' ');
    if (space == std::string::npos || token.module.empty()) {
      return damaged("it names a key on a token, and not which");
    }
    Result<VerifierKey> key = ParseVerifierKey(
        std::string_view(text).substr(kTokenPrefix.size(), space - kTokenPrefix.size()));
    if (!key.ok()) return damaged(key.error().message);
    return std::shared_ptr<const Signer>(
        MakeTokenSigner(SourceOf(token), text.substr(space + 1), std::move(*key)));
  }
  Result<std::unique_ptr<Signer>> signer = SignerFromText(text);
  Wipe(text);
  if (!signer.ok()) return damaged(signer.error().message);
  return std::shared_ptr<const Signer>(std::move(*signer));
}

// The key's text for keys/log.key.
Result<std::string> MakeKeyText(std::string_view name, const TokenConfig& token) {
  // The origin is the key's name, and a line of every checkpoint.
  if (!IsKeyName(name)) {
    return Error{Code::kInvalid,
                 "the origin may hold no spaces and no plus signs: " + std::string(name)};
  }
  if (token.module.empty()) {
    std::string seed = RandomBytes(32);
    std::string text = FormatSignerKey(name, seed) + "\n";
    Wipe(seed);
    return text;
  }
  Result<std::shared_ptr<Pkcs11Token>> opened = SourceOf(token)();
  if (!opened.ok()) return opened.error();
  Result<std::string> key = (*opened)->PublicKey(token.label);
  if (!key.ok() && key.error().code == Code::kNotFound) {
    key = (*opened)->MakeSigningKey(token.label);
  }
  if (!key.ok()) return key.error();
  return std::string(kTokenPrefix) + FormatVerifierKey(MakeVerifierKey(name, *key)) + " " +
         token.label + "\n";
}

Result<std::string> LoadSecret(const std::string& path, bool make) {
  Result<std::string> secret = LoadOrMakeSecret(path, make);
  if (!secret.ok() && secret.error().code == Code::kNotFound) return Missing(path);
  return secret;
}

Result<std::unique_ptr<KeyWrapper>> LoadWrapper(const DataFolder& folder, const TokenConfig& token,
                                                bool make) {
  if (token.wrapping_label.empty()) {
    Result<std::string> wrapping = LoadSecret(folder.keys() + "/wrapping.key", make);
    if (!wrapping.ok()) return wrapping.error();
    return MakeKeyWrapper(std::move(*wrapping));
  }
  TokenSource source = SourceOf(token);
  if (make) {
    Result<std::shared_ptr<Pkcs11Token>> opened = source();
    if (!opened.ok()) return opened.error();
    const Status made = (*opened)->MakeWrappingKey(token.wrapping_label);
    if (!made.ok() && made.error().code != Code::kAlreadyExists) return made.error();
  }
  return MakeTokenWrapper(std::move(source), token.wrapping_label);
}

}  // namespace

LogSigner::LogSigner(std::shared_ptr<const Signer> signer) { Replace(std::move(signer)); }

const VerifierKey& LogSigner::key() const {
  std::lock_guard lock(mutex_);
  return *keys_.back();
}

std::shared_ptr<const Signer> LogSigner::current() const {
  std::lock_guard lock(mutex_);
  return signer_;
}

Result<std::string> LogSigner::Sign(std::string_view message) const {
  return current()->Sign(message);
}

Status LogSigner::Check() const { return current()->Check(); }

void LogSigner::Replace(std::shared_ptr<const Signer> signer) {
  auto key = std::make_unique<const VerifierKey>(signer->key());
  std::lock_guard lock(mutex_);
  keys_.push_back(std::move(key));
  signer_ = std::move(signer);
}

std::string Keys::Pseudonym(std::string_view tenant) const {
  if (tenant.empty()) return {};
  return HexEncode(HmacSha256(tenant_key, tenant)).substr(0, 32);
}

std::string Keys::IndexKey(std::string_view name_space, const Digest& fingerprint) const {
  std::string text;
  AppendU64(text, name_space.size());
  text += name_space;
  text += AsBytes(fingerprint);
  return std::string(AsBytes(HmacSha256(index_key, text)));
}

Result<Keys> LoadKeys(const DataFolder& folder, std::string_view origin, bool make,
                      const TokenConfig& configured) {
  Result<TokenConfig> token = TokenOf(folder, configured);
  if (!token.ok()) return token.error();
  Result<std::string> text = ReadFile(LogKeyPath(folder));
  if (!text.ok() && text.error().code != Code::kNotFound) return text.error();
  if (!text.ok() && !make) return Missing(LogKeyPath(folder));
  if (!text.ok()) {
    std::string name(origin);
    if (name.empty()) name = "verbatim/" + HexEncode(RandomBytes(8));
    if (!configured.module.empty()) {
      *token = configured;
      Status written = WriteFileDurably(TokenPath(folder), EncodeTokenFile(configured));
      if (!written.ok()) return written.error();
    }
    text = MakeKeyText(name, *token);
    if (!text.ok()) return text.error();
    if (Status written = WriteFileDurably(LogKeyPath(folder), *text); !written.ok()) {
      return written.error();
    }
  }
  const std::string& wrapping = configured.wrapping_label;
  if (!wrapping.empty() && wrapping != token->wrapping_label) {
    return Error{Code::kFailedPrecondition,
                 "the keyring of this folder is wrapped by another key than " + wrapping +
                     "; leave wrapping_label as it was at the first start, or use a new folder"};
  }
  Result<std::shared_ptr<const Signer>> signer =
      SignerOf(LogKeyPath(folder), std::move(*text), *token);
  if (!signer.ok()) return signer.error();
  Result<std::unique_ptr<KeyWrapper>> wrapper = LoadWrapper(folder, *token, make);
  if (!wrapper.ok()) return wrapper.error();
  Result<std::string> tenant = LoadSecret(folder.keys() + "/tenant.key", make);
  if (!tenant.ok()) return tenant.error();
  Result<std::string> index = LoadSecret(folder.keys() + "/index.key", make);
  if (!index.ok()) return index.error();
  Keys keys;
  keys.signer = std::make_unique<LogSigner>(std::move(*signer));
  keys.wrapper = std::move(*wrapper);
  keys.tenant_key = std::move(*tenant);
  keys.index_key = std::move(*index);
  return keys;
}

Result<std::shared_ptr<const Signer>> MakeNextSigner(const DataFolder& folder,
                                                     std::string_view origin,
                                                     const TokenConfig& configured) {
  Result<TokenConfig> token = TokenOf(folder, configured);
  if (!token.ok()) return token.error();
  Result<std::string> text = MakeKeyText(origin, configured);
  if (!text.ok()) return text.error();
  if (!configured.module.empty()) {
    TokenConfig kept = configured;
    kept.wrapping_label = token->wrapping_label;
    Status written = WriteFileDurably(TokenPath(folder), EncodeTokenFile(kept));
    if (!written.ok()) return written.error();
  }
  if (Status written = WriteFileDurably(NextKeyPath(folder), *text); !written.ok()) {
    return written.error();
  }
  return SignerOf(NextKeyPath(folder), std::move(*text), configured);
}

Result<std::shared_ptr<const Signer>> LoadNextSigner(const DataFolder& folder,
                                                     const TokenConfig& configured) {
  Result<std::string> text = ReadFile(NextKeyPath(folder));
  if (!text.ok() && text.error().code == Code::kNotFound) return std::shared_ptr<const Signer>();
  if (!text.ok()) return text.error();
  Result<TokenConfig> token = TokenOf(folder, configured);
  if (!token.ok()) return token.error();
  return SignerOf(NextKeyPath(folder), std::move(*text), *token);
}

Status TakeNextSigner(const DataFolder& folder) {
  if (::rename(NextKeyPath(folder).c_str(), LogKeyPath(folder).c_str()) != 0) {
    return Error{Code::kIo, "cannot rename " + NextKeyPath(folder) + ": " + std::strerror(errno)};
  }
  return SyncFolder(folder.keys());
}

Status DropNextSigner(const DataFolder& folder) {
  if (::unlink(NextKeyPath(folder).c_str()) != 0 && errno != ENOENT) {
    return Error{Code::kIo, "cannot remove " + NextKeyPath(folder) + ": " + std::strerror(errno)};
  }
  return SyncFolder(folder.keys());
}

}  // namespace verbatim::store
