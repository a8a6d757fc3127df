// Commands about records from outside: the server that has the folder carries them out, and where
// none runs the folder is opened here.
#pragma once

#include <functional>
#include <string>

#include "store/life.h"

namespace verbatim::store {

// `waiting` (may be empty) is called about every second. Errors as of Ledger::Apply and
// Ledger::Open; kNotFound where there is no ledger in the folder. A server that starts or stops
// just now is waited for, and so is whoever reads a snapshot, some ten seconds each.
Result<LifeReport> CarryOut(const std::string& folder, const LifeCommand& command,
                            const std::function<void()>& waiting);

}  // namespace verbatim::store
