// How a ledger is told who witnesses it, and where its keys are. Plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "store/cosignature.h"

namespace verbatim::store {

struct AnchorOptions {
  std::vector<CosignerKey> witnesses;
  size_t quorum = 0;           // cosignatures that a checkpoint needs; 0: no witnesses
  int64_t max_age_micros = 0;  // of the quorum
  std::string timestamp_ca;    // PEM file: who issued the time-stamping authority's certificate
};

// Where keys on a PKCS#11 token are, as configured.
struct TokenConfig {
  std::string module;          // the library; "": keys are in files
  std::string token;           // the token's label
  std::string label;           // of the log's key pair
  std::string wrapping_label;  // of the AES key of the keyring; "": keys/wrapping.key
  std::string pin;             // env:NAME or file:PATH
};

}  // namespace verbatim::store
