// Private to fingerprint/: sums over whole words, one kernel a vector code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "fingerprint/mix64.h"

#if defined(__x86_64__) && !defined(OPGUARD_FORCE_GENERIC)
#define OPGUARD_X86_KERNELS 1
#else
#define OPGUARD_X86_KERNELS 0
#endif

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "Words are loaded as they lie in memory: the processor has to be little-endian."
#endif

namespace opguard::fingerprint {

constexpr std::size_t kWord = sizeof(std::uint64_t);

/// What is summed over words: parts may be merged in any order.
struct Sums {
  std::uint64_t mix = 0;
  std::uint64_t fold = 0;  ///< XOR of the words

  void merge(const Sums& other) {
    mix += other.mix;
    fold ^= other.fold;
  }
};

/// Sums of `words` words at any address. `position`: `(index + 1) * kK` of the first one.
using Kernel = Sums (*)(const std::uint8_t* data, std::size_t words, std::uint64_t position);

Sums sum_words_generic(const std::uint8_t* data, std::size_t words, std::uint64_t position);
#if OPGUARD_X86_KERNELS
Sums sum_words_avx2(const std::uint8_t* data, std::size_t words, std::uint64_t position);
Sums sum_words_avx512(const std::uint8_t* data, std::size_t words, std::uint64_t position);
#endif

/// The kernel of the vector code in use.
Kernel kernel();

inline std::uint64_t position_of(std::uint64_t word) { return (word + 1) * kK; }

inline std::uint64_t load_word(const std::uint8_t* data) {
  std::uint64_t word;
  std::memcpy(&word, data, kWord);
  return word;
}

inline std::uint64_t scramble(std::uint64_t x) {
  x ^= x >> 32;
  x *= kM;
  x ^= x >> 32;
  x *= kM;
  return x ^ x >> 32;
}

inline void add_word(Sums& sums, std::uint64_t word, std::uint64_t position) {
  sums.mix += scramble(word ^ position);
  sums.fold ^= word;
}

/// 1 to 7 bytes as a zero-padded word. A copy of a variable length would be a call of `memcpy`.
inline std::uint64_t load_part(const std::uint8_t* data, std::size_t nbytes) {
  std::uint64_t word = 0;
  std::size_t at = 0;
  if (nbytes & 4) {
    std::uint32_t four;
    std::memcpy(&four, data, 4);
    word = four;
    at = 4;
  }
  if (nbytes & 2) {
    std::uint16_t two;
    std::memcpy(&two, data + at, 2);
    word |= std::uint64_t{two} << 8 * at;
    at += 2;
  }
  if (nbytes & 1) word |= std::uint64_t{data[at]} << 8 * at;
  return word;
}

}  // namespace opguard::fingerprint
