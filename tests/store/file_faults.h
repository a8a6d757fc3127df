// The store's own file operations, failing on demand. file_faults.cc stands in for the C library's
// fsync, fdatasync, rename and mkdir in a test program that links it; where no FileFaults is alive,
// and for paths outside of its folder, they do what they always do.
#pragma once

#include <string>
#include <vector>

namespace verbatim::store {

class FileFaults {
 public:
  enum class Fault {
    kNotDone,         // the operation is not carried out and says so
    kDoneButReported  // it is carried out and reports a failure all the same
  };

  // The n-th operation under `folder` from now on (1 is the next, 0 is none) fails with EIO, once.
  // Operations are renames and, for kNotDone, syncs: nobody could rely on one that reported a
  // failure. One FileFaults at a time.
  FileFaults(const std::string& folder, int n, Fault fault);
  ~FileFaults();
  FileFaults(const FileFaults&) = delete;
  FileFaults& operator=(const FileFaults&) = delete;

  void StopFailing();
  int seen() const;  // such operations so far
  // Folders with a new name in them that no successful fsync has followed: a machine that loses its
  // power now may lose that name.
  std::vector<std::string> Unsynced() const;
};

}  // namespace verbatim::store
