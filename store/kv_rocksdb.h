// The Kv that production uses: RocksDB in one folder. RocksDB stays inside kv_rocksdb.cc.
#pragma once

#include <memory>
#include <string>

#include "store/kv.h"

namespace verbatim::store {

enum class KvAccess {
  kReadWrite,  // creates the database where there is none
  kReadOnly    // changes nothing; the caller makes sure that nobody writes meanwhile
};

Result<std::unique_ptr<Kv>> OpenRocksDb(const std::string& folder, KvAccess access);

// Of the library that runs: "7.8.3".
std::string RocksDbVersion();

}  // namespace verbatim::store
