// Certificates made on the spot, for tests of TLS.
#pragma once

#include <openssl/types.h>

#include <filesystem>
#include <memory>
#include <string>

#include "gateway/upstream/tls.h"

namespace verbatim::gateway::test {

struct Issued {
  std::string certificate, key;  // PEM
};

class Authority {
 public:
  explicit Authority(const std::string& name);
  ~Authority();
  Authority(const Authority&) = delete;
  Authority& operator=(const Authority&) = delete;

  std::string certificate() const;  // PEM
  // `names` as OpenSSL writes them: "DNS:a.example,IP:127.0.0.1". Valid from yesterday until `days`
  // from now.
  Issued Issue(const std::string& names, int days = 1) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// A server's side: its own certificate, and the authority of clients that it demands, or "".
TlsContext ServerContext(const Issued& own, const std::string& client_authority = "");

// Files that go away with the test.
class TemporaryFiles {
 public:
  TemporaryFiles();
  ~TemporaryFiles();
  TemporaryFiles(const TemporaryFiles&) = delete;
  TemporaryFiles& operator=(const TemporaryFiles&) = delete;
  std::string Add(const std::string& name, const std::string& content) const;

 private:
  std::filesystem::path folder_;
};

}  // namespace verbatim::gateway::test
