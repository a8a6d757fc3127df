// The rows of log, but for its name and level.
#include "policies/rows.h"
#include "policies/schema.h"

namespace verbatim::policies {

namespace {

constexpr uint64_t kMaxSeconds = 31 * 86'400;

bool IsVkey(const std::string& text) {
  return text.size() <= 500 && std::count(text.begin(), text.end(), '+') >= 2 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c != 0x7f; });
}

std::vector<Row> WitnessRows(WitnessConfig& w) {
  return {Text("url", w.url, "https://HOST[:PORT][/PATH], without user, query or fragment", IsUrl),
          Text("vkey", w.vkey, "the witness's key: NAME+HASH+BASE64", IsVkey)};
}

std::string CheckWitness(const WitnessConfig& w) {
  return w.url.empty() || w.vkey.empty() ? "a witness must have url and vkey" : "";
}

}  // namespace

void AddLogRows(std::vector<Row>& rows, LogConfig& c) {
  const std::string url = "https://HOST[:PORT][/PATH], without user, query or fragment";
  const std::string label = "1 to 4096 bytes of text";
  rows.push_back(Flag("log.public", c.open));
  rows.push_back(
      Text("log.key.pkcs11.module", c.pkcs11.module, "a PKCS#11 library's name", Anything));
  rows.push_back(Text("log.key.pkcs11.token", c.pkcs11.token, label, Anything));
  rows.push_back(Text("log.key.pkcs11.label", c.pkcs11.label, label, Anything));
  rows.push_back(Text("log.key.pkcs11.wrapping_label", c.pkcs11.wrapping_label, label, Anything));
  rows.push_back(Secret("log.key.pkcs11.pin", c.pkcs11.pin));
  rows.push_back(ListOf("log.witnesses", "a list of {url: URL, vkey: KEY}", c.witnesses,
                        WitnessRows, CheckWitness));
  rows.push_back(Integer("log.quorum", c.quorum, 0, 100));
  rows.push_back(Integer("log.interval_seconds", c.interval_seconds, 1, kMaxSeconds));
  rows.push_back(Integer("log.max_age_seconds", c.max_age_seconds, 1, kMaxSeconds));
  rows.push_back(Text("log.ca_file", c.ca_file, "a PEM file's name", Anything));
  rows.push_back(Text("log.timestamps.url", c.timestamps.url, url, IsUrl));
  rows.push_back(
      Text("log.timestamps.ca_file", c.timestamps.ca_file, "a PEM file's name", Anything));
  rows.push_back(
      Integer("log.timestamps.interval_seconds", c.timestamps.interval_seconds, 1, kMaxSeconds));
  rows.push_back(Integer("log.heartbeat_seconds", c.heartbeat_seconds, 0, kMaxSeconds));
}

std::string CheckLog(const LogConfig& c) {
  const Pkcs11Config& p = c.pkcs11;
  const bool whole = !p.module.empty() && !p.token.empty() && !p.label.empty() && !p.pin.empty();
  const bool none = p.module.empty() && p.token.empty() && p.label.empty() && p.pin.empty() &&
                    p.wrapping_label.empty();
  if (!whole && !none) {
    return "log.key.pkcs11: module, token, label and pin are given together; allowed: all four, or "
           "none";
  }
  if (c.quorum > c.witnesses.size()) {
    return "log.quorum: " + std::to_string(c.quorum) + " of " + std::to_string(c.witnesses.size()) +
           " witnesses cannot be; allowed: 0 (more than half) to the number of log.witnesses";
  }
  if (c.timestamps.url.empty() != c.timestamps.ca_file.empty()) {
    return "log.timestamps: url and ca_file are given together; allowed: both, or none";
  }
  return "";
}

}  // namespace verbatim::policies
