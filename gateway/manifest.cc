#include "gateway/manifest.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <string_view>

#include "base/crypto.h"
#include "engine/tokenizer_pre.h"
#include "gateway/git_revision.h"
#include "store/kv_rocksdb.h"

namespace verbatim::gateway {

namespace {

// The value of the first "key : value" or KEY="value" line of a small system file; "" without one.
std::string Lookup(const char* file, std::string_view key, char separator) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (line.compare(0, key.size(), key) != 0) continue;
    size_t at = line.find(separator);
    if (at == std::string::npos) continue;
    std::string value = line.substr(at + 1);
    while (!value.empty() && (value.front() == ' ' || value.front() == '"')) value.erase(0, 1);
    while (!value.empty() && (value.back() == ' ' || value.back() == '"')) value.pop_back();
    return value;
  }
  return "";
}

// SHA-256 of the running program's file: the one statement about the build that cannot be stale.
std::string ProgramDigest() {
  std::ifstream in("/proc/self/exe", std::ios::binary);
  if (!in) return "";
  Sha256Stream hash;
  std::string block(size_t{1} << 20, '\0');
  while (in) {
    in.read(block.data(), static_cast<std::streamsize>(block.size()));
    hash.Update(std::string_view(block).substr(0, static_cast<size_t>(in.gcount())));
  }
  return HexEncode(hash.Finish());
}

json::Value Build() {
  json::Value v = json::Value::MakeObject();
  v.Set("version", VERBATIM_VERSION);
  v.Set("revision", kGitRevision);
  v.Set("compiler", VERBATIM_COMPILER);
  v.Set("flags", VERBATIM_FLAGS);
  v.Set("program", ProgramDigest());
  return v;
}

// Of shared libraries what runs, where the library says it; of headers, and of yaml-cpp and
// simdjson, which do not, what the program was built with.
json::Value Libraries() {
  json::Value v = json::Value::MakeObject();
  v.Set("boost", VERBATIM_BOOST);
  v.Set("openssl", OpenSslVersion());
  v.Set("pcre2", engine::PcreVersion());
  v.Set("rocksdb", store::RocksDbVersion());
  v.Set("simdjson", VERBATIM_SIMDJSON);
  v.Set("yaml-cpp", VERBATIM_YAML);
  return v;
}

json::Value Machine() {
  json::Value v = json::Value::MakeObject();
  v.Set("cpu", Lookup("/proc/cpuinfo", "model name", ':'));
  v.Set("cores", std::to_string(sysconf(_SC_NPROCESSORS_ONLN)));
  v.Set("os", Lookup("/etc/os-release", "PRETTY_NAME", '='));
  utsname names{};
  if (uname(&names) == 0) {
    v.Set("architecture", std::string(names.machine));
    v.Set("kernel", std::string(names.sysname) + " " + names.release);
  }
  return v;
}

}  // namespace

Manifest MakeManifest(const std::vector<std::pair<std::string, json::Value>>& backends) {
  json::Value by_name = json::Value::MakeObject();
  for (const auto& [name, description] : backends) by_name.Set(name, description);
  Manifest manifest;
  manifest.value = json::Value::MakeObject();
  manifest.value.Set("build", Build());
  manifest.value.Set("libraries", Libraries());
  manifest.value.Set("machine", Machine());
  manifest.value.Set("backends", std::move(by_name));
  manifest.canonical = json::Canonical(manifest.value);
  manifest.digest = Sha256(manifest.canonical);
  return manifest;
}

}  // namespace verbatim::gateway
