// The transparency log over HTTP: C2SP tlog-tiles under /log, and what leads to them under
// /verbatim/v1. Others' tools read it without knowing us.
#pragma once

#include "gateway/http.h"

namespace verbatim::store {
class Ledger;
}

namespace verbatim::gateway {

struct LogApiOptions {
  store::Ledger* ledger = nullptr;  // outlives the server
  bool open = false;                // everyone may read /log; else auditors
};

// GET /log/checkpoint, /log/tile/<L>/<N>[.p/<W>], /log/tile/entries/<N>[.p/<W>]: the published tree
//       (c2sp.org/tlog-tiles).
//       /log/checkpoint is the newest that a quorum of witnesses cosigned, where there are
//       witnesses.
// GET /verbatim/v1/log: origin, the verifier keys and from which size each signs, witnesses.
// GET /verbatim/v1/log/anchors: the newest checkpoint, the newest cosigned one, RFC 3161
// timestamps. GET /verbatim/v1/entries/{n}/proof: as JSON, or as a tlog-proof file
// (c2sp.org/tlog-proof) where
//       Accept names text/plain before application/json, or with ?form=tlog-proof.
void AddLogRoutes(Router& router, LogApiOptions options);

}  // namespace verbatim::gateway
