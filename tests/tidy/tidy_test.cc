// Keeps the tree as the design draws it: folders include each other one way only, third-party types
// stay in the files that own them, headers form no cycle, and sources carry no leftovers.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

struct Source {
  std::string path;  // relative, "store/ledger.cc"
  std::string folder;
  std::vector<std::string> ours;    // "store/kv.h"
  std::vector<std::string> system;  // "rocksdb/db.h"
  std::vector<std::string> lines;
};

const std::map<std::string, std::set<std::string>> kArrows = {
    {"base", {}},
    {"kernels", {"base"}},
    {"engine", {"kernels", "base"}},
    {"policies", {"base"}},
    {"store", {"base"}},
    {"gateway", {"engine", "policies", "store", "base"}},
    {"audit", {"gateway", "engine", "policies", "store", "base"}},
    {"cli", {"audit", "gateway", "engine", "policies", "store", "kernels", "base"}},
    {"bench", {"audit", "gateway", "engine", "policies", "store", "kernels", "base"}},
};

// A third-party header (by prefix) and the files (by prefix) that may include it.
const std::vector<std::pair<std::string, std::vector<std::string>>> kOwners = {
    {"rocksdb/", {"store/kv_rocksdb.cc"}},
    {"yaml-cpp/", {"policies/loader.cc"}},
    {"simdjson", {"base/bytes.cc"}},
    {"pcre2", {"engine/", "gateway/redaction_patterns.cc"}},
    {"openssl/",
     {"base/crypto.cc", "base/signature.cc", "gateway/server_tls.cc", "gateway/upstream/tls",
      "store/timestamp.cc"}},
    {"p11-kit/", {"store/pkcs11.cc"}},
    {"boost/", {"gateway/", "cli/cmd_serve.cc"}},
    {"prometheus/", {"gateway/metrics.cc"}},
    {"CLI/", {"cli/"}},
    {"cublas", {"kernels/cuda/"}},
    {"nccl", {"kernels/cuda/"}},
};

std::vector<Source> ReadSources() {
  static const std::regex include(R"(^\s*#\s*include\s*(["<])([^">]+)[">])");
  std::vector<Source> out;
  const fs::path root = VERBATIM_SOURCE_DIR;
  for (const auto& [folder, allowed] : kArrows) {
    if (!fs::exists(root / folder)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      const std::string ext = entry.path().extension();
      if (ext != ".h" && ext != ".cc" && ext != ".cu" && ext != ".cuh") continue;
      Source s{fs::relative(entry.path(), root).string(), folder, {}, {}, {}};
      std::ifstream file(entry.path());
      for (std::string line; std::getline(file, line);) {
        std::smatch m;
        if (std::regex_search(line, m, include)) {
          (m[1] == "\"" ? s.ours : s.system).push_back(m[2]);
        }
        s.lines.push_back(std::move(line));
      }
      out.push_back(std::move(s));
    }
  }
  return out;
}

bool StartsWith(const std::string& s, const std::string& prefix) { return s.rfind(prefix, 0) == 0; }

TEST(Tidy, FoldersIncludeOneWay) {
  const auto sources = ReadSources();
  ASSERT_GT(sources.size(), 40u) << "the tree was not found";
  for (const Source& s : sources) {
    for (const std::string& header : s.ours) {
      const std::string target = header.substr(0, header.find('/'));
      EXPECT_TRUE(kArrows.count(target))
          << s.path << " includes \"" << header << "\"; write the folder: \"folder/file.h\"";
      if (target == s.folder) continue;
      EXPECT_TRUE(kArrows.at(s.folder).count(target))
          << s.path << " includes " << header << ", but " << s.folder << " may not know " << target;
    }
  }
}

TEST(Tidy, ThirdPartyStaysWithItsOwner) {
  for (const Source& s : ReadSources()) {
    for (const std::string& header : s.system) {
      for (const auto& [prefix, owners] : kOwners) {
        if (!StartsWith(header, prefix)) continue;
        bool allowed = s.folder == "bench";
        for (const std::string& owner : owners) allowed |= StartsWith(s.path, owner);
        EXPECT_TRUE(allowed) << s.path << " includes <" << header << ">, which belongs to "
                             << owners[0];
      }
    }
  }
}

TEST(Tidy, HeadersFormNoCycle) {
  std::map<std::string, std::vector<std::string>> edges;
  for (const Source& s : ReadSources()) {
    if (fs::path(s.path).extension() == ".h") edges[s.path] = s.ours;
  }
  std::map<std::string, int> state;  // 1: on the path, 2: done
  std::function<void(const std::string&, const std::string&)> visit =
      [&](const std::string& header, const std::string& trail) {
        ASSERT_NE(state[header], 1) << "include cycle: " << trail << header;
        if (state[header] == 2) return;
        state[header] = 1;
        for (const std::string& next : edges[header]) visit(next, trail + header + " -> ");
        state[header] = 2;
      };
  std::vector<std::string> headers;
  for (const auto& [header, targets] : edges) headers.push_back(header);
  for (const std::string& header : headers) visit(header, "");
}

TEST(Tidy, HeadersOpenWithTheirContract) {
  for (const Source& s : ReadSources()) {
    if (fs::path(s.path).extension() != ".h") continue;
    ASSERT_FALSE(s.lines.empty()) << s.path;
    EXPECT_TRUE(StartsWith(s.lines[0], "// ")) << s.path << " does not say what it is for";
    bool once = false;
    for (const std::string& line : s.lines) once |= line == "#pragma once";
    EXPECT_TRUE(once) << s.path << " lacks #pragma once";
  }
}

TEST(Tidy, SourcesCarryNoLeftovers) {
  static const std::regex leftover(R"(\b(TODO|FIXME|XXX|HACK)\b)");
  static const std::regex fast_math(R"(-ffast-math|-Ofast|funsafe-math)");
  for (const Source& s : ReadSources()) {
    for (size_t i = 0; i < s.lines.size(); ++i) {
      const std::string& line = s.lines[i];
      EXPECT_FALSE(std::regex_search(line, leftover)) << s.path << ":" << i + 1 << ": " << line;
      EXPECT_FALSE(std::regex_search(line, fast_math)) << s.path << ":" << i + 1 << ": " << line;
      EXPECT_EQ(line.find('\t'), std::string::npos) << s.path << ":" << i + 1 << " has a tab";
      EXPECT_FALSE(!line.empty() && line.back() == ' ')
          << s.path << ":" << i + 1 << " ends with a space";
      EXPECT_FALSE(StartsWith(line, "using namespace std;")) << s.path << ":" << i + 1;
    }
  }
}

}  // namespace
