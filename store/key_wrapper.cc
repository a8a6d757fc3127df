#include "store/key_wrapper.h"

#include "base/crypto.h"

namespace verbatim::store {
namespace {

constexpr size_t kNonceBytes = 12;

class FileKeyWrapper : public KeyWrapper {
 public:
  explicit FileKeyWrapper(std::string key) : key_(std::move(key)) { CHECK(key_.size() == 32); }
  ~FileKeyWrapper() override { Wipe(key_); }
  Result<std::string> Wrap(std::string_view key, std::string_view context) const override {
    const std::string nonce = RandomBytes(kNonceBytes);
    return nonce + AesGcmSeal(key_, nonce, context, key);
  }
  Result<std::string> Unwrap(std::string_view wrapped, std::string_view context) const override {
    if (wrapped.size() < kNonceBytes) return Error{Code::kCorrupt, "the wrapped key is too short"};
    return AesGcmOpen(key_, wrapped.substr(0, kNonceBytes), context, wrapped.substr(kNonceBytes));
  }

 private:
  std::string key_;
};

}  // namespace

std::unique_ptr<KeyWrapper> MakeKeyWrapper(std::string key) {
  return std::make_unique<FileKeyWrapper>(std::move(key));
}

}  // namespace verbatim::store
