// Shows the log's heads to others in the background: to witnesses, which cosign them
// (c2sp.org/tlog-witness), and to a time-stamping authority (RFC 3161). No append waits for them;
// what they answer is checked and kept by store/anchors.h.
//
// A round shows one checkpoint to every witness that is not still busy with an earlier one, and
// takes as long as it takes. Threads: one of its own; every method may be called from any thread.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "policies/log_config.h"
#include "store/anchor_options.h"

namespace verbatim::store {
class Ledger;
}

namespace verbatim::gateway {

// What the ledger needs to know of the configuration. kInvalid: a key of a witness that is none, or
// two witnesses of one key.
Result<store::AnchorOptions> ToAnchorOptions(const policies::LogConfig& config);
store::TokenConfig ToTokenConfig(const policies::Pkcs11Config& config);

class Anchoring {
 public:
  // Null where there is nobody to show heads to. The ledger was opened with ToAnchorOptions(config)
  // and outlives this. Errors: kInvalid, kNotFound with what to correct.
  static Result<std::unique_ptr<Anchoring>> Start(const policies::LogConfig& config,
                                                  store::Ledger& ledger);
  virtual ~Anchoring() = default;  // breaks off what is under way
};

}  // namespace verbatim::gateway
