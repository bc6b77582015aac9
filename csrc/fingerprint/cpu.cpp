#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <mutex>

#include "fingerprint/kernels.h"
#include "fingerprint/mix64.h"
#include "fingerprint/totals.h"

namespace opguard::fingerprint {
namespace {

struct VectorCode {
  const char* name;
  Kernel kernel;
};

// Best first.
constexpr VectorCode kCodes[] = {
#if OPGUARD_X86_KERNELS
    {"avx512", sum_words_avx512},
    {"avx2", sum_words_avx2},
#endif
    {"generic", sum_words_generic},
};
constexpr std::size_t kCodeCount = sizeof(kCodes) / sizeof(kCodes[0]);

bool runs_here(const VectorCode& code) {
#if OPGUARD_X86_KERNELS
  if (code.kernel == sum_words_avx512) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq");
  }
  if (code.kernel == sum_words_avx2) return __builtin_cpu_supports("avx2");
#endif
  return code.kernel == sum_words_generic;
}

/// Those that run here, best first.
struct Available {
  Available() {
    std::size_t count = 0;
    for (const VectorCode& code : kCodes) {
      if (!runs_here(code)) continue;
      codes[count] = &code;
      names[count++] = code.name;
    }
  }
  const VectorCode* codes[kCodeCount + 1] = {};
  const char* names[kCodeCount + 1] = {};  // null at the end
};

const Available& available() {
  static const Available found;
  return found;
}

std::atomic<const VectorCode*> in_use{nullptr};

const VectorCode& code_in_use() {
  const VectorCode* code = in_use.load(std::memory_order_relaxed);
  if (code == nullptr) {
    code = available().codes[0];
    in_use.store(code, std::memory_order_relaxed);
  }
  return *code;
}

/// A call through a pointer costs as much as this many words.
constexpr std::size_t kTinyWords = 4;

Sums sum_whole(const std::uint8_t* data, std::size_t nbytes) {
  const std::size_t words = nbytes / kWord, rest = nbytes % kWord;
  Sums sums;
  if (words <= kTinyWords) {
    for (std::size_t word = 0; word < words; ++word) {
      add_word(sums, load_word(data + word * kWord), position_of(word));
    }
  } else {
    sums = kernel()(data, words, position_of(0));
  }
  if (rest != 0) add_word(sums, load_part(data + words * kWord, rest), position_of(words));
  return sums;
}

Totals sum_parts(const std::uint8_t* data, std::size_t nbytes, bool by_region,
                 const RunParts& run, int parts) {
  Totals totals(nbytes, by_region);
  std::mutex mutex;
  const std::size_t words = nbytes / kWord;
  const auto work = [&](int part) {
    const auto count = static_cast<std::size_t>(parts), number = static_cast<std::size_t>(part);
    const auto start = [&](std::size_t of) {
      return words / count * of + std::min(of, words % count);
    };
    const std::size_t first = start(number);
    const std::size_t end = number + 1 == count ? nbytes : start(number + 1) * kWord;
    Totals own(nbytes, by_region);
    own.add(data + first * kWord, end - first * kWord, first);
    const std::lock_guard<std::mutex> lock(mutex);
    totals.merge(own);
  };
  // By reference: a function of more than two captured words is allocated.
  run(parts, std::ref(work));
  return totals;
}

}  // namespace

Kernel kernel() { return code_in_use().kernel; }

Digest digest(const void* data, std::size_t nbytes, Regions* regions, const RunParts* run,
              int parts) {
  const auto* bytes = static_cast<const std::uint8_t*>(data);
  if (run != nullptr && parts > 1) {
    return sum_parts(bytes, nbytes, regions != nullptr, *run, parts).digest(regions);
  }
  if (regions == nullptr) {
    const Sums sums = sum_whole(bytes, nbytes);
    return {sums.mix, static_cast<std::uint32_t>(sums.fold ^ sums.fold >> 32)};
  }
  Totals totals(nbytes, true);
  totals.add(bytes, nbytes, 0);
  return totals.digest(regions);
}

const char* const* vector_codes() { return available().names; }

bool use_vector_code(const char* name) {
  for (const VectorCode* const* code = available().codes; *code != nullptr; ++code) {
    if (std::strcmp((*code)->name, name) == 0) {
      in_use.store(*code, std::memory_order_relaxed);
      return true;
    }
  }
  return false;
}

const char* vector_code() { return code_in_use().name; }

}  // namespace opguard::fingerprint
