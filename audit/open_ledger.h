// A data folder opened for reading: by itself where no server runs, else through a snapshot that
// the server makes (store/control.h).
//
// Threads: as store::Reader. Errors: kNotFound where there is no ledger; kFailedPrecondition or
// kUnavailable where a process has the folder and gives no snapshot; kCorrupt; kIo.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "store/control.h"
#include "store/data_folder.h"
#include "store/keyring.h"
#include "store/keys.h"
#include "store/kv.h"
#include "store/reader.h"

namespace verbatim::audit {

class OpenLedger {
 public:
  // Waits some seconds for a server that starts or stops.
  static Result<std::unique_ptr<OpenLedger>> Open(const std::string& folder);

  const store::Reader& reader() const { return *reader_; }
  const std::string& checkpoint() const { return checkpoint_; }  // the newest, a signed note
  bool is_snapshot() const { return lease_.has_value(); }

  // Ends the reading. The folder with its lock, where no server has it.
  static std::optional<store::DataFolder> Close(std::unique_ptr<OpenLedger> ledger);

 private:
  OpenLedger() = default;
  Status Read(const store::DataFolder& tables, const store::DataFolder& secrets);

  // In this order: the tables close before the snapshot is deleted.
  std::optional<store::DataFolder> owned_;
  std::optional<store::SnapshotLease> lease_;
  store::Keys keys_;
  std::unique_ptr<store::Kv> kv_;
  std::unique_ptr<store::Keyring> entries_, hits_;
  std::unique_ptr<store::Reader> reader_;
  std::string checkpoint_;
};

}  // namespace verbatim::audit
