// What recording a hit costs: a ledger in a temporary folder, threads that record hits in groups of
// some sizes, as connections do. Prints microseconds of wall time and of all threads' CPU per hit,
// RocksDB's background work included.
//   hits_bench [--seconds S] [--folder DIR]
#include <sys/resource.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/crypto.h"
#include "store/ledger.h"

namespace verbatim {
namespace {

int64_t CpuMicros() {
  rusage usage{};
  CHECK(getrusage(RUSAGE_SELF, &usage) == 0);
  const auto micros = [](const timeval& t) { return int64_t{t.tv_sec} * 1'000'000 + t.tv_usec; };
  return micros(usage.ru_utime) + micros(usage.ru_stime);
}

store::AppendRequest Answer(const Digest& fingerprint) {
  store::AppendRequest append;
  append.record.tenant = append.record.name_space = "acme";
  append.record.fingerprint = fingerprint;
  append.record.serves_hits = true;
  append.response = std::string(2048, 'x');
  return append;
}

// Request ids as the server makes them: in the order of time, and never twice.
store::HitRequest Hit(uint64_t thread, uint64_t number) {
  std::string id;
  AppendU64(id, static_cast<uint64_t>(NowMicros()) << 8);
  AppendU64(id, (thread << 56) | number);
  store::HitRequest hit;
  hit.tenant = "acme";
  hit.subject = "alice";
  hit.key_id = "key-1";
  hit.request_id = "req_" + HexEncode(id);
  hit.new_request_id = true;
  hit.extra = R"({"form":"plain","include_usage":false})";
  return hit;
}

void Measure(store::Ledger& ledger, size_t threads, size_t group, double seconds) {
  std::atomic<uint64_t> recorded = 0;
  const int64_t began = MonotonicMicros(), cpu = CpuMicros();
  const int64_t end = began + static_cast<int64_t>(seconds * 1e6);
  std::vector<std::thread> running;
  for (size_t t = 0; t < threads; ++t) {
    running.emplace_back([&, t] {
      uint64_t number = 0;
      while (MonotonicMicros() < end) {
        std::vector<store::HitRequest> hits;
        for (size_t i = 0; i < group; ++i) hits.push_back(Hit(t, number++));
        for (const Status& status : ledger.RecordHits(hits)) CHECK(status.ok());
        recorded += group;
      }
    });
  }
  for (std::thread& t : running) t.join();
  const double wall = static_cast<double>(MonotonicMicros() - began);
  const double used = static_cast<double>(CpuMicros() - cpu);
  const auto hits = static_cast<double>(recorded.load());
  std::printf("%zu thread(s), groups of %2zu: %8.0f hits/s, %6.2f us CPU per hit\n", threads, group,
              hits / wall * 1e6, used / hits);
}

int Main(int argc, char** argv) {
  double seconds = 3;
  std::string folder = std::filesystem::temp_directory_path();
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::string_view(argv[i]) == "--seconds") seconds = std::atof(argv[i + 1]);
    if (std::string_view(argv[i]) == "--folder") folder = argv[i + 1];
  }
  folder += "/verbatim-hits-" + HexEncode(RandomBytes(8));
  {
    auto data = store::DataFolder::Open(folder);
    CHECK(data.ok());
    auto ledger = store::Ledger::Open(std::move(*data), {});
    CHECK(ledger.ok());
    CHECK((*ledger)->Append(Answer(Sha256("request"))).ok());
    for (const size_t threads : {size_t{1}, size_t{2}}) {
      for (const size_t group : {1, 4, 16}) Measure(**ledger, threads, group, seconds);
    }
  }
  std::filesystem::remove_all(folder);
  return 0;
}

}  // namespace
}  // namespace verbatim

int main(int argc, char** argv) { return verbatim::Main(argc, argv); }
