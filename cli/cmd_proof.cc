// verbatim proof: an entry's tlog-proof file, from a data folder.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "audit/open_ledger.h"
#include "cli/commands.h"
#include "store/anchors.h"
#include "store/tlog_proof.h"

namespace verbatim::cli {
namespace {

struct Flags {
  std::string data, out;
  uint64_t entry = 0;
};

// The proof under the newest cosigned checkpoint that covers the entry, else under the newest one;
// checked before it is given out.
Result<std::string> MakeProof(const Flags& flags) {
  auto ledger = audit::OpenLedger::Open(flags.data);
  if (!ledger.ok()) return ledger.error();
  const store::Reader& reader = (*ledger)->reader();
  Result<std::vector<store::LogKey>> log_keys = reader.LogKeys();
  if (!log_keys.ok()) return log_keys.error();
  Result<std::string> leaf = reader.LeafBytes(flags.entry);
  if (!leaf.ok()) return leaf.error();
  Result<std::string> cosigned = store::ReadCosigned(reader.kv(), UINT64_MAX);
  if (!cosigned.ok()) return cosigned.error();

  for (const std::string& checkpoint : {*cosigned, (*ledger)->checkpoint()}) {
    if (checkpoint.empty()) continue;
    Result<store::TreeHead> head = store::OpenCheckpoint(checkpoint, *log_keys);
    if (!head.ok()) return head.error();
    if (flags.entry >= head->size) continue;
    Result<std::vector<Digest>> path =
        store::InclusionProof(flags.entry, head->size, reader.nodes());
    if (!path.ok()) return path.error();
    const store::TlogProof proof{flags.entry, std::move(*path), checkpoint, ""};
    Result<store::TreeHead> holds = store::VerifyTlogProof(proof, *leaf, *log_keys, {}, 0);
    if (!holds.ok()) {
      return Error{Code::kCorrupt, holds.error().message + "; run verbatim fsck"};
    }
    return store::FormatTlogProof(proof);
  }
  return Error{Code::kUnavailable, "no checkpoint covers entry " + std::to_string(flags.entry) +
                                       " yet; try again in a second"};
}

void Run(const Flags& flags) {
  Result<std::string> proof = MakeProof(flags);
  Status written;
  if (proof.ok() && !flags.out.empty()) {
    std::ofstream file(flags.out, std::ios::binary);
    file << *proof;
    if (!file.flush()) written = Error{Code::kIo, "cannot write " + flags.out};
  }
  if (!proof.ok() || !written.ok()) {
    std::fprintf(stderr, "verbatim proof: %s\n",
                 (proof.ok() ? written.error() : proof.error()).message.c_str());
    throw CLI::RuntimeError(2);
  }
  if (flags.out.empty()) std::fputs(proof->c_str(), stdout);
}

}  // namespace

void AddProof(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "proof", "An entry's proof as a tlog-proof file, which other tools check offline");
  auto flags = std::make_shared<Flags>();
  command->add_option("--data", flags->data, "the data folder")->required();
  command->add_option("--entry", flags->entry, "the entry's number")->required();
  command->add_option("--out", flags->out, "a file to write (standard output)")->type_name("FILE");
  command->footer("Example: verbatim proof --data DIR --entry 12 --out 12.tlog-proof");
  command->callback([flags] { Run(*flags); });
}

}  // namespace verbatim::cli
