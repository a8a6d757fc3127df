// Character tables of Unicode, for code points from U+0080 on. Sorted; counts stand beside.
#pragma once

#include <cstddef>
#include <cstdint>

namespace verbatim::engine {

struct CodeRange {
  uint32_t first, last;
};
// Every `step`-th code point from first to last maps to itself plus delta.
struct CaseRange {
  uint32_t first, last, step;
  int32_t delta;
};
// One code point whose mapping is several, or (title case) differs from upper case.
struct CaseString {
  uint32_t code;
  const char* text;
};

extern const CaseRange kUpperRanges[];
extern const size_t kUpperRangesCount;
extern const CaseRange kLowerRanges[];
extern const size_t kLowerRangesCount;
extern const CaseString kUpperStrings[];
extern const size_t kUpperStringsCount;
extern const CaseString kLowerStrings[];
extern const size_t kLowerStringsCount;
extern const CaseString kTitleStrings[];
extern const size_t kTitleStringsCount;
extern const CodeRange kAlphaRanges[];
extern const size_t kAlphaRangesCount;
extern const CodeRange kDigitRanges[];
extern const size_t kDigitRangesCount;
extern const CodeRange kPrintableRanges[];
extern const size_t kPrintableRangesCount;
extern const CodeRange kUppercaseRanges[];
extern const size_t kUppercaseRangesCount;
extern const CodeRange kLowercaseRanges[];
extern const size_t kLowercaseRangesCount;

}  // namespace verbatim::engine
