// What a running server takes over from a new configuration, and what only a restart changes.
#include "policies/reload.h"

#include <gtest/gtest.h>

#include <functional>

#include "policies/loader.h"

namespace verbatim::policies {
namespace {

TEST(Reload, NamesEveryFieldThatOnlyARestartChanges) {
  const Config now = DefaultConfig();
  EXPECT_TRUE(ChangedFields(now, now).empty());
  EXPECT_TRUE(CheckReload(now, now).ok());
  struct Case {
    const char* field;
    bool reloaded;
    std::function<void(Config&)> change;
  };
  const Case cases[] = {
      {"policy.mode", true, [](Config& c) { c.policy.mode = Mode::kObserve; }},
      {"policy.verify.rate", true, [](Config& c) { c.policy.verify_rate = 0.5; }},
      {"upstreams", true, [](Config& c) { c.upstreams["a"].url = "https://a.example/v1"; }},
      {"server.access_log", true, [](Config& c) { c.server.access_log = "stderr"; }},
      {"server.generate_traceparent", false,
       [](Config& c) { c.server.generate_traceparent = true; }},
      {"server.timeouts.drain_ms", true, [](Config& c) { c.server.drain_ms = 1; }},
      {"log.level", true, [](Config& c) { c.log_level = "error"; }},
      {"server.listen", false, [](Config& c) { c.server.listen = "127.0.0.1:9"; }},
      {"server.threads", false, [](Config& c) { c.server.threads = 3; }},
      {"server.limits.body_bytes", false, [](Config& c) { c.server.body_bytes = 5000; }},
      {"server.tls.certificate", false, [](Config& c) { c.server.tls.certificate = "a.pem"; }},
      {"server.refusal_interval_ms", false, [](Config& c) { c.server.refusal_interval_ms = 2000; }},
      {"data", false, [](Config& c) { c.data = "/elsewhere"; }},
      {"models", false, [](Config& c) { c.models["m"].file = "m.gguf"; }},
      {"log.origin", false, [](Config& c) { c.origin = "other.example/log"; }},
      {"engine.max_batch", false, [](Config& c) { c.engine.max_batch = 7; }},
  };
  for (const Case& c : cases) {
    Config next = now;
    c.change(next);
    EXPECT_EQ(ChangedFields(now, next), std::vector<std::string>{c.field});
    const Status status = CheckReload(now, next);
    EXPECT_EQ(status.ok(), c.reloaded) << c.field;
    if (status.ok()) continue;
    EXPECT_EQ(status.error().code, Code::kFailedPrecondition);
    EXPECT_NE(status.error().message.find(c.field), std::string::npos) << status.error().message;
  }
}

TEST(Reload, NamesAllOfThem) {
  const Config now = DefaultConfig();
  Config next = now;
  next.server.listen = "127.0.0.1:9";
  next.policy.mode = Mode::kReplay;
  next.data = "/elsewhere";
  EXPECT_EQ(CheckReload(now, next).error().message,
            "only a restart changes server.listen, data; put it back, or restart the server");
}

TEST(Reload, TheAccessLogsFileIsInTheConfigurationsFolder) {
  const auto access_log = [](const std::string& value) {
    const auto config = ParseConfig("server:\n  access_log: " + value + "\n", "c.yaml", "/etc/v");
    return config.ok() ? config->server.access_log : config.error().message;
  };
  EXPECT_EQ(access_log("stdout"), "stdout");
  EXPECT_EQ(access_log("off"), "off");
  EXPECT_EQ(access_log("access.log"), "/etc/v/access.log");
  EXPECT_EQ(access_log("/var/log/access.log"), "/var/log/access.log");
}

}  // namespace
}  // namespace verbatim::policies
