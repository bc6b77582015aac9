// Fingerprint version 1 (DESIGN section 4) of host memory. No torch header is included.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace opguard::fingerprint {

constexpr std::uint64_t kK = 0x9E3779B97F4A7C15u;
constexpr std::uint64_t kM = 0xD6E8FEB86659FD93u;
constexpr std::size_t kRegions = 8;
/// Tensors of at least this many bytes carry regions.
constexpr std::size_t kRegionBytes = 65536;
/// Tensors of at most this many bytes carry the bytes themselves.
constexpr std::size_t kSmallBytes = 64;

struct Digest {
  std::uint64_t mix64 = 0;
  std::uint32_t xor32 = 0;
};
using Regions = std::array<std::uint64_t, kRegions>;

/// Splits work over threads: calls `part(0) … part(parts - 1)` and returns when all are done.
using RunParts = std::function<void(int parts, const std::function<void(int)>& part)>;

/// How a strided tensor's elements lie in memory.
struct Strided {
  const std::uint8_t* data = nullptr;  ///< its first element
  std::size_t itemsize = 0;            ///< bytes; a power of two up to 16
  int dimensions = 0;
  const std::int64_t* shape = nullptr;
  const std::int64_t* strides = nullptr;  ///< in bytes; may be 0 or negative
  bool flip_real = false;       ///< flip the sign bit of real parts, or of the only one
  bool flip_imaginary = false;  ///< that of imaginary parts
  std::size_t part = 0;         ///< bytes of a real or imaginary part; `itemsize` for real dtypes
};

/// Fingerprint of contiguous bytes at any address. `regions`: also the `mix64` of 8 equal runs of
/// words. `run`: may be null; else, with `parts > 1`, large buffers are split over that many.
Digest digest(const void* data, std::size_t nbytes, Regions* regions = nullptr,
              const RunParts* run = nullptr, int parts = 1);

/// Fingerprint of the logical bytes of a strided tensor: its elements in row-major order, read in
/// place through a small buffer.
Digest digest_strided(const Strided& tensor, Regions* regions = nullptr);

/// Names of the vector codes that this processor runs, best first: `avx512`, `avx2`, `generic`.
const char* const* vector_codes();
/// Use one of them from now on (tests and benchmarks). False if the processor lacks it.
bool use_vector_code(const char* name);
/// The one in use.
const char* vector_code();

}  // namespace opguard::fingerprint
