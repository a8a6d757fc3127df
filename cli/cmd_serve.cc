// verbatim serve: the gateway, until SIGINT or SIGTERM; SIGHUP reads its configuration again.
#include <pthread.h>
#include <signal.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <semaphore>
#include <string>
#include <thread>
#include <vector>

#include "cli/commands.h"
#include "cli/files.h"
#include "gateway/gateway.h"
#include "policies/loader.h"

namespace verbatim::cli {
namespace {

constexpr int kUsage = 2;
constexpr int kInterrupted = 130;  // as shells report a program that Ctrl-C ended

struct Flags {
  std::string config, listen, data, origin, device = "cpu";
  std::vector<std::string> models;
  uint64_t threads = 0;
  int tensor_parallel = 1, replicas = 1;
};

[[noreturn]] void Fail(const std::string& message) {
  std::fprintf(stderr, "verbatim serve: %s\n", message.c_str());
  throw CLI::RuntimeError(kUsage);
}

void PrintLine(std::string_view line) {
  std::fprintf(stderr, "verbatim serve: %.*s\n", static_cast<int>(line.size()), line.data());
}

// SIGINT, SIGTERM and SIGHUP go to one thread. Before the server serves there is nothing to finish:
// the first of the two former ends the program. After that the first one asks for a drain, which a
// Ctrl-C cuts short; a further SIGTERM does not (whoever supervises may send it to a whole process
// group). SIGHUP asks for a reload; several that come before it is done are one.
class Signals {
 public:
  enum class Asked { kReload, kStop };

  Signals() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGINT);
    sigaddset(&set_, SIGTERM);
    sigaddset(&set_, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);  // inherited by every thread made later
    std::thread([shared = shared_, set = set_] {
      while (WaitForOne(set) == SIGHUP) {
        if (!shared->reload.exchange(true)) shared->asked.release();
      }
      if (!shared->serving) std::_Exit(0);
      shared->stop = true;
      shared->asked.release();
      while (WaitForOne(set) != SIGINT) {
      }
      PrintLine("ended at once by Ctrl-C, without waiting for running requests");
      std::_Exit(kInterrupted);
    }).detach();
  }
  void SetServing() { shared_->serving = true; }
  Asked Wait() {
    shared_->asked.acquire();
    if (shared_->stop) return Asked::kStop;
    shared_->reload = false;  // one that comes from now on is another one
    return Asked::kReload;
  }

 private:
  static int WaitForOne(const sigset_t& set) {
    int signal = 0;
    while (sigwait(&set, &signal) != 0) {
    }
    return signal;
  }

  struct Shared {
    std::atomic<bool> serving = false, reload = false, stop = false;
    std::counting_semaphore<2> asked{0};
  };
  sigset_t set_;
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

// The file's configuration, or the default one, with what the command line says.
Result<policies::Config> MakeConfig(const Flags& flags) {
  policies::Config config = policies::DefaultConfig();
  if (!flags.config.empty()) {
    auto loaded = policies::LoadConfig(flags.config);
    if (!loaded.ok()) return loaded.error();
    config = std::move(loaded).value();
  }
  if (!flags.listen.empty()) config.server.listen = flags.listen;
  if (!flags.origin.empty()) config.origin = flags.origin;
  if (!flags.data.empty()) config.data = flags.data;
  if (config.data.empty()) {
    auto folder = DefaultDataFolder();
    if (!folder.ok()) return folder.error();
    config.data = *std::move(folder);
  }
  if (flags.threads > 0) config.engine.threads = flags.threads;
  for (const std::string& model : flags.models) {
    const size_t equals = model.find('=');
    if (equals == 0 || equals == std::string::npos || equals + 1 == model.size()) {
      return Error{Code::kInvalid, "--model '" + model + "' must be NAME=FILE"};
    }
    config.models[model.substr(0, equals)].file = model.substr(equals + 1);
  }
  return config;
}

void CheckDevice(const Flags& flags) {
  if (flags.device != "cpu") {
    Fail("--device " + flags.device + ": this build serves on the CPU only; use --device cpu");
  }
  if (flags.tensor_parallel != 1 || flags.replicas != 1) {
    Fail(
        "--tp and --replicas spread a model over GPUs; this build serves on the CPU only, where "
        "both must be 1");
  }
}

void Serve(const Flags& flags) {
  CheckDevice(flags);
  const Result<policies::Config> config = MakeConfig(flags);
  if (!config.ok()) Fail(config.error().message);
  Signals signals;
  auto started = gateway::Gateway::Start(*config, PrintLine);
  if (!started.ok()) Fail(started.error().message);
  gateway::Gateway& gateway = **started;
  signals.SetServing();
  std::error_code ec;
  std::printf("verbatim serves %s, models: %s, data: %s\n", gateway.url().c_str(),
              gateway.models().c_str(), std::filesystem::absolute(config->data, ec).c_str());
  std::fflush(stdout);
  if (!gateway.locked().empty()) {
    PrintLine("nothing is generated, by the policy's software lock: " + gateway.locked());
  }
  uint64_t drain_ms = config->server.drain_ms;
  while (signals.Wait() == Signals::Asked::kReload) {
    const Result<policies::Config> next = MakeConfig(flags);
    const Status reloaded = gateway.Reload(next);
    if (reloaded.ok()) drain_ms = next->server.drain_ms;
    PrintLine(reloaded.ok() ? "the configuration was reloaded"
                            : "the configuration was rejected, and the old one stays in force: " +
                                  reloaded.error().message);
  }
  PrintLine("stopping: running requests finish first (again Ctrl-C ends at once)");
  const Status closed = gateway.Drain(std::chrono::milliseconds(drain_ms), PrintLine);
  if (!closed.ok()) Fail("the ledger was not closed cleanly: " + closed.error().message);
  PrintLine("stopped");
}

}  // namespace

void AddServe(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand("serve", "Run the gateway until Ctrl-C or SIGTERM");
  command->add_option("--config", flags->config, "YAML file with everything below and more")
      ->type_name("FILE");
  command->add_option("--listen", flags->listen, "Address to serve on (127.0.0.1:8080)")
      ->type_name("HOST:PORT");
  command->add_option("--data", flags->data, "Data folder (~/.local/share/verbatim)")
      ->type_name("DIR");
  command->add_option("--origin", flags->origin, "Name of the log, at its first start only")
      ->type_name("NAME");
  command->add_option("--model", flags->models, "A model by the name that clients use; repeatable")
      ->type_name("NAME=FILE");
  command->add_option("--device", flags->device, "cpu; this build has no other")->type_name("NAME");
  command->add_option("--threads", flags->threads, "Threads that compute (one per core)");
  command->add_option("--tp", flags->tensor_parallel, "GPUs that share one model");
  command->add_option("--replicas", flags->replicas, "Copies of the model on GPUs");
  command->footer("Example: verbatim serve --model smollm2-135m=$(tools/fetch-model)");
  command->callback([flags] { Serve(*flags); });
}

}  // namespace verbatim::cli
