#include "kernels/isa.h"

#include <cstdlib>
#include <string>

#include "kernels/cpu/tables.h"
#include "kernels/ops.h"

namespace verbatim::kernels {
namespace {

constexpr Isa kAll[] = {Isa::kScalar, Isa::kAvx2, Isa::kAvx512Vnni};

}  // namespace

const char* IsaName(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return "scalar";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512Vnni:
      return "avx512vnni";
  }
  return "unknown";
}

bool IsAvailable(Isa isa) {
  if (isa == Isa::kScalar) return true;
#ifdef VERBATIM_X86
  // These builtins read CPUID and XGETBV: the operating system must save the registers too.
  if (isa == Isa::kAvx2) return __builtin_cpu_supports("avx2");
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("avx512f") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
#else
  return false;
#endif
}

std::vector<Isa> AvailableIsas() {
  std::vector<Isa> out;
  for (Isa isa : kAll) {
    if (IsAvailable(isa)) out.push_back(isa);
  }
  return out;
}

Isa DetectIsa() { return AvailableIsas().back(); }

Result<Isa> ChooseIsa(std::string_view name) {
  if (name.empty()) {
    const char* env = std::getenv("VERBATIM_ISA");
    if (env != nullptr) name = env;
  }
  if (name.empty()) return DetectIsa();
  for (Isa isa : kAll) {
    if (name != IsaName(isa)) continue;
    if (IsAvailable(isa)) return isa;
    return Error{Code::kUnsupported, "this machine cannot run the instruction set " +
                                         std::string(name) + "; the fastest here is " +
                                         IsaName(DetectIsa())};
  }
  return Error{Code::kInvalid, "unknown instruction set \"" + std::string(name) +
                                   "\"; allowed: scalar, avx2, avx512vnni"};
}

const Ops& Select(Isa isa) {
  CHECK(IsAvailable(isa));
#ifdef VERBATIM_X86
  if (isa == Isa::kAvx2) return cpu::Avx2Ops();
  if (isa == Isa::kAvx512Vnni) return cpu::Avx512VnniOps();
#endif
  return cpu::ReferenceOps();
}

}  // namespace verbatim::kernels
