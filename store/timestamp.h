// RFC 3161 timestamps: a time-stamping authority's signed statement that it saw these bytes at that
// time. OpenSSL stays in timestamp.cc.
// All functions may be called from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace verbatim::store {

// DER of a TimeStampReq over the SHA-256 of `bytes`, which asks for the authority's certificate.
std::string MakeTimestampRequest(std::string_view bytes, uint64_t nonce);

struct Timestamp {
  int64_t time = 0;       // UTC, microseconds (whole seconds), by the authority's clock
  std::string authority;  // subject of its certificate, "CN = ..., O = ..."
  uint64_t nonce = 0;     // of the request; 0 where the token has none
};

// What a TimeStampResp says, where it is over the SHA-256 of `bytes`, signed by a certificate for
// time stamping, and that one's chain leads to one of those in ca_file (PEM). The chain is checked
// at the time in the token, so that a timestamp goes on holding when certificates expire. kCorrupt
// says what does not hold; kNotFound, kInvalid: ca_file.
Result<Timestamp> VerifyTimestamp(std::string_view response, std::string_view bytes,
                                  const std::string& ca_file);

}  // namespace verbatim::store
