// The server's configuration: one YAML file (loader.h), or these defaults. Flags of the command
// line are applied on top by the command. Plain values; sizes are in bytes, times in milliseconds.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "policies/log_config.h"
#include "policies/policy.h"
#include "policies/tenants.h"
#include "policies/upstreams.h"

namespace verbatim::policies {

struct ModelConfig {
  std::string file;      // a GGUF file; relative paths are taken from the configuration's folder
  std::string fidelity;  // "wba16", "w8a16", "w16a16"; "": the default for the file
};

// Files are PEM; relative paths are taken from the configuration's folder.
struct ServerTlsConfig {
  std::string certificate;  // with its chain; "": no TLS
  std::string key;
  std::string client_ca;                     // who signs client certificates
  std::string client_certificates = "none";  // "none", "optional", "required"
  std::string min_version = "1.2";           // "1.2", "1.3"
  bool operator_certificates = false;        // routes of operators and auditors demand one
};

struct ServerConfig {
  std::string listen = "127.0.0.1:8080";  // HOST:PORT
  uint64_t threads = 0;                   // that serve connections; 0: one per core
  ServerTlsConfig tls;
  bool half_close = false;                // a client that only sends no more has not hung up
  std::string access_log = "off";         // "off", "stdout", "stderr", or a file
  uint64_t refusal_interval_ms = 60'000;  // refusals of nobody are counted in one leaf per interval
  bool generate_traceparent = false;      // for upstreams, where a client sent none
  // Limits
  uint64_t header_bytes = 64 << 10;
  uint64_t header_count = 100;
  uint64_t body_bytes = 8 << 20;
  uint64_t connections = 8192;
  uint64_t stream_buffer_bytes = 64 << 10;  // of one upstream's reply: read and not sent on
  uint64_t replies_total_bytes = uint64_t{1} << 30;  // of all of them while they are made
  uint64_t hit_memory_bytes = 64 << 20;  // results and requests that are held for hits; 0: none
  // Timeouts
  uint64_t header_ms = 10'000;
  uint64_t body_ms = 60'000;
  uint64_t write_stall_ms = 30'000;
  uint64_t keep_alive_ms = 75'000;
  uint64_t drain_ms = 20'000;
};

struct EngineConfig {
  uint64_t threads = 0;        // that compute; 0: one per core
  uint64_t max_batch = 32;     // sequences that run together
  uint64_t kv_tokens = 0;      // size of the KV cache; 0: chosen for the model
  uint64_t context_limit = 0;  // positions of a sequence; 0: the model's
  uint64_t prefill_chunk = 256;
  uint64_t queue_limit = 1024;  // requests of a tenant that wait
  bool prefix_cache = true;     // what prompts begin with is computed once, within a tenant
  std::string isa;              // "scalar", "avx2", "avx512vnni"; "": the best of this machine
};

struct Config {
  ServerConfig server;
  std::string data;  // the data folder; "": $XDG_DATA_HOME/verbatim or ~/.local/share/verbatim
  std::map<std::string, ModelConfig> models;  // by the name that clients use
  UpstreamConfigs upstreams;
  AccessConfig access;
  Tenants tenants;
  std::string origin;  // of the log; "": chosen at the first start
  LogConfig log;
  std::string log_level = "info";  // of lines on stderr: "info", "warning", "error"
  EngineConfig engine;
  Policy policy;
  std::string policy_source = "default";  // "default", "strict", a file name, or "inline"
};

}  // namespace verbatim::policies
