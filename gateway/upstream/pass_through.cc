#include "gateway/upstream/pass_through.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "gateway/upstream/url.h"

namespace verbatim::gateway {

namespace {

using Segments = std::vector<std::string>;

// Beginnings of the paths that are recorded, below "/v1".
constexpr std::string_view kRecorded[] = {"completions", "deployments", "embeddings",
                                          "engines",     "messages",    "responses"};
// What may stand before them: an upstream whose URL has no path takes a second one.
constexpr std::string_view kRoots[] = {"api", "openai", "v1"};

template <typename Names>
bool Has(const Names& names, std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

// As the most lenient reader would have it. "" also of what only holds spaces and dots.
std::string Normal(std::string segment) {
  segment.resize(std::min(segment.find(';'), segment.size()));
  const size_t begin = segment.find_first_not_of(' ');
  if (begin == segment.npos) return "";
  segment.erase(0, begin);
  while (!segment.empty() && (segment.back() == ' ' || segment.back() == '.')) segment.pop_back();
  std::transform(segment.begin(), segment.end(), segment.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return segment;
}

// Until nothing is encoded any more; false where that takes more rounds than anyone means.
bool DecodeToTheEnd(std::string& text) {
  constexpr int kRounds = 4;
  for (int i = 0; i < kRounds; ++i) {
    std::string next = DecodePercent(text);
    if (next.size() == text.size()) return true;
    text = std::move(next);
  }
  return false;
}

bool IsPlain(std::string_view text) {
  return std::none_of(text.begin(), text.end(), [](char c) {
    return static_cast<unsigned char>(c) < ' ' || c == 0x7f || c == '\\';
  });
}

}  // namespace

bool MayPassThrough(std::string_view path) {
  std::string decoded(path);
  if (!DecodeToTheEnd(decoded) || !IsPlain(decoded)) return false;
  Segments segments;
  for (std::string_view rest = decoded; !rest.empty();) {
    const size_t end = std::min(rest.find('/'), rest.size());
    std::string segment(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (segment.empty()) continue;
    segment = Normal(std::move(segment));
    if (segment.empty()) return false;
    segments.push_back(std::move(segment));
  }
  auto at = segments.begin();
  while (at != segments.end() && Has(kRoots, *at)) ++at;
  if (at == segments.end()) return false;
  if (Has(kRecorded, *at)) return false;
  // Chats that were stored are below chat/completions, too.
  return *at != "chat" || at + 1 == segments.end() || *(at + 1) != "completions";
}

}  // namespace verbatim::gateway
