#include "policies/loader.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <unordered_set>

#include "base/secret.h"
#include "policies/builtin.h"
#include "policies/schema.h"

namespace verbatim::policies {

namespace {

constexpr size_t kMaxFileBytes = size_t{1} << 20;
constexpr size_t kMaxDepth = 16;
constexpr int kMaxLine = 1 << 20;

// What this file refuses of YAML, thrown through the library's parser and caught in ParseYaml.
struct Refused {
  int line;
  std::string what;
};

int Line(const YAML::Mark& mark) {
  return mark.line < 0 || mark.line > kMaxLine ? 1 : mark.line + 1;
}

// Builds a Node tree. Aliases, anchors and tags are refused as they come, so that no text can
// expand.
class TreeBuilder : public YAML::EventHandler {
 public:
  Node& root() { return root_; }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++documents_ > 1) throw Refused{Line(mark), "a second document in the file"};
  }
  void OnDocumentEnd() override {}
  void OnAnchor(const YAML::Mark& mark, const std::string&) override {
    throw Refused{Line(mark), "anchors are not allowed; write the value out"};
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    throw Refused{Line(mark), "aliases are not allowed; write the value out"};
  }
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    Place(mark, "", anchor, Node::Kind::kNull);
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    const bool quoted = tag == "!";
    if (open_.empty() || !open_.back().expects_key) {
      const bool null = !quoted && (value.empty() || value == "~" || value == "null");
      Node& node =
          Place(mark, quoted ? "" : tag, anchor, null ? Node::Kind::kNull : Node::Kind::kScalar);
      node.text = value;
      node.quoted = quoted;
      return;
    }
    CheckPlain(mark, quoted ? "" : tag, anchor);
    Open& map = open_.back();
    if (!map.keys.insert(value).second)
      throw Refused{Line(mark), value + ": the key stands there twice"};
    map.node->entries.push_back({value, Line(mark), {}});
    map.expects_key = false;
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    Push(Place(mark, tag, anchor, Node::Kind::kList), false);
  }
  void OnSequenceEnd() override { open_.pop_back(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    Push(Place(mark, tag, anchor, Node::Kind::kMap), true);
  }
  void OnMapEnd() override { open_.pop_back(); }

 private:
  struct Open {
    Node* node;
    bool is_map;
    bool expects_key;
    std::unordered_set<std::string> keys;
  };

  static void CheckPlain(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    if (anchor != 0) throw Refused{Line(mark), "anchors are not allowed; write the value out"};
    if (!tag.empty() && tag != "?") throw Refused{Line(mark), "tags are not allowed"};
  }

  // The node that the next value fills. Pointers into parents stay good: a parent grows only after
  // its last child is closed.
  Node& Place(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
              Node::Kind kind) {
    CheckPlain(mark, tag, anchor);
    Node* node = &root_;
    if (!open_.empty()) {
      Open& parent = open_.back();
      if (parent.is_map) {
        if (parent.expects_key) throw Refused{Line(mark), "a key must be a plain name"};
        parent.expects_key = true;
        node = &parent.node->entries.back().value;
      } else {
        node = &parent.node->items.emplace_back();
      }
    }
    node->kind = kind;
    // An empty value's mark stands where the next thing does: its key's line says more.
    const bool keyed = kind == Node::Kind::kNull && !open_.empty() && open_.back().is_map;
    node->line = keyed ? open_.back().node->entries.back().line : Line(mark);
    return *node;
  }

  void Push(Node& node, bool is_map) {
    if (open_.size() >= kMaxDepth) {
      throw Refused{node.line, "nested deeper than " + std::to_string(kMaxDepth) + " levels"};
    }
    open_.push_back({&node, is_map, is_map, {}});
  }

  Node root_;
  std::vector<Open> open_;
  int documents_ = 0;
};

Error At(const std::string& name, int line, const std::string& what) {
  return {Code::kInvalid, name + ":" + std::to_string(line) + ": " + what};
}

Result<Node> ParseYaml(std::string_view text, const std::string& name) {
  if (text.size() > kMaxFileBytes) return At(name, 1, "longer than 1 MiB");
  if (!IsUtf8(text)) return At(name, 1, "not valid UTF-8");
  if (text.find('\0') != std::string_view::npos) return At(name, 1, "has a NUL byte");
  TreeBuilder builder;
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const Refused& refused) {
    return At(name, refused.line, refused.what);
  } catch (const YAML::Exception& e) {
    return At(name, Line(e.mark), "not YAML: " + e.msg);
  }
  if (builder.root().kind == Node::Kind::kNull) return At(name, 1, "says nothing");
  return std::move(builder.root());
}

Result<std::string> ReadFile(const std::string& path, size_t max_bytes) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) return Error{Code::kNotFound, path + ": no such file"};
  if (std::filesystem::is_directory(status)) return Error{Code::kIo, path + ": is a folder"};
  std::ifstream in(path, std::ios::binary);
  if (!in) return Error{Code::kIo, path + ": " + std::strerror(errno)};
  std::string text(max_bytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (in.bad()) return Error{Code::kIo, path + ": cannot be read"};
  text.resize(static_cast<size_t>(in.gcount()));
  if (text.size() > max_bytes) {
    return Error{Code::kInvalid, path + ": longer than " + std::to_string(max_bytes) + " bytes"};
  }
  return text;
}

std::string InFolder(const std::string& folder, const std::string& path) {
  if (path.empty() || path[0] == '/' || folder.empty()) return path;
  return (std::filesystem::path(folder) / path).string();
}

std::string Folder(const std::string& path) {
  return std::filesystem::path(path).parent_path().string();
}

// A reference file:PATH is to `folder`, unless absolute.
void PlaceReference(std::string& reference, const std::string& folder) {
  if (reference.starts_with("file:")) {
    reference = "file:" + InFolder(folder, reference.substr(5));
  }
}

void PlaceUpstream(UpstreamConfig& upstream, const std::string& folder) {
  for (std::string* file :
       {&upstream.ca_file, &upstream.client_certificate, &upstream.client_key}) {
    *file = InFolder(folder, *file);
  }
  PlaceReference(upstream.credentials.value, folder);
  PlaceReference(upstream.proxy, folder);
  for (auto& [name, value] : upstream.headers.add) PlaceReference(value, folder);
}

void PlaceAccess(AccessConfig& access, const std::string& folder) {
  access.keys_file = InFolder(folder, access.keys_file);
  for (InlineKey& key : access.keys) PlaceReference(key.secret, folder);
  for (JwtIssuerConfig& issuer : access.issuers) issuer.keys = InFolder(folder, issuer.keys);
}

Result<Policy> PolicyFrom(const Node& node, const std::string& name, const std::string& prefix) {
  Policy policy;
  Status status = ApplyRows(PolicyRows(policy), node, name, prefix);
  if (!status) return status.error();
  return policy;
}

// The row that loader.cc adds to the configuration: a policy in place, by name, or by file.
Row PolicyRow(Config& c, const std::string& name, const std::string& folder, Status& failed) {
  return {"policy", "default, strict, a file's name, or a policy's own keys",
          [&c, &name, &folder, &failed](const Node& n) -> std::optional<Problem> {
            Result<Policy> policy = Error{};
            if (n.kind == Node::Kind::kMap) {
              policy = PolicyFrom(n, name, "policy.");
              if (policy) PlaceReference(policy->key_secret, folder);
              c.policy_source = "inline";
            } else if (n.kind == Node::Kind::kScalar) {
              const bool builtin = !BuiltinPolicyText(n.text).empty();
              c.policy_source = builtin ? n.text : InFolder(folder, n.text);
              policy = builtin ? BuiltinPolicy(n.text) : LoadPolicy(c.policy_source);
            } else {
              return Problem{n.line, "", "a list or nothing is not allowed here"};
            }
            if (policy) {
              c.policy = std::move(*policy);
              return std::nullopt;
            }
            if (policy.error().code == Code::kInvalid) failed = policy.error();  // names its place
            return Problem{n.line, "", policy.error().message};
          },
          [] { return json::Value(); }};
}

}  // namespace

Result<Policy> ParsePolicy(std::string_view yaml, const std::string& name) {
  auto root = ParseYaml(yaml, name);
  if (!root) return root.error();
  return PolicyFrom(*root, name, "");
}

Result<Policy> LoadPolicy(const std::string& path) {
  auto text = ReadFile(path, kMaxFileBytes);
  if (!text) return text.error();
  auto policy = ParsePolicy(*text, path);
  if (policy) PlaceReference(policy->key_secret, Folder(path));
  return policy;
}

std::string_view BuiltinPolicyText(std::string_view name) {
  if (name == "default") return kDefaultPolicyYaml;
  if (name == "strict") return kStrictPolicyYaml;
  return {};
}

Result<Policy> BuiltinPolicy(std::string_view name) {
  const std::string_view text = BuiltinPolicyText(name);
  if (text.empty()) {
    return Error{Code::kNotFound,
                 "no built-in policy '" + std::string(name) + "'; there are: default, strict"};
  }
  return ParsePolicy(text, std::string(name) + ".yaml");
}

Result<Config> ParseConfig(std::string_view yaml, const std::string& name,
                           const std::string& folder) {
  auto root = ParseYaml(yaml, name);
  if (!root) return root.error();
  Config config = DefaultConfig();
  Status policy_failed;
  std::vector<Row> rows = ConfigRows(config);
  rows.push_back(PolicyRow(config, name, folder, policy_failed));
  Status status = ApplyRows(rows, *root, name, "");
  if (!policy_failed) return policy_failed.error();
  if (!status) return status.error();
  if (const std::string problem = CheckLog(config.log); !problem.empty()) {
    return Error{Code::kInvalid, name + ": " + problem};
  }
  for (const Node::Entry& entry : root->entries) {
    if (entry.key == "data") config.data = InFolder(folder, config.data);
  }
  for (auto& [model_name, model] : config.models) model.file = InFolder(folder, model.file);
  for (auto& [id, upstream] : config.upstreams) PlaceUpstream(upstream, folder);
  PlaceAccess(config.access, folder);
  const std::string& access_log = config.server.access_log;
  if (access_log != "off" && access_log != "stdout" && access_log != "stderr") {
    config.server.access_log = InFolder(folder, access_log);
  }
  LogConfig& log = config.log;
  PlaceReference(log.pkcs11.pin, folder);
  for (std::string* file : {&log.ca_file, &log.timestamps.ca_file}) *file = InFolder(folder, *file);
  // A library without a folder is looked for where the system has its libraries.
  if (log.pkcs11.module.find('/') != std::string::npos) {
    log.pkcs11.module = InFolder(folder, log.pkcs11.module);
  }
  ServerTlsConfig& tls = config.server.tls;
  for (std::string* file : {&tls.certificate, &tls.key, &tls.client_ca}) {
    *file = InFolder(folder, *file);
  }
  return config;
}

Result<Config> LoadConfig(const std::string& path) {
  auto text = ReadFile(path, kMaxFileBytes);
  if (!text) return text.error();
  return ParseConfig(*text, path, Folder(path));
}

Config DefaultConfig() {
  Config config;
  config.policy = std::move(BuiltinPolicy("default").value());
  return config;
}

Result<std::string> ResolveSecret(const std::string& reference) { return ReadSecret(reference); }

}  // namespace verbatim::policies
