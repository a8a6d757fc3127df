// Why a request is not recorded: the recorded one that is most like it.
#pragma once

#include <string>

#include "gateway/recorder.h"
#include "store/ledger.h"

namespace verbatim::gateway {

// "The nearest recorded request is entry 12; it differs in /messages/0/content. ", or "" where none
// is near: it looks at the newest 32 answers of the same namespace and endpoint among the newest
// 4096 entries, without requests above 256 KiB. `call` has its fingerprint. Names fields, never
// their values. Blocks, for 20 ms at most, within which it looks at as many as it can.
std::string DescribeNearest(const store::Ledger& ledger, const Call& call);

}  // namespace verbatim::gateway
