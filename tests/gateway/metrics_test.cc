// /metrics is what Prometheus reads, has OpenTelemetry's names, and never grows without bound.
#include "gateway/metrics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <sstream>
#include <thread>

#include "base/clock.h"

namespace verbatim::gateway {
namespace {

bool IsName(const std::string& name, bool colons) {
  if (name.empty() || (name[0] >= '0' && name[0] <= '9')) return false;
  return std::all_of(name.begin(), name.end(), [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           (colons && c == ':');
  });
}

struct Sample {
  std::string name;
  std::map<std::string, std::string> labels;
  double value = 0;
};

struct Family {
  std::string help, type;
  std::vector<Sample> samples;
};

// The text format, version 0.0.4, as strictly as a scraper's check reads it: HELP and TYPE once,
// in that order, before the family's samples, which stand together; names and labels well formed;
// no series twice; counters end with _total; a histogram's buckets grow and end with +Inf = count.
class Exposition {
 public:
  explicit Exposition(const std::string& text) {
    std::istringstream lines(text);
    EXPECT_TRUE(text.empty() || text.back() == '\n');
    for (std::string line; std::getline(lines, line);) Line(line);
    for (const auto& [name, family] : families) CheckFamily(name, family);
  }

  // The value of a series; labels as {"a=1", "b=2"}; NaN where there is none.
  double Value(const std::string& name, const std::map<std::string, std::string>& labels) const {
    for (const auto& [family_name, family] : families) {
      for (const Sample& s : family.samples) {
        if (s.name == name && s.labels == labels) return s.value;
      }
    }
    return std::nan("");
  }
  size_t Series(const std::string& family) const {
    const auto at = families.find(family);
    return at == families.end() ? 0 : at->second.samples.size();
  }

  std::map<std::string, Family> families;

 private:
  void Line(const std::string& line) {
    SCOPED_TRACE(line);
    if (line.starts_with("# HELP ")) {
      const size_t space = line.find(' ', 7);
      ASSERT_NE(space, std::string::npos);
      current_ = line.substr(7, space - 7);
      EXPECT_TRUE(IsName(current_, true));
      EXPECT_FALSE(families.contains(current_));
      families[current_].help = line.substr(space + 1);
      EXPECT_FALSE(families[current_].help.empty());
    } else if (line.starts_with("# TYPE ")) {
      const size_t space = line.find(' ', 7);
      ASSERT_NE(space, std::string::npos);
      ASSERT_EQ(line.substr(7, space - 7), current_);
      Family& family = families[current_];
      EXPECT_TRUE(family.type.empty());
      family.type = line.substr(space + 1);
      EXPECT_TRUE(std::set<std::string>({"counter", "gauge", "histogram"}).contains(family.type));
    } else {
      ASSERT_FALSE(line.empty() || line[0] == '#');
      ParseSample(line);
    }
  }

  void ParseSample(const std::string& line) {
    Sample sample;
    size_t at = line.find_first_of("{ ");
    ASSERT_NE(at, std::string::npos);
    sample.name = line.substr(0, at);
    EXPECT_TRUE(IsName(sample.name, true));
    if (line[at] == '{') {
      for (++at; line[at] != '}';) {
        const size_t equals = line.find('=', at);
        ASSERT_NE(equals, std::string::npos);
        const std::string label = line.substr(at, equals - at);
        EXPECT_TRUE(IsName(label, false)) << label;
        ASSERT_EQ(line[equals + 1], '"');
        std::string value;
        for (at = equals + 2; line.at(at) != '"'; ++at) {
          if (line[at] == '\\') ++at;
          value += line.at(at);
        }
        EXPECT_TRUE(sample.labels.emplace(label, value).second) << label;
        if (line.at(++at) == ',') ++at;
      }
      ++at;
    }
    ASSERT_EQ(line.at(at), ' ');
    size_t used = 0;
    const std::string number = line.substr(at + 1);
    sample.value = number == "+Inf" ? INFINITY : std::stod(number, &used);
    EXPECT_TRUE(number == "+Inf" || used == number.size()) << number;
    const std::string& name = sample.name;
    const bool of_family = name == current_ || name == current_ + "_bucket" ||
                           name == current_ + "_sum" || name == current_ + "_count";
    EXPECT_TRUE(of_family) << name << " stands under " << current_;
    std::string id = name;
    for (const auto& [label, value] : sample.labels) id += "\x1f" + label + "=" + value;
    EXPECT_TRUE(seen_.insert(id).second) << "twice";
    families[current_].samples.push_back(std::move(sample));
  }

  void CheckFamily(const std::string& name, const Family& family) {
    SCOPED_TRACE(name);
    EXPECT_FALSE(family.type.empty());
    EXPECT_EQ(family.type == "counter", name.ends_with("_total"));
    if (family.type != "histogram") return;
    std::map<std::string, double> last;  // by labels without le
    for (const Sample& s : family.samples) {
      std::string id;
      for (const auto& [label, value] : s.labels) {
        if (label != "le") id += "\x1f" + label + "=" + value;
      }
      if (s.name.ends_with("_bucket")) {
        EXPECT_TRUE(s.labels.contains("le"));
        EXPECT_GE(s.value, last[id]);
        last[id] = s.value;
      }
    }
    for (const Sample& s : family.samples) {
      if (!s.name.ends_with("_count")) continue;
      std::string id;
      for (const auto& [label, value] : s.labels) id += "\x1f" + label + "=" + value;
      EXPECT_EQ(last[id], s.value);
    }
  }

  std::string current_;
  std::set<std::string> seen_;
};

AnsweredRequest Streamed() {
  AnsweredRequest request;
  request.endpoint = "/v1/chat/completions";
  request.cache = "miss";
  request.status = 200;
  request.model = "gpt-4o";
  request.provider = "openai";
  request.seconds = 2.0;
  request.first_token_seconds = 0.5;
  request.prompt_tokens = 100;
  request.output_tokens = 31;
  return request;
}

const std::map<std::string, std::string> kChat = {{"gen_ai_operation_name", "chat"},
                                                  {"gen_ai_provider_name", "openai"},
                                                  {"gen_ai_request_model", "gpt-4o"}};

std::map<std::string, std::string> With(std::map<std::string, std::string> labels, const char* name,
                                        const char* value) {
  labels[name] = value;
  return labels;
}

// Boundaries of the OpenTelemetry semantic conventions, docs/gen-ai/gen-ai-metrics.md.
TEST(Metrics, HaveTheConventionsNamesAndBuckets) {
  Metrics metrics;
  metrics.SetNames({"gpt-4o"}, {"openai"});
  metrics.CountAnswered(Streamed());
  metrics.CountUpstreamAttempt({.upstream = "openai",
                                .model = "gpt-4o",
                                .endpoint = "/v1/chat/completions",
                                .seconds = 1.9});
  const Exposition text(metrics.Render());
  struct Case {
    const char* name;
    std::map<std::string, std::string> labels;
    std::vector<const char*> bounds;
  };
  const std::vector<const char*> durations = {"0.01",  "0.02",  "0.04",  "0.08",  "0.16",
                                              "0.32",  "0.64",  "1.28",  "2.56",  "5.12",
                                              "10.24", "20.48", "40.96", "81.92", "+Inf"};
  const std::vector<const char*> tokens = {"1",       "4",       "16",       "64",       "256",
                                           "1024",    "4096",    "16384",    "65536",    "262144",
                                           "1048576", "4194304", "16777216", "67108864", "+Inf"};
  const Case cases[] = {
      {"gen_ai_server_request_duration_seconds", kChat, durations},
      {"gen_ai_client_operation_duration_seconds", kChat, durations},
      {"gen_ai_server_time_to_first_token_seconds",
       kChat,
       {"0.001", "0.005", "0.01", "0.02", "0.04", "0.06", "0.08", "0.1", "0.25", "0.5", "0.75", "1",
        "2.5", "5", "7.5", "10", "+Inf"}},
      {"gen_ai_server_time_per_output_token_seconds",
       kChat,
       {"0.01", "0.025", "0.05", "0.075", "0.1", "0.15", "0.2", "0.3", "0.4", "0.5", "0.75", "1",
        "2.5", "+Inf"}},
      {"gen_ai_client_token_usage", With(kChat, "gen_ai_token_type", "input"), tokens},
      {"gen_ai_client_token_usage", With(kChat, "gen_ai_token_type", "output"), tokens},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const std::string name = c.name;
    EXPECT_EQ(text.Value(name + "_count", c.labels), 1);
    std::set<double> want, got;
    for (const char* bound : c.bounds) {
      want.insert(std::string(bound) == "+Inf" ? INFINITY : std::stod(bound));
    }
    for (const Sample& s : text.families.at(name).samples) {
      if (!s.labels.contains("le")) continue;
      const std::string& le = s.labels.at("le");
      got.insert(le == "+Inf" ? INFINITY : std::stod(le));
    }
    EXPECT_EQ(got, want);
  }
  // (2.0 - 0.5) seconds for the 30 tokens after the first.
  EXPECT_NEAR(text.Value("gen_ai_server_time_per_output_token_seconds_sum", kChat), 0.05, 1e-9);
  EXPECT_EQ(text.Value("verbatim_tokens_total", {{"kind", "generated"}}), 31);
  EXPECT_EQ(
      text.Value("verbatim_requests_total",
                 {{"endpoint", "/v1/chat/completions"}, {"cache", "miss"}, {"status", "200"}}),
      1);
}

TEST(Metrics, HitsSaveTokensAndUseNone) {
  Metrics metrics;
  metrics.SetNames({"gpt-4o"}, {"openai"});
  AnsweredRequest hit = Streamed();
  hit.cache = "hit";
  metrics.CountAnswered(hit);
  hit.first_token_seconds = -1;
  hit.status = 504;
  hit.error_type = "not_recorded";
  hit.prompt_tokens = hit.output_tokens = 0;
  metrics.CountAnswered(hit);
  const Exposition text(metrics.Render());
  EXPECT_EQ(text.Value("verbatim_tokens_saved_total", {{"kind", "generated"}}), 31);
  EXPECT_EQ(text.Series("gen_ai_client_token_usage"), 0u);
  EXPECT_EQ(text.Value("gen_ai_server_request_duration_seconds_count",
                       With(kChat, "error_type", "not_recorded")),
            1);
  EXPECT_EQ(text.Value("gen_ai_server_time_to_first_token_seconds_count", kChat), 1);
}

TEST(Metrics, EverythingTogetherParses) {
  Metrics metrics;
  metrics.SetNames({"gpt-4o"}, {"openai", "azure"});
  metrics.CountAnswered(Streamed());
  metrics.CountRefused(401);
  metrics.CountUnrecorded();
  metrics.CountRateLimited("key", "tokens");
  metrics.CountVerification("equal");
  metrics.CountCommit(true, 0.002);
  metrics.ObserveLedgerCommit(0.001, 7);
  metrics.CountUpstreamAttempt({.upstream = "openai", .error_type = "status_429", .retry = true});
  metrics.CountFallback("openai", "azure");
  metrics.AddGauge("open_streams", "Streams", [] { return 3.5; });
  uint64_t lines = 5;
  metrics.AddCounter("access_log_dropped_total", "Lines",
                     [&] { return static_cast<double>(lines); });
  std::vector<Metrics::Row> rows = {{{"openai", "say \"hi\"\\\n"}, 0.25}, {{"azure", "m"}, 1}};
  metrics.AddTable("reproducibility_rate", "Rate", {"upstream", "model"}, [&] { return rows; });
  Exposition text(metrics.Render());
  EXPECT_EQ(text.Value("verbatim_open_streams", {}), 3.5);
  EXPECT_EQ(text.Value("verbatim_access_log_dropped_total", {}), 5);
  EXPECT_EQ(text.Value("verbatim_upstream_errors_total",
                       {{"upstream", "openai"}, {"error_type", "status_429"}}),
            1);
  EXPECT_EQ(text.Value("verbatim_verifications_total", {{"outcome", "diverged"}}), 0);
  EXPECT_EQ(text.Value("verbatim_reproducibility_rate", {{"upstream", "azure"}, {"model", "m"}}),
            1);
  EXPECT_EQ(text.Series("verbatim_reproducibility_rate"), 2u);
  // Read anew each time; a row that is gone is gone.
  lines = 9;
  rows = {{{"azure", "m"}, 0.5}};
  text = Exposition(metrics.Render());
  EXPECT_EQ(text.Value("verbatim_access_log_dropped_total", {}), 9);
  EXPECT_EQ(text.Series("verbatim_reproducibility_rate"), 1u);
}

TEST(Metrics, LabelsAreNamesOfTheConfigurationAndBounded) {
  Metrics metrics;
  metrics.SetNames({"gpt-4o"}, {"openai"});
  AnsweredRequest request = Streamed();
  for (int i = 0; i < 1000; ++i) {
    const std::string name = "invented-" + std::to_string(i);
    request.model = name;
    request.provider = name;
    request.error_type = name;
    metrics.CountAnswered(request);
    metrics.CountRateLimited(name, name);
    metrics.CountUpstreamAttempt({.upstream = name, .error_type = name});
  }
  const Exposition text(metrics.Render());
  for (const Sample& s : text.families.at("gen_ai_server_request_duration_seconds").samples) {
    EXPECT_EQ(s.labels.at("gen_ai_request_model"), "other");
    EXPECT_EQ(s.labels.at("gen_ai_provider_name"), "other");
  }
  // 64 error types and "other", each with 15 buckets, sum and count.
  EXPECT_EQ(text.Series("gen_ai_server_request_duration_seconds"), 65u * 17);
  EXPECT_LE(text.Series("verbatim_rate_limited_total"), 65u);
  EXPECT_EQ(
      text.Value("verbatim_upstream_attempts_total", {{"upstream", "other"}, {"retry", "false"}}),
      1000);
}

TEST(Metrics, AreThreadSafeAndCheap) {
  Metrics metrics;
  metrics.SetNames({"gpt-4o"}, {"openai"});
  AnsweredRequest hit = Streamed();
  hit.cache = "hit";
  constexpr int kThreads = 4, kEach = 5000;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kEach; ++i) metrics.CountAnswered(hit);
    });
  }
  for (int i = 0; i < 5; ++i) Exposition(metrics.Render());
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(
      Exposition(metrics.Render()).Value("verbatim_request_seconds_count", {{"cache", "hit"}}),
      kThreads * kEach);
  int64_t best = 1'000'000;
  for (int round = 0; round < 200; ++round) {
    const int64_t begin = MonotonicMicros();
    for (int i = 0; i < 100; ++i) metrics.CountAnswered(hit);
    best = std::min(best, MonotonicMicros() - begin);
  }
  std::printf("%d ns a request\n", static_cast<int>(best * 10));
}

}  // namespace
}  // namespace verbatim::gateway
