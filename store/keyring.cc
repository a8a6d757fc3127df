#include "store/keyring.h"

#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <vector>

#include "base/bytes.h"
#include "base/crypto.h"
#include "store/data_folder.h"

namespace verbatim::store {
namespace {

// Segment file: magic (16), version u32, wrapped key's length u32, segment number u64, wrapped key,
// rows. Row: nonce (12), sealed key and salt (64), tag (16); all zero: erased.
constexpr std::string_view kMagic("verbatim-keyring", 16);
constexpr uint32_t kVersion = 1;
constexpr size_t kHeaderBytes = 32, kNonceBytes = 12, kRowBytes = 12 + 64 + 16;
constexpr size_t kMaxWrappedBytes = 4096;
constexpr size_t kCachedSegments = 64;
constexpr uint64_t kMaxSegments = uint64_t{1} << 40;  // so that slots fit 64 bits

std::string RowContext(const std::string& segment_context, uint64_t row) {
  std::string context = segment_context;
  AppendU64(context, row);
  return context;
}

}  // namespace

Result<std::string> LoadOrMakeSecret(const std::string& path, bool make) {
  Result<std::string> secret = ReadFile(path);
  if (!secret.ok() && secret.error().code == Code::kNotFound && make) {
    std::string made = RandomBytes(32);
    if (Status written = WriteFileDurably(path, made); !written.ok()) return written.error();
    return made;
  }
  if (secret.ok() && secret->size() != 32) {
    return Error{Code::kCorrupt, path + " is not a key of 32 bytes; restore it from a backup"};
  }
  return secret;
}

Result<std::unique_ptr<Keyring>> Keyring::Open(std::string folder, std::string name,
                                               const KeyWrapper& wrapper, bool make) {
  if (make) {
    if (Status made = MakeFolder(folder); !made.ok()) return made.error();
  }
  std::unique_ptr<Keyring> ring(new Keyring(std::move(folder), std::move(name), wrapper));
  DIR* entries = ::opendir(ring->folder_.c_str());
  if (!entries) {
    return Error{Code::kIo, "cannot read " + ring->folder_ + ": " + std::strerror(errno) +
                                "; restore the keyring from a backup"};
  }
  // Segments are made in order and never removed: their number is one past the highest.
  std::vector<std::string> unfinished;
  while (const dirent* entry = ::readdir(entries)) {
    const std::string_view file(entry->d_name);
    if (file.ends_with(".keys.new")) unfinished.emplace_back(file);
    uint64_t number = 0;
    const auto parsed = std::from_chars(file.data(), file.data() + file.size(), number);
    if (parsed.ec != std::errc()) continue;
    if (ring->SegmentPath(number) != ring->folder_ + "/" + std::string(file)) continue;
    if (number >= kMaxSegments) continue;
    ring->end_ = std::max(ring->end_, number + 1);
  }
  ::closedir(entries);
  // What a killed write left may hold keys that are erased later.
  for (const std::string& file : unfinished) ::unlink((ring->folder_ + "/" + file).c_str());
  return ring;
}

std::string Keyring::SegmentPath(uint64_t segment) const {
  std::string number = std::to_string(segment);
  if (number.size() < 8) number.insert(0, 8 - number.size(), '0');
  return folder_ + "/" + number + ".keys";
}

std::string Keyring::Context(uint64_t number) const {
  std::string context = "verbatim-keyring-1/" + name_ + "/";
  AppendU64(context, number);
  return context;
}

Result<std::shared_ptr<const Keyring::Segment>> Keyring::Load(uint64_t number) const {
  uint64_t erasures = 0;
  {
    std::lock_guard lock(mutex_);
    erasures = erasures_;
    if (number >= end_) {
      return Error{Code::kNotFound,
                   "keyring " + name_ + " has no segment " + std::to_string(number)};
    }
    const auto found = std::find_if(cache_.begin(), cache_.end(),
                                    [&](const auto& s) { return s->number == number; });
    if (found != cache_.end()) {
      cache_.splice(cache_.begin(), cache_, found);
      return cache_.front();
    }
  }
  const std::string path = SegmentPath(number);
  const Error damaged{Code::kCorrupt,
                      "keyring segment " + path + " is damaged; restore it from a backup"};
  Result<std::string> file = ReadFile(path);
  if (!file.ok()) {
    if (file.error().code == Code::kNotFound) return damaged;
    return file.error();
  }
  const std::string_view bytes = *file;
  if (bytes.size() < kHeaderBytes || bytes.substr(0, kMagic.size()) != kMagic) return damaged;
  const uint32_t version = ReadU32(bytes.substr(16));
  const size_t wrapped = ReadU32(bytes.substr(20));
  if (version != kVersion) {
    return Error{Code::kUnsupported,
                 path + " has version " + std::to_string(version) + "; this build reads version 1"};
  }
  if (wrapped > kMaxWrappedBytes || ReadU64(bytes.substr(24)) != number ||
      bytes.size() != kHeaderBytes + wrapped + kSlotsPerSegment * kRowBytes) {
    return damaged;
  }
  Result<std::string> key = wrapper_.Unwrap(bytes.substr(kHeaderBytes, wrapped), Context(number));
  if (!key.ok()) {
    return Error{key.error().code, path + ": its key does not unwrap (" + key.error().message +
                                       "); restore segment and wrapping key from one backup"};
  }
  if (key->size() != 32) return damaged;
  auto segment = std::make_shared<Segment>(
      Segment{number, std::move(*key), std::string(bytes.substr(kHeaderBytes + wrapped))});
  std::lock_guard lock(mutex_);
  if (erasures != erasures_) return std::shared_ptr<const Segment>(segment);
  cache_.push_front(segment);
  if (cache_.size() > kCachedSegments) cache_.pop_back();
  return std::shared_ptr<const Segment>(segment);
}

Result<SlotKeys> Keyring::Get(uint64_t slot) const {
  const uint64_t number = slot / kSlotsPerSegment, row = slot % kSlotsPerSegment;
  Result<std::shared_ptr<const Segment>> segment = Load(number);
  if (!segment.ok()) return segment.error();
  const std::string_view bytes =
      std::string_view((*segment)->rows).substr(row * kRowBytes, kRowBytes);
  if (bytes.find_first_not_of('\0') == std::string_view::npos) {
    return Error{Code::kNotFound, "the keys of slot " + std::to_string(slot) + " were erased"};
  }
  Result<std::string> opened =
      AesGcmOpen((*segment)->key, bytes.substr(0, kNonceBytes), RowContext(Context(number), row),
                 bytes.substr(kNonceBytes));
  if (!opened.ok()) {
    return Error{Code::kCorrupt, "keyring " + name_ + ", slot " + std::to_string(slot) +
                                     ": the row is damaged; restore " + SegmentPath(number)};
  }
  SlotKeys keys{opened->substr(0, 32), opened->substr(32)};
  Wipe(*opened);
  return keys;
}

Status Keyring::Prepare(uint64_t slot) {
  const uint64_t wanted = slot / kSlotsPerSegment;
  std::lock_guard making(making_mutex_);
  for (uint64_t number = End() / kSlotsPerSegment; number <= wanted; ++number) {
    std::string key = RandomBytes(32);
    Result<std::string> wrapped = wrapper_.Wrap(key, Context(number));
    if (!wrapped.ok()) return wrapped.error();
    CHECK(wrapped->size() <= kMaxWrappedBytes);
    std::string file(kMagic);
    AppendU32(file, kVersion);
    AppendU32(file, static_cast<uint32_t>(wrapped->size()));
    AppendU64(file, number);
    file += *wrapped;
    std::string secrets = RandomBytes(kSlotsPerSegment * 64);
    const std::string nonces = RandomBytes(kSlotsPerSegment * kNonceBytes);
    const std::string context = Context(number);
    for (uint64_t row = 0; row < kSlotsPerSegment; ++row) {
      const auto nonce = std::string_view(nonces).substr(row * kNonceBytes, kNonceBytes);
      file += nonce;
      file += AesGcmSeal(key, nonce, RowContext(context, row),
                         std::string_view(secrets).substr(row * 64, 64));
    }
    Wipe(secrets);
    Wipe(key);
    if (Status written = WriteFileDurably(SegmentPath(number), file); !written.ok()) return written;
    std::lock_guard lock(mutex_);
    end_ = number + 1;
  }
  return {};
}

Status Keyring::Erase(const Ranges& slots) {
  std::lock_guard making(making_mutex_);
  const uint64_t end = End();
  uint64_t next = 0;  // segment
  for (const auto& [first, last] : slots.ranges()) {
    if (first >= end) break;
    const uint64_t from = std::max(next, first / kSlotsPerSegment);
    const uint64_t to = std::min(last, end - 1) / kSlotsPerSegment;
    for (uint64_t segment = from; segment <= to; ++segment) {
      if (Status erased = EraseIn(segment, slots); !erased.ok()) return erased;
    }
    next = std::max(next, to + 1);
  }
  return {};
}

Status Keyring::EraseIn(uint64_t segment, const Ranges& slots) {
  const std::string path = SegmentPath(segment);
  // Checks the file; what is written is its bytes but for the rows.
  if (Result<std::shared_ptr<const Segment>> sound = Load(segment); !sound.ok()) {
    return sound.error();
  }
  Result<std::string> file = ReadFile(path);
  if (!file.ok()) return file.error();
  const size_t rows = file->size() - kSlotsPerSegment * kRowBytes;
  bool changed = false;
  for (uint64_t row = 0; row < kSlotsPerSegment; ++row) {
    if (!slots.Contains(segment * kSlotsPerSegment + row)) continue;
    const auto begin = file->begin() + static_cast<std::ptrdiff_t>(rows + row * kRowBytes);
    const auto end = begin + kRowBytes;
    changed |= std::any_of(begin, end, [](char c) { return c != 0; });
    std::fill(begin, end, '\0');
  }
  // Without a change too: the sync that followed an earlier one may have failed.
  const Status replaced = changed ? ReplaceAndOverwrite(path, *file) : SyncFolder(folder_);
  // Where that failed the file may have been replaced all the same, and keys that are gone there
  // must not be given out of memory.
  std::lock_guard lock(mutex_);
  ++erasures_;
  cache_.remove_if([&](const auto& cached) { return cached->number == segment; });
  return replaced;
}

uint64_t Keyring::End() const {
  std::lock_guard lock(mutex_);
  return end_ * kSlotsPerSegment;
}

}  // namespace verbatim::store
