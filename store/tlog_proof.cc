#include "store/tlog_proof.h"

#include <charconv>

#include "store/merkle.h"

namespace verbatim::store {
namespace {

constexpr std::string_view kFirstLine = "c2sp.org/tlog-proof@v1\n";
constexpr size_t kMaxBytes = size_t{2} << 20;
constexpr size_t kMaxPath = 64;  // a path in a tree of 2^64 leaves

Error Malformed(const char* what) {
  return {Code::kInvalid, std::string("malformed tlog-proof: ") + what};
}

// The next line without its end; false where no whole line is left.
bool TakeLine(std::string_view& text, std::string_view* line) {
  const size_t end = text.find('\n');
  if (end == std::string_view::npos) return false;
  *line = text.substr(0, end);
  text.remove_prefix(end + 1);
  return true;
}

}  // namespace

std::string FormatTlogProof(const TlogProof& proof) {
  std::string text(kFirstLine);
  if (!proof.extra.empty()) text += "extra " + Base64Encode(proof.extra) + "\n";
  text += "index " + std::to_string(proof.index) + "\n";
  for (const Digest& hash : proof.path) text += Base64Encode(AsBytes(hash)) + "\n";
  return text + "\n" + proof.checkpoint;
}

Result<TlogProof> ParseTlogProof(std::string_view text) {
  if (text.size() > kMaxBytes) return Malformed("over two megabytes");
  if (!text.starts_with(kFirstLine)) return Malformed("its first line is another");
  text.remove_prefix(kFirstLine.size());
  TlogProof proof;
  std::string_view line;
  if (!TakeLine(text, &line)) return Malformed("no index line");
  if (line.starts_with("extra ")) {
    Result<std::string> extra = Base64Decode(line.substr(6));
    if (!extra.ok()) return Malformed("the extra data is not base64");
    proof.extra = std::move(*extra);
    if (!TakeLine(text, &line)) return Malformed("no index line");
  }
  if (!line.starts_with("index ")) return Malformed("no index line");
  line.remove_prefix(6);
  const char* end = line.data() + line.size();
  const auto parsed = std::from_chars(line.data(), end, proof.index);
  if (line.empty() || parsed.ec != std::errc() || parsed.ptr != end ||
      (line.size() > 1 && line[0] == '0')) {
    return Malformed("the index is no decimal number");
  }
  for (;;) {
    if (!TakeLine(text, &line)) return Malformed("no empty line before the checkpoint");
    if (line.empty()) break;
    if (proof.path.size() == kMaxPath) return Malformed("its path is longer than any tree's");
    Result<std::string> hash = Base64Decode(line);
    if (!hash.ok() || hash->size() != 32) return Malformed("a line is not the base64 of a hash");
    proof.path.push_back(ToDigest(*hash));
  }
  if (text.empty()) return Malformed("no checkpoint");
  proof.checkpoint = std::string(text);
  return proof;
}

Result<TreeHead> VerifyTlogProof(const TlogProof& proof, std::string_view leaf,
                                 std::span<const LogKey> log_keys,
                                 std::span<const CosignerKey> witnesses, size_t quorum) {
  Result<TreeHead> head = OpenCheckpoint(proof.checkpoint, log_keys);
  if (!head.ok()) return head.error();
  Result<std::vector<Cosignature>> cosigned = OpenCosignatures(proof.checkpoint, witnesses);
  if (!cosigned.ok()) return cosigned.error();
  if (cosigned->size() < quorum) {
    return Error{Code::kNotFound, "the checkpoint has " + std::to_string(cosigned->size()) +
                                      " cosignatures of the named witnesses, not " +
                                      std::to_string(quorum)};
  }
  const Status included =
      VerifyInclusion(proof.index, head->size, LeafHash(leaf), proof.path, head->root);
  if (!included.ok()) return included.error();
  return head;
}

}  // namespace verbatim::store
