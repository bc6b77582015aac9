// Private to fingerprint/: transposes square blocks of elements in vectors of 16 bytes, which both
// x86-64 and aarch64 always have.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#define OPGUARD_ZIP 1
#elif defined(__aarch64__)
#include <arm_neon.h>
#define OPGUARD_ZIP 1
#else
#define OPGUARD_ZIP 0
#endif

namespace opguard::fingerprint {

constexpr std::size_t kZipBytes = 16;

#if defined(__SSE2__)

using Zip = __m128i;

/// Elements of the vectors' first (second) halves, taken in turn.
template <std::size_t kSize>
inline Zip zip_first(Zip a, Zip b) {
  if constexpr (kSize == 1) return _mm_unpacklo_epi8(a, b);
  if constexpr (kSize == 2) return _mm_unpacklo_epi16(a, b);
  if constexpr (kSize == 4) return _mm_unpacklo_epi32(a, b);
  if constexpr (kSize == 8) return _mm_unpacklo_epi64(a, b);
}
template <std::size_t kSize>
inline Zip zip_second(Zip a, Zip b) {
  if constexpr (kSize == 1) return _mm_unpackhi_epi8(a, b);
  if constexpr (kSize == 2) return _mm_unpackhi_epi16(a, b);
  if constexpr (kSize == 4) return _mm_unpackhi_epi32(a, b);
  if constexpr (kSize == 8) return _mm_unpackhi_epi64(a, b);
}

#elif defined(__aarch64__)

using Zip = uint8x16_t;

template <std::size_t kSize>
inline Zip zip_first(Zip a, Zip b) {
  if constexpr (kSize == 1) return vzip1q_u8(a, b);
  if constexpr (kSize == 2) {
    return vreinterpretq_u8_u16(vzip1q_u16(vreinterpretq_u16_u8(a), vreinterpretq_u16_u8(b)));
  }
  if constexpr (kSize == 4) {
    return vreinterpretq_u8_u32(vzip1q_u32(vreinterpretq_u32_u8(a), vreinterpretq_u32_u8(b)));
  }
  if constexpr (kSize == 8) {
    return vreinterpretq_u8_u64(vzip1q_u64(vreinterpretq_u64_u8(a), vreinterpretq_u64_u8(b)));
  }
}
template <std::size_t kSize>
inline Zip zip_second(Zip a, Zip b) {
  if constexpr (kSize == 1) return vzip2q_u8(a, b);
  if constexpr (kSize == 2) {
    return vreinterpretq_u8_u16(vzip2q_u16(vreinterpretq_u16_u8(a), vreinterpretq_u16_u8(b)));
  }
  if constexpr (kSize == 4) {
    return vreinterpretq_u8_u32(vzip2q_u32(vreinterpretq_u32_u8(a), vreinterpretq_u32_u8(b)));
  }
  if constexpr (kSize == 8) {
    return vreinterpretq_u8_u64(vzip2q_u64(vreinterpretq_u64_u8(a), vreinterpretq_u64_u8(b)));
  }
}

#endif

#if OPGUARD_ZIP

/// Transposes 16 / kSize vectors, `stride` bytes apart, into as many `pitch` bytes apart. Zipping
/// the first half of them with the second, once for each doubling, is a transposition.
template <std::size_t kSize>
inline void transpose_block(const std::uint8_t* from, std::int64_t stride, std::uint8_t* to,
                            std::size_t pitch) {
  constexpr std::size_t kCount = kZipBytes / kSize;
  Zip vectors[kCount];
  for (Zip& vector : vectors) {
    std::memcpy(&vector, from, kZipBytes);
    from += stride;
  }
  for (std::size_t round = 1; round < kCount; round *= 2) {
    Zip zipped[kCount];
    for (std::size_t pair = 0; pair < kCount / 2; ++pair) {
      const Zip a = vectors[pair], b = vectors[pair + kCount / 2];
      zipped[2 * pair] = zip_first<kSize>(a, b);
      zipped[2 * pair + 1] = zip_second<kSize>(a, b);
    }
    std::memcpy(vectors, zipped, sizeof(vectors));
  }
  for (const Zip& vector : vectors) {
    std::memcpy(to, &vector, kZipBytes);
    to += pitch;
  }
}

#endif

}  // namespace opguard::fingerprint
