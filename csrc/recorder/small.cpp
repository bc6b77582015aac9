#include "recorder/small.h"

#include <cstring>

namespace opguard {

namespace {

constexpr std::uint8_t kSign = 0x80;  // of the highest byte: numbers are little-endian

/// Flip the signs that neg (both parts) and conj (the imaginary part) bits only announce.
void flip(std::uint8_t* element, std::size_t itemsize, bool is_complex, Bits bits) {
  const std::size_t part = is_complex ? itemsize / 2 : itemsize;
  const bool negative = (bits & 2) != 0;
  const bool conjugate = (bits & 1) != 0;
  if (negative) {
    element[part - 1] ^= kSign;
  }
  if (is_complex && negative != conjugate) {
    element[itemsize - 1] ^= kSign;
  }
}

}  // namespace

void copy_small(const at::Tensor& tensor, const Geometry& geometry, std::uint8_t* out) {
  const auto* data = static_cast<const std::uint8_t*>(tensor.storage().data());
  if (geometry.contiguous && geometry.bits == 0) {
    std::memcpy(out, data + geometry.start, static_cast<std::size_t>(geometry.nbytes));
    return;
  }
  const auto itemsize = static_cast<std::size_t>(geometry.itemsize);
  const std::int64_t elements = geometry.nbytes / geometry.itemsize;
  for (std::int64_t index = 0; index < elements; ++index) {
    std::int64_t left = index;
    std::int64_t offset = geometry.start;
    for (std::size_t dimension = geometry.shape.size(); dimension-- > 0;) {
      const std::int64_t size = geometry.shape[dimension];
      offset += left % size * geometry.strides[dimension] * geometry.itemsize;
      left /= size;
    }
    std::memcpy(out, data + offset, itemsize);
    if (geometry.bits != 0) {
      flip(out, itemsize, tensor.is_complex(), geometry.bits);
    }
    out += itemsize;
  }
}

}  // namespace opguard
