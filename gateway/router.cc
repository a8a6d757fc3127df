#include <algorithm>
#include <iterator>

#include "base/check.h"
#include "gateway/http.h"
#include "gateway/http_head.h"

namespace verbatim::gateway {
namespace {

// The part up to the next '/', taken off `path`.
std::string_view NextSegment(std::string_view& path) {
  const size_t slash = std::min(path.find('/'), path.size());
  const std::string_view segment = path.substr(0, slash);
  path.remove_prefix(std::min(slash + 1, path.size()));
  return segment;
}

// Decodes one segment; the whole path was checked, so a failure is only a split UTF-8 sequence.
bool AppendDecoded(std::string_view raw, std::vector<std::string>* out) {
  Result<std::string> decoded = PercentDecode(raw);
  if (!decoded.ok()) return false;
  out->push_back(std::move(decoded).value());
  return true;
}

bool Matches(std::string_view pattern, std::string_view path, std::vector<std::string>* params) {
  pattern.remove_prefix(1);
  path.remove_prefix(1);
  for (;;) {
    const bool last_of_path = path.find('/') == std::string_view::npos;
    const bool last_of_pattern = pattern.find('/') == std::string_view::npos;
    if (pattern == "{*}") {
      params->emplace_back(path);
      return !path.empty();
    }
    const std::string_view want = NextSegment(pattern);
    const std::string_view got = NextSegment(path);
    if (want == "{}") {
      if (got.empty() || !AppendDecoded(got, params)) return false;
    } else if (got != want) {
      if (got.find('%') == std::string_view::npos) return false;
      const Result<std::string> decoded = PercentDecode(got);
      if (!decoded.ok() || *decoded != want) return false;
    }
    if (last_of_path || last_of_pattern) return last_of_path && last_of_pattern;
  }
}

// Literal patterns before those with a parameter before those with a tail.
int Looseness(const std::string& pattern) {
  if (pattern.find("{*}") != std::string::npos) return 2;
  return pattern.find("{}") != std::string::npos ? 1 : 0;
}

// Of routes, in the order in which `allow` names them.
constexpr std::string_view kMethods[] = {"GET", "POST", "PUT", "PATCH", "DELETE"};

bool Fits(const Route& route, std::string_view method) {
  return route.method == method || (route.method == "GET" && method == "HEAD");
}

}  // namespace

void Router::Add(Route route) {
  CHECK(std::find(std::begin(kMethods), std::end(kMethods), route.method) != std::end(kMethods));
  CHECK(route.pattern.starts_with("/") && route.handler);
  for (const Route& other : routes_) {
    CHECK(other.method != route.method || other.pattern != route.pattern);
  }
  const auto place = std::find_if(routes_.begin(), routes_.end(), [&](const Route& other) {
    return Looseness(other.pattern) > Looseness(route.pattern);
  });
  if (Looseness(route.pattern) == 0) ++literals_;
  routes_.insert(place, std::move(route));
}

Router::Match Router::Find(std::string_view method, std::string_view raw_path) const {
  Match match;
  if (!raw_path.starts_with("/")) return match;
  // Most requests name a literal path, without escapes.
  for (size_t i = 0; i < literals_; ++i) {
    if (routes_[i].pattern == raw_path && Fits(routes_[i], method)) {
      match.route = &routes_[i];
      return match;
    }
  }
  std::vector<std::string_view> others;  // methods of the path
  bool own = false;
  for (const Route& route : routes_) {
    const bool tail = Looseness(route.pattern) == 2;
    // A path with a route of its own is none of a tail's, whatever the method.
    if (tail && own) break;
    std::vector<std::string> params;
    if (!Matches(route.pattern, raw_path, &params)) continue;
    if (Fits(route, method)) {
      match.route = &route;
      match.params = std::move(params);
      return match;
    }
    others.push_back(route.method);
    own = own || !tail;
  }
  for (const std::string_view other : kMethods) {
    if (std::find(others.begin(), others.end(), other) == others.end()) continue;
    match.allow += other;
    match.allow += other == "GET" ? ", HEAD, " : ", ";
  }
  if (!others.empty()) match.allow += "OPTIONS";
  return match;
}

}  // namespace verbatim::gateway
