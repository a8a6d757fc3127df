#include "store/promise.h"

#include <charconv>
#include <vector>

#include "base/clock.h"

namespace verbatim::store {
namespace {

constexpr std::string_view kFirstLine = "verbatim-promise-1";

bool FitsLine(std::string_view text) { return text.find('\n') == std::string_view::npos; }

Error Malformed(const char* what) {
  return {Code::kInvalid, std::string("malformed promise: ") + what};
}

}  // namespace

Result<std::string> FormatPromise(const Promise& promise) {
  if (!FitsLine(promise.request_id) || !FitsLine(promise.origin) || !FitsLine(promise.tenant)) {
    return Malformed("a part of it has several lines");
  }
  std::string what = "hit ";
  if (promise.entry) what = "entry " + std::to_string(*promise.entry) + " ";
  what += Base64Encode(AsBytes(promise.hash));
  return std::string(kFirstLine) + "\n" + promise.origin + "\n" + promise.request_id + "\n" +
         promise.tenant + "\n" + what + "\n" + FormatTime(promise.given) + "\n" +
         FormatTime(promise.until) + "\n";
}

Result<Promise> ParsePromise(std::string_view text) {
  const std::string whole(text);
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    if (end == std::string_view::npos) return Malformed("the last line has no end");
    lines.push_back(text.substr(0, end));
    text.remove_prefix(end + 1);
  }
  if (lines.size() != 7 || lines[0] != kFirstLine) return Malformed("it has other lines");
  Promise promise;
  promise.origin = lines[1];
  promise.request_id = lines[2];
  promise.tenant = lines[3];
  std::string_view what = lines[4];
  if (what.starts_with("entry ")) {
    what.remove_prefix(6);
    uint64_t entry = 0;
    const auto parsed = std::from_chars(what.data(), what.data() + what.size(), entry);
    if (parsed.ec != std::errc()) return Malformed("the entry is no number");
    promise.entry = entry;
    what = std::string_view(parsed.ptr, what.data() + what.size());
  } else if (what.starts_with("hit")) {
    what.remove_prefix(3);
  }
  if (!what.starts_with(' ')) return Malformed("it promises nothing");
  Result<std::string> hash = Base64Decode(what.substr(1));
  if (!hash.ok() || hash->size() != 32) return Malformed("the hash is not the base64 of 32 bytes");
  promise.hash = ToDigest(*hash);
  Result<int64_t> given = ParseTime(std::string(lines[5]));
  Result<int64_t> until = ParseTime(std::string(lines[6]));
  if (!given.ok() || !until.ok()) return Malformed("a time is none");
  promise.given = *given;
  promise.until = *until;
  // Only the one spelling.
  Result<std::string> again = FormatPromise(promise);
  if (!again.ok() || *again != whole) return Malformed("it is not spelled as the format says");
  return promise;
}

Result<Promise> OpenPromise(std::string_view note, std::span<const LogKey> keys) {
  std::vector<VerifierKey> all;
  for (const LogKey& key : keys) all.push_back(key.key);
  Result<Note> opened = OpenNote(note, all);
  if (!opened.ok()) return opened.error();
  Result<Promise> promise = ParsePromise(opened->text);
  if (!promise.ok()) return promise;
  for (const LogKey& key : keys) {
    if (key.key.name == promise->origin) return promise;
  }
  return Error{Code::kCorrupt, "the promise is of another log: " + promise->origin};
}

}  // namespace verbatim::store
