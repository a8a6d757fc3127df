// The subcommands of `verbatim`, one file each (cmd_<name>.cc). AddXxx registers the command with
// its flags, help and example; its callback runs it. A callback ends the program early by throwing
// CLI::RuntimeError(code): 1 a check failed, 2 usage or environment, after one line on stderr.
#pragma once

#include <CLI/App.hpp>

namespace verbatim::cli {

// Commands, in the order of the help.
void AddFsck(CLI::App& app);
void AddExport(CLI::App& app);
void AddVerify(CLI::App& app);
void AddBackup(CLI::App& app);   // backup, restore
void AddRecords(CLI::App& app);  // hold, release, shred, prune
void AddServe(CLI::App& app);
void AddGenerate(CLI::App& app);
void AddModels(CLI::App& app);
void AddCanonical(CLI::App& app);
void AddFingerprint(CLI::App& app);
void AddPolicy(CLI::App& app);
void AddKeys(CLI::App& app);
void AddProof(CLI::App& app);

}  // namespace verbatim::cli
