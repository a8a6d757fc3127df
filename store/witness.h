// A client of the C2SP witness protocol (c2sp.org/tlog-witness): what is sent to add-checkpoint,
// and what the answers mean. No I/O: gateway/anchoring.h sends it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "store/checkpoint.h"

namespace verbatim::store {

// The body of add-checkpoint: from the tree of `old` entries, which the witness knows, to the one
// in `checkpoint`. proof: RFC 6962 consistency proof between the two.
std::string AddCheckpointBody(uint64_t old, const std::vector<Digest>& proof,
                              std::string_view checkpoint);

// What is known of one witness. Not thread-safe.
class WitnessState {
 public:
  // The size that it is thought to have cosigned last.
  uint64_t old_size() const { return old_size_; }

  enum class Next {
    kCosigned,  // `body` has signature lines
    kAgain,     // ask again, from old_size()
    kRefused    // see error()
  };
  // The answer to add-checkpoint of the tree of `size` entries, asked from old_size().
  Next Take(uint64_t size, int status, std::string_view body);
  const std::string& error() const { return error_; }

 private:
  uint64_t old_size_ = 0;
  std::string error_;
};

}  // namespace verbatim::store
