// What the ledger costs and how it grows.
//   ledger_bench appends [--seconds S] [--repeats N] [--folder DIR]
//     Durable appends a second through the ledger, at 1, 8 and 64 concurrent appenders, each beside
//     RocksDB alone in the same run, interleaved: the ledger's options and as many bytes an append
//     (a record, its SHA-256 and a counter), one batch and one sync for as many appends as the
//     ledger's commits had at the mean, one thread, no queue.
//   ledger_bench log [--entries N] [--folder DIR] [--keep]
//     A log of N entries (1,000,000): memory on the way, bytes on disk, the time of inclusion and
//     consistency proofs (of a database just opened, its files in the page cache), and of fsck
//     beside reading and hashing the same files. --keep leaves the folder, and a folder that is
//     there is used as it is.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/crypto.h"
#include "store/fsck.h"
#include "store/kv_rocksdb.h"
#include "store/ledger.h"

namespace verbatim {
namespace {

namespace fs = std::filesystem;

constexpr size_t kResponseBytes = 1024;
constexpr size_t kRequestBytes = 200;

double Seconds(int64_t micros) { return static_cast<double>(micros) * 1e-6; }

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

// An answer as the gateway records it: its own fingerprint and request id, and 1 KB of response.
store::AppendRequest Answer(uint64_t number) {
  static const std::string run = HexEncode(RandomBytes(8));
  const std::string name = run + std::to_string(number);
  store::AppendRequest append;
  append.manifest = append.model = HexEncode(Sha256("model"));
  append.numerics = "bench";
  store::Record& record = append.record;
  record.tenant = record.name_space = "acme";
  record.subject = "alice";
  record.key_id = "key-1";
  record.endpoint = "/v1/chat/completions";
  record.request_id = "req_" + name;
  record.fingerprint = Sha256(name);
  record.serves_hits = true;
  append.request = name + std::string(kRequestBytes - name.size(), 'q');
  append.response = name + std::string(kResponseBytes - name.size(), 'a');
  return append;
}

uint64_t FolderBytes(const std::string& folder) {
  uint64_t bytes = 0;
  for (const auto& file : fs::recursive_directory_iterator(folder)) {
    std::error_code gone;
    const uint64_t size = file.is_regular_file() ? fs::file_size(file.path(), gone) : 0;
    if (!gone) bytes += size;
  }
  return bytes;
}

// Written to the file system by this process so far.
uint64_t WrittenBytes() {
  std::ifstream io("/proc/self/io");
  for (std::string name, value; io >> name >> value;) {
    if (name == "wchar:") return std::stoull(value);
  }
  return 0;
}

double ResidentMegabytes() {
  std::ifstream statm("/proc/self/statm");
  uint64_t size = 0, resident = 0;
  statm >> size >> resident;
  return static_cast<double>(resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE))) / 1048576.0;
}

struct Rate {
  double appends = 0;  // a second
  double group = 0;    // appends in one commit, at the mean
};

// A ledger in a folder of its own.
class TheLedger {
 public:
  explicit TheLedger(const std::string& folder) {
    auto data = store::DataFolder::Open(folder);
    CHECK(data.ok());
    store::LedgerOptions options;
    options.control_socket = false;
    options.on_commit = [this](int64_t, size_t entries) {
      ++commits_;
      entries_ += entries;
    };
    auto ledger = store::Ledger::Open(std::move(*data), std::move(options));
    CHECK(ledger.ok());
    ledger_ = std::move(*ledger);
  }

  // What an append adds to the database's log: of a few, so that no table is written meanwhile.
  double BytesOfAnAppend() {
    constexpr int kAppends = 500;
    const uint64_t written = WrittenBytes();
    for (int i = 0; i < kAppends; ++i) CHECK(ledger_->Append(Answer(next_++)).ok());
    return static_cast<double>(WrittenBytes() - written) / kAppends;
  }

  Rate Measure(size_t appenders, double seconds) {
    const uint64_t commits = commits_, entries = entries_;
    const int64_t began = MonotonicMicros(), end = began + static_cast<int64_t>(seconds * 1e6);
    std::vector<std::thread> threads;
    for (size_t t = 0; t < appenders; ++t) {
      threads.emplace_back([&] {
        while (MonotonicMicros() < end) CHECK(ledger_->Append(Answer(next_++)).ok());
      });
    }
    for (std::thread& t : threads) t.join();
    const auto done = static_cast<double>(entries_ - entries);
    return {done / Seconds(MonotonicMicros() - began),
            done / static_cast<double>(commits_ - commits)};
  }

 private:
  std::atomic<uint64_t> next_ = 0, commits_ = 0, entries_ = 0;
  std::unique_ptr<store::Ledger> ledger_;
};

// RocksDB alone, with the ledger's options.
class RawDatabase {
 public:
  explicit RawDatabase(const std::string& folder) {
    auto kv = store::OpenRocksDb(folder, store::KvAccess::kReadWrite);
    CHECK(kv.ok());
    kv_ = std::move(*kv);
  }

  double Measure(size_t group, size_t bytes, double seconds) {
    const int64_t began = MonotonicMicros(), end = began + static_cast<int64_t>(seconds * 1e6);
    const size_t besides = 100;  // keys, hash, counter, and what each row takes in the log
    const std::string record(bytes > besides ? bytes - besides : 1, 'r');
    uint64_t done = 0;
    while (MonotonicMicros() < end) {
      store::Batch batch;
      for (size_t i = 0; i < group; ++i) {
        std::string key;
        AppendU64(key, next_++);
        batch.Put(store::Table::kRecord, key, record);
        batch.Put(store::Table::kLeaf, key, std::string(AsBytes(Sha256(record))));
        batch.Put(store::Table::kMeta, "counter", key);
      }
      CHECK(kv_->Commit(batch, true).ok());
      done += group;
    }
    return static_cast<double>(done) / Seconds(MonotonicMicros() - began);
  }

 private:
  uint64_t next_ = 0;
  std::unique_ptr<store::Kv> kv_;
};

int Appends(const std::string& folder, double seconds, size_t repeats) {
  TheLedger ledger(folder + "/ledger");
  RawDatabase raw(folder + "/raw");
  const double bytes = ledger.BytesOfAnAppend();
  raw.Measure(1, static_cast<size_t>(bytes), seconds / 4);
  std::printf("an append is %.0f bytes in the database's log, of which %zu are its payloads\n",
              bytes, kRequestBytes + kResponseBytes);
  for (const size_t appenders : {1, 8, 64}) {
    std::vector<double> ours, theirs, groups;
    for (size_t i = 0; i < repeats; ++i) {
      const Rate rate = ledger.Measure(appenders, seconds);
      const auto group = static_cast<size_t>(std::max(1.0, rate.group + 0.5));
      theirs.push_back(raw.Measure(group, static_cast<size_t>(bytes), seconds));
      ours.push_back(rate.appends);
      groups.push_back(rate.group);
    }
    std::printf("%2zu appenders: %6.0f appends/s, RocksDB alone %6.0f (groups of %.1f): %.2f\n",
                appenders, Median(ours), Median(theirs), Median(groups),
                Median(ours) / Median(theirs));
  }
  return 0;
}

// Appends up to `entries`, many at a time.
void Fill(store::Ledger& ledger, uint64_t entries) {
  constexpr uint64_t kOutstanding = 2048;
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t open = 0;
  uint64_t shown = 10'000;
  const int64_t began = MonotonicMicros();
  for (uint64_t n = ledger.Size(); n < entries; ++n) {
    {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return open < kOutstanding; });
      ++open;
    }
    ledger.AppendAsync(Answer(n), [&](Result<store::Appended> appended) {
      CHECK(appended.ok());
      const std::lock_guard lock(mutex);
      --open;
      changed.notify_one();
    });
    if (n + 1 != shown) continue;
    std::printf("%9llu entries: %6.0f MB resident, %.0f s\n",
                static_cast<unsigned long long>(shown), ResidentMegabytes(),
                Seconds(MonotonicMicros() - began));
    shown *= 10;
  }
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return open == 0; });
}

template <typename F>
void Proofs(const char* name, size_t count, const F& prove) {
  std::vector<double> micros;
  for (size_t i = 0; i < count; ++i) {
    const auto began = std::chrono::steady_clock::now();
    prove();
    micros.push_back(
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - began)
            .count());
  }
  const double first = micros.front();
  std::sort(micros.begin(), micros.end());
  std::printf("%s: first %.0f us, median of %zu %.1f us, 99th percentile %.0f us\n", name, first,
              count, micros[count / 2], micros[count * 99 / 100]);
}

// What reading all files front to back and hashing them takes.
double HashFiles(const std::string& folder, uint64_t& bytes) {
  const int64_t began = MonotonicMicros();
  std::vector<char> buffer(size_t{1} << 20);
  for (const auto& file : fs::recursive_directory_iterator(folder)) {
    if (!file.is_regular_file()) continue;
    std::ifstream in(file.path(), std::ios::binary);
    Sha256Stream hash;
    while (in.read(buffer.data(), static_cast<std::streamsize>(buffer.size())) || in.gcount() > 0) {
      hash.Update({buffer.data(), static_cast<size_t>(in.gcount())});
      bytes += static_cast<uint64_t>(in.gcount());
    }
    hash.Finish();
  }
  return Seconds(MonotonicMicros() - began);
}

int Log(const std::string& folder, uint64_t entries) {
  std::mt19937_64 random(1);
  const auto open = [&] {
    auto data = store::DataFolder::Open(folder);
    CHECK(data.ok());
    store::LedgerOptions options;
    options.control_socket = false;
    auto ledger = store::Ledger::Open(std::move(*data), std::move(options));
    CHECK(ledger.ok());
    return std::move(*ledger);
  };
  {
    const auto ledger = open();
    Fill(*ledger, entries);
  }
  {
    const auto ledger = open();
    while (!ledger->Proof(ledger->Size() - 1).ok()) usleep(1000);
    const uint64_t size = ledger->Size();
    const auto at = [&](uint64_t end) { return random() % end; };
    Proofs("inclusion", 5000, [&] { CHECK(ledger->Proof(at(size)).ok()); });
    Proofs("consistency", 5000, [&] {
      const uint64_t second = 2 + at(size - 1);
      CHECK(ledger->Consistency(1 + at(second - 1), second).ok());
    });
  }
  const uint64_t on_disk = FolderBytes(folder);
  std::printf("on disk: %.1f MB, %.0f bytes an entry, of which %zu are its payloads\n",
              static_cast<double>(on_disk) / 1e6,
              static_cast<double>(on_disk) / static_cast<double>(entries),
              kRequestBytes + kResponseBytes);
  for (int i = 0; i < (entries > 500'000 ? 1 : 3); ++i) {
    uint64_t bytes = 0;
    const double read = HashFiles(folder, bytes);
    const int64_t began = MonotonicMicros();
    const auto report = store::Fsck(folder, {.deep = true});
    const double checked = Seconds(MonotonicMicros() - began);
    CHECK(report.ok() && report->clean());
    std::printf(
        "fsck: %.2f s, %.0f MB/s; reading and hashing the same files %.2f s: %.2f of its "
        "speed\n",
        checked, static_cast<double>(bytes) / 1e6 / checked, read, read / checked);
  }
  return 0;
}

int Usage() {
  std::fprintf(stderr,
               "ledger_bench appends [--seconds S] [--repeats N] [--folder DIR]\n"
               "ledger_bench log [--entries N] [--folder DIR] [--keep]\n");
  return 2;
}

int Main(int argc, char** argv) {
  if (argc < 2) return Usage();
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const std::string_view what = argv[1];
  double seconds = 2;
  size_t repeats = 5;
  uint64_t entries = 1'000'000;
  bool keep = false;
  std::string folder;
  for (int i = 2; i < argc; ++i) {
    const std::string_view flag = argv[i];
    if (flag == "--keep") {
      keep = true;
    } else if (i + 1 == argc) {
      return Usage();
    } else if (flag == "--seconds") {
      seconds = std::atof(argv[++i]);
    } else if (flag == "--repeats") {
      repeats = static_cast<size_t>(std::atoll(argv[++i]));
    } else if (flag == "--entries") {
      entries = static_cast<uint64_t>(std::atoll(argv[++i]));
    } else if (flag == "--folder") {
      folder = argv[++i];
    } else {
      return Usage();
    }
  }
  if (folder.empty()) {
    folder =
        std::string(fs::temp_directory_path()) + "/verbatim-ledger-" + HexEncode(RandomBytes(8));
  }
  fs::create_directories(folder);
  int rc = 2;
  if (what == "appends") rc = Appends(folder, seconds, std::max<size_t>(repeats, 1));
  if (what == "log") rc = Log(folder, std::max<uint64_t>(entries, 10));
  if (!keep) fs::remove_all(folder);
  return rc == 2 ? Usage() : rc;
}

}  // namespace
}  // namespace verbatim

int main(int argc, char** argv) { return verbatim::Main(argc, argv); }
