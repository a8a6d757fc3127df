#include "engine/model.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <set>
#include <utility>

#include "base/crypto.h"
#include "engine/weights.h"
#include "kernels/kv_tile.h"
#include "kernels/numerics.h"

namespace verbatim::engine {
namespace {

constexpr uint64_t kMaxVocab = uint64_t{1} << 20;  // numerics.md 11, 13
constexpr uint64_t kMaxContext = uint64_t{1} << 30;

Error Corrupt(const std::string& what) {
  return Error{Code::kCorrupt, "the model file is not sound: " + what};
}
Error Unsupported(const std::string& what) { return Error{Code::kUnsupported, what}; }

// Reads llama.* keys: each getter records the first error, so that a list of reads needs one check.
class KeyReader {
 public:
  KeyReader(const GgufFile& file, std::string architecture)
      : file_(file), prefix_(std::move(architecture) + ".") {}

  uint32_t Uint(const std::string& key, uint64_t min, uint64_t max) {
    Result<uint64_t> v = file_.Uint(prefix_ + key);
    if (!v) return Fail(v.error().code == Code::kNotFound ? Corrupt(v.error().message) : v.error());
    if (*v < min || *v > max) {
      return Fail(Unsupported(prefix_ + key + " is " + std::to_string(*v) + "; from " +
                              std::to_string(min) + " to " + std::to_string(max) +
                              " is supported"));
    }
    return static_cast<uint32_t>(*v);
  }
  uint32_t UintOr(const std::string& key, uint64_t min, uint64_t max, uint32_t otherwise) {
    return file_.Has(prefix_ + key) ? Uint(key, min, max) : otherwise;
  }
  double Float(const std::string& key, double min, double max) {
    Result<double> v = file_.Float(prefix_ + key);
    if (!v) return Fail(v.error().code == Code::kNotFound ? Corrupt(v.error().message) : v.error());
    if (!(*v >= min && *v <= max)) {  // not for NaN either
      return Fail(Unsupported(prefix_ + key + " is " + std::to_string(*v) + ", outside " +
                              std::to_string(min) + " to " + std::to_string(max)));
    }
    return *v;
  }
  double FloatOr(const std::string& key, double min, double max, double otherwise) {
    return file_.Has(prefix_ + key) ? Float(key, min, max) : otherwise;
  }
  std::string StringOr(const std::string& key, const std::string& otherwise) {
    if (!file_.Has(prefix_ + key)) return otherwise;
    Result<std::string_view> v = file_.String(prefix_ + key);
    if (!v) {
      Fail(v.error());
      return otherwise;
    }
    return std::string(*v);
  }
  bool Has(const std::string& key) const { return file_.Has(prefix_ + key); }
  // A key that changes the graph in a way that is not here.
  void Refuse(const std::string& key) {
    if (Has(key)) Fail(Unsupported("the model uses " + prefix_ + key + ", which is not supported"));
  }
  int Fail(Error error) {
    if (status_.ok()) status_ = std::move(error);
    return 0;
  }
  const Status& status() const { return status_; }

 private:
  const GgufFile& file_;
  const std::string prefix_;
  Status status_;
};

// Context extension (numerics.md 7.1), as llama.cpp's files state it.
kernels::RopeScaling ReadRopeScaling(const GgufFile& file, KeyReader& keys) {
  using Method = kernels::RopeScaling::Method;
  constexpr double kMaxFactor = 1e6;
  kernels::RopeScaling scaling;
  std::string type = keys.StringOr("rope.scaling.type", "");
  if (type.empty()) type = keys.Has("rope.scale_linear") ? "linear" : "none";
  if (type == "linear") {
    const char* key = keys.Has("rope.scaling.factor") ? "rope.scaling.factor" : "rope.scale_linear";
    scaling.method = Method::kLinear;
    scaling.factor = keys.Float(key, 1, kMaxFactor);
  } else if (type == "yarn") {
    scaling.method = Method::kYarn;
    scaling.factor = keys.Float("rope.scaling.factor", 1, kMaxFactor);
    scaling.original_context = keys.Uint("rope.scaling.original_context_length", 1, kMaxContext);
    scaling.beta_fast = keys.FloatOr("rope.scaling.yarn_beta_fast", 1e-3, 1e6, 32);
    scaling.beta_slow = keys.FloatOr("rope.scaling.yarn_beta_slow", 1e-3, 1e6, 1);
    for (const char* key : {"rope.scaling.attn_factor", "rope.scaling.yarn_ext_factor",
                            "rope.scaling.yarn_attn_factor", "rope.scaling.yarn_log_multiplier"}) {
      keys.Refuse(key);
    }
  } else if (type != "none") {
    keys.Fail(Unsupported("rope scaling " + Printable(type) +
                          " is not supported; none, linear, yarn and rope_freqs.weight are"));
  }
  if (const GgufTensor* table = file.FindTensor("rope_freqs.weight")) {
    if (scaling.method != Method::kNone) {
      keys.Fail(Unsupported("rope_freqs.weight together with rope scaling " + type +
                            " is not supported"));
    }
    Result<std::vector<float>> values = Dequantise(*table);
    if (!values) {
      keys.Fail(values.error());
    } else {
      scaling.method = Method::kTable;
      scaling.table = std::move(*values);
    }
  }
  return scaling;
}

}  // namespace

const char* FidelityName(Fidelity fidelity) {
  switch (fidelity) {
    case Fidelity::kWBA16:
      return "wba16";
    case Fidelity::kW8A16:
      return "w8a16";
    case Fidelity::kW16A16:
      return "w16a16";
  }
  return "";
}

Result<Fidelity> ParseFidelity(std::string_view name) {
  for (const Fidelity f : {Fidelity::kWBA16, Fidelity::kW8A16, Fidelity::kW16A16}) {
    if (name == FidelityName(f)) return f;
  }
  return Error{Code::kInvalid,
               "fidelity " + Printable(name) + " is unknown; use wba16, w8a16 or w16a16"};
}

Fidelity DefaultFidelity(const GgufFile& file) {
  for (const GgufTensor& t : file.tensors()) {
    if (IsBlockQuantised(t.type)) return Fidelity::kWBA16;
  }
  return Fidelity::kW8A16;
}

std::vector<const kernels::PackedMatrix*> Model::matrices() const {
  std::vector<const kernels::PackedMatrix*> all = {&embedding};
  if (output.N() != 0) all.push_back(&output);
  for (const LayerWeights& l : layers) {
    all.insert(all.end(), {&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down});
  }
  return all;
}

Result<ModelConfig> ReadConfig(const GgufFile& file) {
  constexpr uint64_t kMaxK = kernels::PackedMatrix::kMaxK;
  Result<std::string_view> architecture = file.String("general.architecture");
  if (!architecture) return Corrupt(architecture.error().message);
  if (*architecture != "llama") {
    return Unsupported("the architecture " + Printable(*architecture) +
                       " is not supported; llama is");
  }
  ModelConfig c;
  c.architecture = *architecture;
  KeyReader keys(file, c.architecture);
  c.layers = keys.Uint("block_count", 1, 1024);
  c.dim = keys.Uint("embedding_length", 1, kMaxK);
  c.ffn_dim = keys.Uint("feed_forward_length", 1, kMaxK);
  c.heads = keys.Uint("attention.head_count", 1, 1024);
  c.kv_heads = keys.UintOr("attention.head_count_kv", 1, 1024, c.heads);
  c.context_length = keys.Uint("context_length", 1, kMaxContext);
  c.eps = static_cast<float>(keys.Float("attention.layer_norm_rms_epsilon", 0, 1));
  const double base = keys.FloatOr("rope.freq_base", 1.0001, 1e15, 10000);
  for (const char* key :
       {"expert_count", "attention.sliding_window", "attention.clamp_kqv", "attention.scale",
        "logit_scale", "embedding_scale", "residual_scale", "attn_logit_softcapping",
        "final_logit_softcapping", "use_parallel_residual", "attention.max_alibi_bias"}) {
    keys.Refuse(key);
  }
  if (!keys.status().ok()) return keys.status().error();

  // What depends on several values.
  if (c.heads % c.kv_heads != 0) {
    return Corrupt(std::to_string(c.heads) + " heads cannot share " + std::to_string(c.kv_heads) +
                   " KV heads");
  }
  const bool explicit_head = keys.Has("attention.key_length");
  if (!explicit_head && c.dim % c.heads != 0) {
    return Corrupt("embedding_length " + std::to_string(c.dim) + " is no multiple of " +
                   std::to_string(c.heads) + " heads");
  }
  constexpr uint64_t kMaxHead = kernels::KvTileLayout::kMaxHeadDim;
  c.head_dim = keys.UintOr("attention.key_length", 1, kMaxHead, c.dim / c.heads);
  const uint32_t value_dim = keys.UintOr("attention.value_length", 1, kMaxHead, c.head_dim);
  c.rope_dim = keys.UintOr("rope.dimension_count", 2, kMaxHead, c.head_dim);
  if (!keys.status().ok()) return keys.status().error();
  if (c.head_dim > kMaxHead || c.head_dim % 8 != 0 || value_dim != c.head_dim) {
    return Unsupported("head size " + std::to_string(c.head_dim) + " (values: " +
                       std::to_string(value_dim) + ") is not supported; multiples of 8 up to " +
                       std::to_string(kMaxHead) + ", equal for keys and values, are");
  }
  if (uint64_t{c.heads} * c.head_dim > kMaxK) {
    return Unsupported("all heads together have more than " + std::to_string(kMaxK) + " values");
  }
  if (c.rope_dim > c.head_dim || c.rope_dim % 2 != 0) {
    return Corrupt("rope.dimension_count " + std::to_string(c.rope_dim) +
                   " is odd or larger than the head size " + std::to_string(c.head_dim));
  }
  if (!(c.eps >= 1e-12f)) {
    return Unsupported("layer_norm_rms_epsilon is below 1e-12 (numerics.md 6)");
  }
  const kernels::RopeScaling scaling = ReadRopeScaling(file, keys);
  if (!keys.status().ok()) return keys.status().error();
  Result<kernels::RopeTable> rope = kernels::RopeTable::Make(base, c.rope_dim, scaling);
  if (!rope) return Corrupt(rope.error().message);
  c.rope = std::move(*rope);
  c.attention_scale = kernels::AttentionScale(c.head_dim);

  const GgufTensor* embedding = file.FindTensor("token_embd.weight");
  if (embedding == nullptr) return Corrupt("there is no tensor token_embd.weight");
  const uint64_t vocab = embedding->rows();
  if (vocab > kMaxVocab) {
    return Unsupported("a vocabulary of " + std::to_string(vocab) + " is not supported; at most " +
                       std::to_string(kMaxVocab) + " is");
  }
  c.vocab = static_cast<uint32_t>(vocab);
  if (keys.UintOr("vocab_size", 0, UINT32_MAX, c.vocab) != c.vocab) {
    return Corrupt("llama.vocab_size is not the number of rows of token_embd.weight");
  }
  if (!keys.status().ok()) return keys.status().error();
  return c;
}

namespace {

// Collects what to load, then loads it with all workers: one job per tensor.
class Loader {
 public:
  Loader(const GgufFile& file, Fidelity fidelity) : file_(file), fidelity_(fidelity) {
    digests_.resize(file.tensors().size());
  }

  // A matrix [rows][columns], with its bias where the file has one.
  void Matrix(const std::string& name, uint64_t rows, uint64_t columns,
              kernels::PackedMatrix& out) {
    const GgufTensor* bias = Optional(name + ".bias", {rows});
    const GgufTensor* tensor = Required(name + ".weight", {columns, rows});
    if (tensor != nullptr) jobs_.push_back({tensor, bias, &out, nullptr});
  }
  void Vector(const std::string& name, uint64_t size, std::vector<float>& out) {
    const GgufTensor* tensor = Required(name + ".weight", {size});
    if (tensor != nullptr) jobs_.push_back({tensor, nullptr, nullptr, &out});
  }
  // Checked elsewhere, and part of the digest.
  void Known(const std::string& name) {
    if (const GgufTensor* tensor = file_.FindTensor(name)) {
      used_.insert(tensor->name);
      jobs_.push_back({tensor, nullptr, nullptr, nullptr});
    }
  }
  bool Has(const std::string& name) const { return file_.FindTensor(name) != nullptr; }

  Status Run(WorkerPool& workers, const std::function<void(double)>& progress) {
    if (!status_.ok()) return status_;
    for (const GgufTensor& t : file_.tensors()) {
      if (!used_.contains(t.name)) {
        return Unsupported("tensor " + Printable(t.name) +
                           " has no place in the llama graph; the model would be another one");
      }
    }
    // Large ones first, so that the workers finish together.
    std::sort(jobs_.begin(), jobs_.end(), [](const Job& a, const Job& b) {
      return std::pair(b.tensor->bytes.size(), a.tensor->name) <
             std::pair(a.tensor->bytes.size(), b.tensor->name);
    });
    std::vector<Status> results(jobs_.size());
    std::atomic<size_t> next{0}, bytes_done{0};
    size_t bytes = 1;
    for (const Job& job : jobs_) bytes += job.tensor->bytes.size();
    workers.Run([&](uint32_t worker) {
      for (size_t i = next.fetch_add(1); i < jobs_.size(); i = next.fetch_add(1)) {
        results[i] = RunJob(jobs_[i]);
        const size_t done = bytes_done.fetch_add(jobs_[i].tensor->bytes.size());
        if (worker == 0 && progress) {
          progress(static_cast<double>(done) / static_cast<double>(bytes));
        }
      }
    });
    for (Status& s : results) {
      if (!s.ok()) return std::move(s);
    }
    return {};
  }

  const std::vector<Digest>& digests() const { return digests_; }

 private:
  struct Job {
    const GgufTensor* tensor;
    const GgufTensor* bias;
    kernels::PackedMatrix* matrix;
    std::vector<float>* vector;
  };

  const GgufTensor* Optional(const std::string& name, const std::vector<uint64_t>& dims) {
    const GgufTensor* tensor = file_.FindTensor(name);
    return tensor == nullptr ? nullptr : Required(name, dims);
  }

  const GgufTensor* Required(const std::string& name, const std::vector<uint64_t>& dims) {
    const GgufTensor* tensor = file_.FindTensor(name);
    if (tensor == nullptr) {
      Fail("there is no tensor " + name);
      return nullptr;
    }
    used_.insert(tensor->name);
    std::vector<uint64_t> actual = tensor->dims;
    while (actual.size() > dims.size() && actual.back() == 1) actual.pop_back();
    if (actual != dims) {
      std::string want, got;
      for (const uint64_t d : dims) want += " " + std::to_string(d);
      for (const uint64_t d : tensor->dims) got += " " + std::to_string(d);
      Fail("tensor " + name + " has the dimensions" + got + " where the configuration needs" +
           want);
      return nullptr;
    }
    return tensor;
  }

  void Fail(const std::string& what) {
    if (status_.ok()) status_ = Corrupt(what);
  }

  Status RunJob(const Job& job) {
    DigestOf(*job.tensor);
    std::vector<float> bias;
    if (job.bias != nullptr) {
      DigestOf(*job.bias);
      Result<std::vector<float>> values = Dequantise(*job.bias);
      if (!values) return values.error();
      bias = std::move(*values);
    }
    if (job.matrix != nullptr) {
      Result<kernels::PackedMatrix> matrix = PackTensor(*job.tensor, fidelity_, bias);
      if (!matrix) return matrix.error();
      *job.matrix = std::move(*matrix);
    } else if (job.vector != nullptr) {
      Result<std::vector<float>> values = Dequantise(*job.tensor);
      if (!values) return values.error();
      *job.vector = std::move(*values);
    }
    return {};
  }

  // Each tensor belongs to one job, so no two threads write the same digest.
  void DigestOf(const GgufTensor& tensor) {
    digests_[static_cast<size_t>(&tensor - file_.tensors().data())] = Sha256(tensor.bytes);
  }

  const GgufFile& file_;
  const Fidelity fidelity_;
  std::set<std::string_view> used_;
  std::vector<Job> jobs_;
  std::vector<Digest> digests_;
  Status status_;
};

}  // namespace

namespace {

// Every token reads all weights once: with pages of 2 MiB the processor looks up far fewer
// addresses (a seventh less time per token measured). The system may refuse; then they stay as they
// are.
void UseHugePages(const Model& model) {
  constexpr uintptr_t kHugePage = uintptr_t{2} << 20;
  constexpr int kCollapse = 25;  // MADV_COLLAPSE of Linux 6.1, which C libraries of its time lack
  std::set<uintptr_t> pages;     // those that hold weights; what else they hold may move along
  for (const kernels::PackedMatrix* m : model.matrices()) {
    const auto begin = reinterpret_cast<uintptr_t>(m->group(0));
    for (uintptr_t p = begin / kHugePage; p <= (begin + m->bytes() - 1) / kHugePage; ++p) {
      pages.insert(p);
    }
  }
  for (const uintptr_t p : pages) {
    madvise(reinterpret_cast<void*>(p * kHugePage), kHugePage, kCollapse);
  }
}

}  // namespace

Result<Model> LoadModel(const GgufFile& file, Fidelity fidelity, WorkerPool& workers,
                        const std::function<void(double)>& progress) {
  Result<ModelConfig> config = ReadConfig(file);
  if (!config) return config.error();
  Model model;
  model.config = std::move(*config);
  const ModelConfig& c = model.config;
  model.fidelity = fidelity;
  if (Result<std::string_view> name = file.String("general.name"); name && IsUtf8(*name)) {
    model.display_name = *name;
  }
  for (const GgufTensor& t : file.tensors()) model.parameters += t.columns() * t.rows();

  const uint64_t q_dim = uint64_t{c.heads} * c.head_dim;
  const uint64_t kv_dim = uint64_t{c.kv_heads} * c.head_dim;
  Loader loader(file, fidelity);
  loader.Matrix("token_embd", c.vocab, c.dim, model.embedding);
  if (loader.Has("output.weight")) loader.Matrix("output", c.vocab, c.dim, model.output);
  loader.Vector("output_norm", c.dim, model.output_norm);
  loader.Known("rope_freqs.weight");
  model.layers.resize(c.layers);
  for (uint32_t i = 0; i < c.layers; ++i) {
    const std::string block = "blk." + std::to_string(i) + ".";
    LayerWeights& layer = model.layers[i];
    loader.Vector(block + "attn_norm", c.dim, layer.attn_norm);
    loader.Matrix(block + "attn_q", q_dim, c.dim, layer.q);
    loader.Matrix(block + "attn_k", kv_dim, c.dim, layer.k);
    loader.Matrix(block + "attn_v", kv_dim, c.dim, layer.v);
    loader.Matrix(block + "attn_output", c.dim, q_dim, layer.o);
    loader.Vector(block + "ffn_norm", c.dim, layer.ffn_norm);
    loader.Matrix(block + "ffn_gate", c.ffn_dim, c.dim, layer.gate);
    loader.Matrix(block + "ffn_up", c.ffn_dim, c.dim, layer.up);
    loader.Matrix(block + "ffn_down", c.dim, c.ffn_dim, layer.down);
  }
  if (Status s = loader.Run(workers, progress); !s.ok()) return s.error();
  if (model.embedding.has_bias()) return Unsupported("token_embd.bias is not supported");
  model.digest = ModelDigest(file, c.architecture, loader.digests());
  UseHugePages(model);
  return model;
}

namespace {

void AppendString(std::string& out, std::string_view s) {
  AppendU64(out, s.size());
  out += s;
}

void AppendValue(std::string& out, const GgufValue& value) {
  AppendU32(out, static_cast<uint32_t>(value.type));
  if (const auto* u = std::get_if<uint64_t>(&value.value)) AppendU64(out, *u);
  if (const auto* i = std::get_if<int64_t>(&value.value)) AppendU64(out, static_cast<uint64_t>(*i));
  if (const auto* d = std::get_if<double>(&value.value)) {
    AppendU64(out, std::bit_cast<uint64_t>(*d));
  }
  if (const auto* b = std::get_if<bool>(&value.value)) AppendU64(out, *b ? 1 : 0);
  if (const auto* s = std::get_if<std::string_view>(&value.value)) AppendString(out, *s);
  if (const auto* a = std::get_if<GgufArray>(&value.value)) {
    AppendU32(out, static_cast<uint32_t>(a->element));
    AppendU64(out, a->count);
    out += a->raw;
    for (const std::string_view s : a->strings) AppendString(out, s);
  }
}

}  // namespace

Digest ModelDigest(const GgufFile& file, std::string_view architecture,
                   const std::vector<Digest>& tensor_digests) {
  CHECK(tensor_digests.size() == file.tensors().size());
  const std::string own_keys = std::string(architecture) + ".";
  Sha256Stream hash;
  std::string text("verbatim-model-1");
  text.push_back('\0');
  for (const auto& [key, value] : file.metadata()) {  // in byte order
    if (key != "general.architecture" && !key.starts_with(own_keys) &&
        !key.starts_with("tokenizer.")) {
      continue;
    }
    AppendString(text, key);
    AppendValue(text, value);
    hash.Update(text);
    text.clear();
  }
  std::map<std::string_view, size_t> by_name;
  for (size_t i = 0; i < file.tensors().size(); ++i) by_name[file.tensors()[i].name] = i;
  for (const auto& [name, i] : by_name) {
    const GgufTensor& tensor = file.tensors()[i];
    AppendString(text, name);
    AppendU32(text, static_cast<uint32_t>(tensor.type));
    AppendU32(text, static_cast<uint32_t>(tensor.dims.size()));
    for (const uint64_t d : tensor.dims) AppendU64(text, d);
    text += AsBytes(tensor_digests[i]);
  }
  hash.Update(text);
  return hash.Finish();
}

}  // namespace verbatim::engine
