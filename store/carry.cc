#include "store/carry.h"

#include <unistd.h>

#include <chrono>
#include <thread>

#include "base/clock.h"
#include "store/control.h"
#include "store/ledger.h"

namespace verbatim::store {
namespace {

constexpr int64_t kWaitMicros = 10'000'000;

Result<LifeReport> Here(DataFolder folder, const LifeCommand& command) {
  LedgerOptions options;
  options.control_socket = false;
  Result<std::unique_ptr<Ledger>> ledger = Ledger::Open(std::move(folder), std::move(options));
  if (!ledger.ok()) return ledger.error();
  Result<LifeReport> report = (*ledger)->Apply(command);
  const Status closed = (*ledger)->Close();
  if (report.ok() && !closed.ok()) return closed.error();
  return report;
}

}  // namespace

Result<LifeReport> CarryOut(const std::string& path, const LifeCommand& command,
                            const std::function<void()>& waiting) {
  const DataFolder unlocked = DataFolder::Unlocked(path);
  if (::access((unlocked.database() + "/CURRENT").c_str(), F_OK) != 0) {
    return Error{Code::kNotFound,
                 "there is no ledger in " + path + "; name a data folder with --data"};
  }
  // What is wrong with the command is found before anything is opened.
  if (Result<LifeCommand> checked = LifeCommandFromJson(ToJson(command)); !checked.ok()) {
    return checked.error();
  }
  LifeCommand ours = command;
  ours.by = "uid " + std::to_string(::getuid());
  const std::string line = "records " + json::Canonical(ToJson(ours));
  const std::function<void()> patient = [&] {
    if (waiting) waiting();
  };
  const int64_t give_up = MonotonicMicros() + kWaitMicros;
  for (;;) {
    Result<std::string> answer = AskServer(unlocked, line, patient);
    Result<LifeReport> report =
        answer.ok() ? LifeReportFromAnswer(*answer) : Result<LifeReport>(answer.error());
    if (report.ok()) return report;
    bool again = report.error().code == Code::kUnavailable;
    if (!answer.ok() && answer.error().code == Code::kNotFound) {
      Result<DataFolder> folder = DataFolder::Open(path);
      report = folder.ok() ? Here(std::move(*folder), ours) : Result<LifeReport>(folder.error());
      if (report.ok()) return report;
      // A server that starts or stops has the folder, and does not answer.
      again = report.error().code == (folder.ok() ? Code::kUnavailable : Code::kFailedPrecondition);
    }
    if (!again || MonotonicMicros() > give_up) return report;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

}  // namespace verbatim::store
