// The program `verbatim`: parses the command line and runs one command. Exit status: 0 success,
// 1 a check failed (a divergence, a broken proof), 2 usage or environment.
#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <exception>

#include "cli/commands.h"

namespace {

constexpr int kUsage = 2;

int Run(int argc, char** argv) {
  CLI::App app{
      "Verbatim: the same request gives the same bytes, and a proof of it.\n"
      "A gateway in front of text-generation APIs with an engine whose results do not depend on "
      "load\n"
      "or hardware, and a ledger that can be checked without trusting whoever runs it.",
      "verbatim"};
  app.set_version_flag("--version", VERBATIM_VERSION);
  app.require_subcommand(1);
  // The commands, in the order of the help.
  verbatim::cli::AddFsck(app);
  verbatim::cli::AddExport(app);
  verbatim::cli::AddVerify(app);
  verbatim::cli::AddBackup(app);
  verbatim::cli::AddRecords(app);
  verbatim::cli::AddServe(app);
  verbatim::cli::AddGenerate(app);
  verbatim::cli::AddModels(app);
  verbatim::cli::AddCanonical(app);
  verbatim::cli::AddFingerprint(app);
  verbatim::cli::AddPolicy(app);
  verbatim::cli::AddKeys(app);
  verbatim::cli::AddProof(app);

  app.failure_message([](const CLI::App* a, const CLI::Error& e) {
    std::string path = a->get_name();
    for (const CLI::App* sub : a->get_subcommands()) path += " " + sub->get_name();
    return std::string("verbatim: ") + e.what() + "; see " + path + " --help\n";
  });

  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {
    return app.exit(e);  // --help, --version
  } catch (const CLI::RuntimeError& e) {
    return e.get_exit_code();
  } catch (const CLI::ParseError& e) {
    app.exit(e);
    return kUsage;
  }
  return std::fflush(stdout) == 0 ? 0 : kUsage;
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  try {
    return Run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "verbatim: %s\n", e.what());
    return kUsage;
  }
}
