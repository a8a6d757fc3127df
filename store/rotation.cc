#include "store/rotation.h"

#include "base/log.h"

namespace verbatim::store {

Status SettleRotation(const DataFolder& folder, const TokenConfig& token, const Reader& reader,
                      LogSigner& signer) {
  Result<std::vector<LogKey>> keys = reader.LogKeys();
  if (!keys.ok()) return keys.error();
  const std::string newest = FormatVerifierKey(keys->back().key);
  Result<std::shared_ptr<const Signer>> next = LoadNextSigner(folder, token);
  if (!next.ok()) return next.error();
  if (FormatVerifierKey(signer.key()) == newest) return *next ? DropNextSigner(folder) : Status();
  if (!*next || FormatVerifierKey((*next)->key()) != newest) {
    return Error{Code::kFailedPrecondition,
                 folder.keys() + "/log.key is not the log's newest key, " + newest +
                     "; restore keys/ from a backup that was made after its rotation"};
  }
  if (Status taken = TakeNextSigner(folder); !taken.ok()) return taken;
  signer.Replace(*next);
  return {};
}

std::string RotationText(const VerifierKey& old_key, const VerifierKey& new_key) {
  return "verbatim-new-key-1\n" + old_key.name + "\n" + FormatVerifierKey(old_key) + "\n" +
         FormatVerifierKey(new_key) + "\n";
}

json::Value RotationDetail(const Signer& old_key, const VerifierKey& new_key) {
  json::Value detail = json::Value::MakeObject();
  detail.Set("old", FormatVerifierKey(old_key.key()));
  detail.Set("new", FormatVerifierKey(new_key));
  Result<std::string> signature = old_key.Sign(RotationText(old_key.key(), new_key));
  if (signature.ok()) {
    detail.Set("signature", Base64Encode(*signature));
  } else {
    LogWarning("ledger: the old key does not sign for the new one: " + signature.error().message);
  }
  return detail;
}

}  // namespace verbatim::store
