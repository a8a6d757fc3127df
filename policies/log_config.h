// How the log earns trust (docs/trust.md): who holds its key, who witnesses and dates its heads,
// and how often it shows a sign of life. Plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace verbatim::policies {

// A PKCS#11 token that holds keys of the log.
struct Pkcs11Config {
  std::string module;          // the token's library, a shared object; "": keys are in files
  std::string token;           // the token's label
  std::string label;           // of the log's key pair
  std::string wrapping_label;  // of the AES key that wraps the keyring; "": keys/wrapping.key
  std::string pin;             // env:NAME or file:PATH
};

struct WitnessConfig {
  std::string url;   // add-checkpoint is below it
  std::string vkey;  // C2SP, type 4
};

struct TimestampConfig {
  std::string url;                    // of a time-stamping authority; "": none
  std::string ca_file;                // PEM: who issued its certificate
  uint64_t interval_seconds = 3'600;  // a token each, where the log grew
};

struct LogConfig {
  bool open = false;  // everyone may read /log
  Pkcs11Config pkcs11;
  std::vector<WitnessConfig> witnesses;
  uint64_t quorum = 0;             // witnesses that must have cosigned; 0: more than half
  uint64_t interval_seconds = 5;   // between two checkpoints that are shown to them
  uint64_t max_age_seconds = 600;  // of the quorum, for /readyz
  std::string ca_file;             // PEM: who issued the witnesses' certificates; "": the system's
  TimestampConfig timestamps;
  uint64_t heartbeat_seconds = 3'600;  // a leaf where nothing else was committed so long; 0: none
};

}  // namespace verbatim::policies
