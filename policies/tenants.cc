#include "policies/tenants.h"

#include "base/bytes.h"

namespace verbatim::policies {

namespace {

// Greedy, with one step back to the last *: linear in each star's reach, never exponential.
bool Matches(std::string_view pattern, std::string_view name) {
  size_t p = 0, n = 0;
  size_t star = std::string_view::npos, resume = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace

const TenantConfig* FindTenant(const Tenants& tenants, std::string_view name) {
  auto it = tenants.find(std::string(name));
  if (it == tenants.end()) it = tenants.find("*");
  return it == tenants.end() ? nullptr : &it->second;
}

bool InList(const std::vector<std::string>& list, std::string_view name) {
  if (list.empty()) return true;
  for (const std::string& pattern : list) {
    if (Matches(pattern, name)) return true;
  }
  return false;
}

bool IsPrincipalName(std::string_view text) {
  if (text.empty() || text.size() > 200 || text == "*" || !IsUtf8(text)) return false;
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return false;
  }
  return true;
}

}  // namespace verbatim::policies
