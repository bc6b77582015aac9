#include "fingerprint/kernels.h"

#if OPGUARD_X86_KERNELS
#include <immintrin.h>

namespace opguard::fingerprint {
namespace {

#define OPGUARD_AVX2 __attribute__((target("avx2")))

constexpr std::size_t kLanes = 4;

OPGUARD_AVX2 inline __m256i broadcast(std::uint64_t value) {
  return _mm256_set1_epi64x(static_cast<long long>(value));
}

/// `f(x)` by 32-bit halves: AVX2 has no 64-bit multiplication, and multiplies the low halves of
/// two vectors. The high half of `x ^ x >> 32` is that of x, so `x >> 32` is a multiplicand too; of
/// the first product only its low half and what `>> 32` makes of it are needed.
OPGUARD_AVX2 inline __m256i scramble4(__m256i x) {
  const __m256i low = broadcast(kM & 0xFFFFFFFFu), high = broadcast(kM >> 32);
  __m256i top = _mm256_srli_epi64(x, 32);
  x = _mm256_xor_si256(x, top);
  __m256i cross = _mm256_add_epi64(_mm256_mul_epu32(x, high), _mm256_mul_epu32(top, low));
  x = _mm256_mul_epu32(x, low);
  top = _mm256_add_epi64(_mm256_srli_epi64(x, 32), cross);
  x = _mm256_xor_si256(x, top);
  cross = _mm256_add_epi64(_mm256_mul_epu32(x, high), _mm256_mul_epu32(top, low));
  x = _mm256_add_epi64(_mm256_mul_epu32(x, low), _mm256_slli_epi64(cross, 32));
  return _mm256_xor_si256(x, _mm256_srli_epi64(x, 32));
}

struct Lanes {
  __m256i mix, fold;
};

OPGUARD_AVX2 inline void add_lanes(Lanes& lanes, const std::uint8_t* data, __m256i position) {
  const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data));
  lanes.mix = _mm256_add_epi64(lanes.mix, scramble4(_mm256_xor_si256(words, position)));
  lanes.fold = _mm256_xor_si256(lanes.fold, words);
}

OPGUARD_AVX2 Sums sum_lanes(const Lanes& lanes) {
  std::uint64_t mix[kLanes], fold[kLanes];
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(mix), lanes.mix);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(fold), lanes.fold);
  return {mix[0] + mix[1] + mix[2] + mix[3], fold[0] ^ fold[1] ^ fold[2] ^ fold[3]};
}

}  // namespace

OPGUARD_AVX2 Sums sum_words_avx2(const std::uint8_t* data, std::size_t words,
                                 std::uint64_t position) {
  __m256i at = _mm256_set_epi64x(
      static_cast<long long>(position + 3 * kK), static_cast<long long>(position + 2 * kK),
      static_cast<long long>(position + kK), static_cast<long long>(position));
  const __m256i step = broadcast(kLanes * kK);
  Lanes even{_mm256_setzero_si256(), _mm256_setzero_si256()}, odd = even;
  std::size_t word = 0;
  for (; word + 2 * kLanes <= words; word += 2 * kLanes) {
    const __m256i next = _mm256_add_epi64(at, step);
    add_lanes(even, data + word * kWord, at);
    add_lanes(odd, data + (word + kLanes) * kWord, next);
    at = _mm256_add_epi64(next, step);
  }
  if (word + kLanes <= words) {
    add_lanes(even, data + word * kWord, at);
    word += kLanes;
  }
  even.mix = _mm256_add_epi64(even.mix, odd.mix);
  even.fold = _mm256_xor_si256(even.fold, odd.fold);
  Sums sums = sum_lanes(even);
  for (; word < words; ++word) {
    add_word(sums, load_word(data + word * kWord), position + word * kK);
  }
  return sums;
}

}  // namespace opguard::fingerprint
#endif
