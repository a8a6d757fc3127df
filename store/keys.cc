#include "store/keys.h"

#include "base/crypto.h"

namespace verbatim::store {
namespace {

Error Missing(const std::string& path) {
  return {Code::kCorrupt, path +
                              " is missing although the folder holds a log; restore keys/ from a "
                              "backup"};
}

Result<std::unique_ptr<Signer>> LoadSigner(const std::string& path, std::string_view origin,
                                           bool make) {
  Result<std::string> text = ReadFile(path);
  if (!text.ok() && text.error().code == Code::kNotFound) {
    if (!make) return Missing(path);
    std::string name(origin);
    if (name.empty()) name = "verbatim/" + HexEncode(RandomBytes(8));
    // The origin is the key's name, and a line of every checkpoint.
    if (!IsKeyName(name)) {
      return Error{Code::kInvalid, "the origin may hold no spaces and no plus signs: " + name};
    }
    std::string seed = RandomBytes(32);
    text = FormatSignerKey(name, seed) + "\n";
    Wipe(seed);
    if (Status written = WriteFileDurably(path, *text); !written.ok()) return written.error();
  }
  if (!text.ok()) return text.error();
  std::string_view line = *text;
  if (!line.empty() && line.back() == '\n') line.remove_suffix(1);
  Result<std::unique_ptr<Signer>> signer = SignerFromText(line);
  Wipe(*text);
  if (!signer.ok()) {
    return Error{Code::kCorrupt,
                 path + ": " + signer.error().message + "; restore it from a backup"};
  }
  return signer;
}

Result<std::string> LoadSecret(const std::string& path, bool make) {
  Result<std::string> secret = LoadOrMakeSecret(path, make);
  if (!secret.ok() && secret.error().code == Code::kNotFound) return Missing(path);
  return secret;
}

}  // namespace

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

Result<Keys> LoadKeys(const DataFolder& folder, std::string_view origin, bool make) {
  Keys keys;
  Result<std::unique_ptr<Signer>> signer = LoadSigner(folder.keys() + "/log.key", origin, make);
  if (!signer.ok()) return signer.error();
  Result<std::string> wrapping = LoadSecret(folder.keys() + "/wrapping.key", make);
  if (!wrapping.ok()) return wrapping.error();
  Result<std::string> tenant = LoadSecret(folder.keys() + "/tenant.key", make);
  if (!tenant.ok()) return tenant.error();
  Result<std::string> index = LoadSecret(folder.keys() + "/index.key", make);
  if (!index.ok()) return index.error();
  keys.signer = std::move(*signer);
  keys.wrapper = MakeKeyWrapper(std::move(*wrapping));
  keys.tenant_key = std::move(*tenant);
  keys.index_key = std::move(*index);
  return keys;
}

}  // namespace verbatim::store
