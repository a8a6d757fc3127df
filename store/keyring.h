// Entry keys and salts, in segment files of 4,096 slots outside the database, where erasing one
// really removes it (store/FORMAT.md). A segment is made and synced whole before the first of its
// slots is used, so that an entry costs no sync of its own.
//
// Threads: every method may be called from any thread.
// Errors: kCorrupt where a segment or row does not open, kNotFound where a row was erased or its
// segment was never made, kIo.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "base/result.h"
#include "store/key_wrapper.h"
#include "store/ranges.h"

namespace verbatim::store {

// A secret of 32 random bytes kept in a 0600 file; made and synced where it is missing and `make`.
Result<std::string> LoadOrMakeSecret(const std::string& path, bool make);

struct SlotKeys {
  std::string key;   // 32 bytes
  std::string salt;  // 32 bytes
};

class Keyring {
 public:
  static constexpr uint64_t kSlotsPerSegment = 4096;

  // folder: of this ring's segments. name goes into every row's associated data ("entries",
  // "hits"). make: the folder where it is missing.
  static Result<std::unique_ptr<Keyring>> Open(std::string folder, std::string name,
                                               const KeyWrapper& wrapper, bool make);

  // The keys of a slot whose segment exists.
  Result<SlotKeys> Get(uint64_t slot) const;
  // Makes, if need be, the slot's segment, synced. Takes some 10 ms then; call it ahead.
  Status Prepare(uint64_t slot);
  // Destroys the keys of these slots: their rows are zeros afterwards, in new files that take the
  // old ones' place, and what the old ones held is overwritten before it is given back to the disk.
  // Synced when it returns ok; slots past End() are left out. Nobody may hold a second name (a
  // snapshot) of a segment meanwhile: that is the caller's to see to. Idempotent.
  Status Erase(const Ranges& slots);
  // The first slot of no segment yet.
  uint64_t End() const;
  // The path of a segment's file.
  std::string SegmentPath(uint64_t segment) const;

 private:
  struct Segment {
    uint64_t number = 0;
    std::string key;   // unwrapped
    std::string rows;  // sealed
  };
  Keyring(std::string folder, std::string name, const KeyWrapper& wrapper)
      : folder_(std::move(folder)), name_(std::move(name)), wrapper_(wrapper) {}
  Result<std::shared_ptr<const Segment>> Load(uint64_t number) const;
  Status EraseIn(uint64_t segment, const Ranges& slots);
  std::string Context(uint64_t number) const;

  const std::string folder_, name_;
  const KeyWrapper& wrapper_;
  mutable std::mutex mutex_;                                 // guards end_ and cache_
  uint64_t end_ = 0;                                         // segments that exist
  mutable std::list<std::shared_ptr<const Segment>> cache_;  // newest use first
  uint64_t erasures_ = 0;    // what was read before the newest one is not kept
  std::mutex making_mutex_;  // one Prepare or Erase at a time
};

}  // namespace verbatim::store
