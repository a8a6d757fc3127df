#include "store/witness.h"

#include <charconv>
#include <optional>

namespace verbatim::store {
namespace {

// "<decimal>\n", without leading zeros.
std::optional<uint64_t> ReadSize(std::string_view body) {
  if (!body.ends_with('\n')) return std::nullopt;
  body.remove_suffix(1);
  uint64_t size = 0;
  const char* end = body.data() + body.size();
  const auto parsed = std::from_chars(body.data(), end, size);
  if (body.empty() || parsed.ec != std::errc() || parsed.ptr != end) return std::nullopt;
  if (body.size() > 1 && body[0] == '0') return std::nullopt;
  return size;
}

}  // namespace

std::string AddCheckpointBody(uint64_t old, const std::vector<Digest>& proof,
                              std::string_view checkpoint) {
  std::string body = "old " + std::to_string(old) + "\n";
  for (const Digest& hash : proof) body += Base64Encode(AsBytes(hash)) + "\n";
  return body + "\n" + std::string(checkpoint);
}

WitnessState::Next WitnessState::Take(uint64_t size, int status, std::string_view body) {
  error_.clear();
  if (status == 200) {
    old_size_ = size;
    return Next::kCosigned;
  }
  if (status != 409) {
    error_ = "it answered " + std::to_string(status);
    if (status == 404)
      error_ += ": it does not know this log; ask its operator to add the log's key";
    if (status == 403)
      error_ += ": it knows another key of this log; tell its operator the new one";
    if (status == 422) error_ += ": it does not accept the consistency proof; run verbatim fsck";
    return Next::kRefused;
  }
  const std::optional<uint64_t> known = ReadSize(body);
  if (!known) {
    error_ = "it answered 409 without a size";
    return Next::kRefused;
  }
  if (*known > size) {
    error_ = "it has cosigned " + std::to_string(*known) + " entries of this log, which shows it " +
             std::to_string(size) + ": the log was put back, or there are two of it";
    return Next::kRefused;
  }
  if (*known == old_size_) {
    error_ = *known == size ? "it has cosigned another tree of " + std::to_string(size) +
                                  " entries: the log was put back, or there are two of it"
                            : "it answered 409 with the size that it was asked from";
    return Next::kRefused;
  }
  old_size_ = *known;
  return Next::kAgain;
}

}  // namespace verbatim::store
