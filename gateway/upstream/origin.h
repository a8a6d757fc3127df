// What HttpOrigin holds: the configuration as it was read and checked.
#pragma once

#include <optional>
#include <string>

#include "gateway/upstream/http_client.h"
#include "gateway/upstream/proxy.h"
#include "gateway/upstream/tls.h"
#include "gateway/upstream/url.h"

namespace verbatim::gateway {

struct HttpOrigin::State {
  HttpClientOptions options;
  Url url;
  std::optional<Proxy> proxy;
  TlsContext tls;  // null for http

  // Where the TCP connection goes.
  const std::string& peer_host() const { return proxy ? proxy->host : url.host; }
  bool peer_is_ip() const { return proxy ? proxy->is_ip : url.is_ip; }
  uint16_t peer_port() const { return proxy ? proxy->port : url.port; }
};

}  // namespace verbatim::gateway
