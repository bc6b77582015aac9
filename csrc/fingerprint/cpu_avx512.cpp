#include "fingerprint/kernels.h"

#if OPGUARD_X86_KERNELS
#include <immintrin.h>

namespace opguard::fingerprint {
namespace {

#define OPGUARD_AVX512 __attribute__((target("avx512f,avx512dq")))

constexpr std::size_t kLanes = 8;
constexpr std::size_t kVectorBytes = kLanes * kWord;

// Operators of the compiler's vectors: GCC 12 warns of its own shift intrinsic (its bug 105593).
using Vector = std::uint64_t __attribute__((vector_size(kVectorBytes)));

struct Accumulator {
  Vector mix = {};
  Vector fold = {};
};

OPGUARD_AVX512 inline Vector load(const std::uint8_t* data, __mmask8 lanes = 0xFF) {
  return reinterpret_cast<Vector>(_mm512_maskz_loadu_epi64(lanes, data));
}

OPGUARD_AVX512 inline Vector scramble8(Vector x) {
  x = (x ^ x >> 32) * kM;
  x = (x ^ x >> 32) * kM;
  return x ^ x >> 32;
}

OPGUARD_AVX512 inline void add_vector(Accumulator& sums, const std::uint8_t* data,
                                      Vector position) {
  const Vector words = load(data);
  sums.mix += scramble8(words ^ position);
  sums.fold ^= words;
}

/// The first `count` words of a vector.
OPGUARD_AVX512 inline void add_some(Accumulator& sums, const std::uint8_t* data,
                                    std::size_t count, Vector position) {
  const auto lanes = static_cast<__mmask8>((1u << count) - 1);
  const Vector words = load(data, lanes);
  const auto mixed = reinterpret_cast<__m512i>(scramble8(words ^ position));
  sums.mix += reinterpret_cast<Vector>(_mm512_maskz_mov_epi64(lanes, mixed));
  sums.fold ^= words;
}

}  // namespace

OPGUARD_AVX512 Sums sum_words_avx512(const std::uint8_t* data, std::size_t words,
                                     std::uint64_t position) {
  constexpr std::uint64_t kStep = kLanes * kK;
  Vector at = Vector{0, kK, 2 * kK, 3 * kK, 4 * kK, 5 * kK, 6 * kK, 7 * kK} + position;
  Accumulator a, b, c, d;  // a multiplication takes 3 cycles on Zen 4, 15 on Ice Lake
  for (; words >= 4 * kLanes; words -= 4 * kLanes) {
    add_vector(a, data, at);
    add_vector(b, data + kVectorBytes, at + kStep);
    add_vector(c, data + 2 * kVectorBytes, at + 2 * kStep);
    add_vector(d, data + 3 * kVectorBytes, at + 3 * kStep);
    at += 4 * kStep;
    data += 4 * kVectorBytes;
  }
  for (; words >= kLanes; words -= kLanes) {
    add_vector(a, data, at);
    at += kStep;
    data += kVectorBytes;
  }
  if (words != 0) add_some(b, data, words, at);
  const Vector mix = a.mix + b.mix + (c.mix + d.mix);
  const Vector fold = a.fold ^ b.fold ^ (c.fold ^ d.fold);
  Sums sums;
  for (std::size_t lane = 0; lane < kLanes; ++lane) sums.merge({mix[lane], fold[lane]});
  return sums;
}

}  // namespace opguard::fingerprint
#endif
