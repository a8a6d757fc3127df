// Which requests may go to the upstream that takes what is no endpoint of ours. Pure functions; any
// thread may call them.
#pragma once

#include <string_view>

namespace verbatim::gateway {

// Whether a request passes unrecorded to an upstream. `path`: what stands below "/v1", as sent,
// with its slash: "/files/a%20b".
//
// Not what an upstream could take for one of the endpoints that are recorded, nor what stands below
// one, however it is spelled: with more slashes, other case, further percent-encoding, spaces or
// parameters (";a=1") at a segment's end, or Azure's and older forms of it (deployments/,
// engines/). An encoded slash is as good as a slash. And no path that means another one to whoever
// reads it again: "." and "..", a backslash, control bytes.
bool MayPassThrough(std::string_view path);

}  // namespace verbatim::gateway
