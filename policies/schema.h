// What a YAML file may say, as tables: one row per field binds its path to the place that it sets,
// its type and what is allowed there. The same row reads a value, reports what is wrong with it,
// and writes it back as JSON. For loader.cc and policy.cc only; knows nothing of the YAML library.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "policies/config.h"
#include "policies/policy.h"

namespace verbatim::policies {

// A parsed YAML value with the line that it stands on (from 1).
struct Node {
  enum class Kind { kNull, kScalar, kList, kMap };
  struct Entry;
  Kind kind = Kind::kNull;
  int line = 0;
  std::string text;     // of a scalar
  bool quoted = false;  // "12" is text, 12 a number
  std::vector<Node> items;
  std::vector<Entry> entries;  // keys are unique
};
struct Node::Entry {
  std::string key;
  int line = 0;
  Node value;
};

// What is wrong, at which line, with which key (a path below the row's own, or ""), and what would
// be allowed there ("": what the row says).
struct Problem {
  int line = 0;
  std::string key{};
  std::string what{};
  std::string allowed{};
};

struct Row {
  std::string path;     // "limits.body_bytes"
  std::string allowed;  // "an integer from 0 to 1048576"
  std::function<std::optional<Problem>(const Node&)> read;
  std::function<json::Value()> write;
};

// The rows of a policy and of a configuration, bound to `p` and `c`, which outlive them. The
// configuration's "policy" is not among them: loader.cc adds it, since it may name a file.
std::vector<Row> PolicyRows(Policy& p);
std::vector<Row> ConfigRows(Config& c);

// The row "upstreams" (schema_upstreams.cc).
Row UpstreamsRow(UpstreamConfigs& slot);

// The rows "access" and "tenants", and "redact" of policies (schema_tenants.cc).
Row AccessRow(AccessConfig& slot);
Row TenantsRow(Tenants& slot);
Row RedactRow(std::vector<RedactRule>& slot);

// The rows under "log" that LogConfig holds (schema_log.cc), and what is wrong with them together:
// "log.KEY: what; allowed: ...", or "".
void AddLogRows(std::vector<Row>& rows, LogConfig& c);
std::string CheckLog(const LogConfig& c);

// Sets what `root` says, through `rows`. The first problem ends it: kInvalid, "FILE:LINE: KEY:
// what; allowed: ...". `prefix` ("policy.", or "") stands before every path in errors.
Status ApplyRows(const std::vector<Row>& rows, const Node& root, const std::string& file,
                 const std::string& prefix);

// Every row's value, nested by path.
json::Value WriteRows(const std::vector<Row>& rows);

}  // namespace verbatim::policies
