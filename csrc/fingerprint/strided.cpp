#include "fingerprint/strided.h"

#include <cstdlib>

namespace opguard::fingerprint {
namespace {

constexpr std::size_t kLargestItem = 16;

bool is_power_of_two(std::size_t value) { return (value & (value - 1)) == 0; }

}  // namespace

Flip::Flip(const Strided& tensor) {
  if (!tensor.flip_real && !tensor.flip_imaginary) return;
  std::uint8_t bytes[2 * kWord] = {};
  const bool complex = tensor.part != tensor.itemsize;
  for (std::size_t at = 0; at < sizeof(bytes); ++at) {
    if ((at + 1) % tensor.part != 0) continue;  // a sign is in a part's last byte
    const bool imaginary = complex && at / tensor.part % 2 == 1;
    if (imaginary ? tensor.flip_imaginary : tensor.flip_real) bytes[at] = 0x80;
  }
  std::memcpy(pattern_, bytes, sizeof(bytes));
}

void Flip::apply(std::uint8_t* data, std::size_t nbytes) const {
  const std::uint64_t pattern[2] = {pattern_[0], pattern_[1]};  // which `data` cannot be
  for (std::size_t at = 0; at < nbytes; at += sizeof(pattern)) {
    std::uint64_t words[2];
    std::memcpy(words, data + at, sizeof(words));
    words[0] ^= pattern[0];
    words[1] ^= pattern[1];
    std::memcpy(data + at, words, sizeof(words));
  }
}

Layout::Layout(const Strided& tensor) : data(tensor.data), itemsize(tensor.itemsize) {
  for (int number = 0; number < tensor.dimensions; ++number) {
    const auto size = static_cast<std::size_t>(tensor.shape[number]);
    const std::int64_t stride = tensor.strides[number];
    if (size == 1) continue;
    if (count != 0 && inner().stride == static_cast<std::int64_t>(size) * stride) {
      dimensions[count - 1].size *= size;
      dimensions[count - 1].stride = stride;
    } else {
      dimensions[count++] = {size, stride, 0};
    }
  }
  if (count > 1 && is_inner_dense()) {
    const std::size_t run = inner().size * itemsize;
    if (run <= kLargestItem && is_power_of_two(run)) {
      itemsize = run;
      --count;
    }
  }
  nbytes = itemsize;
  for (int number = count - 1; number >= 0; --number) {
    dimensions[number].step = nbytes;
    nbytes *= dimensions[number].size;
  }
}

const std::uint8_t* Layout::at(std::size_t byte) const {
  const std::uint8_t* place = data;
  for (int number = 0; number < count; ++number) {
    const Dimension& dimension = dimensions[number];
    place += static_cast<std::int64_t>(byte / dimension.step) * dimension.stride;
    byte %= dimension.step;
  }
  return place;
}

Odometer::Odometer(const Layout& layout, int skipped) : data(layout.data) {
  for (int number = 0; number < layout.count - 1; ++number) {
    if (number == skipped) continue;
    dimensions_[count_] = layout.dimensions[number];
    index_[count_++] = 0;
  }
}

bool Odometer::advance() {
  for (int number = count_ - 1; number >= 0; --number) {
    const Dimension& dimension = dimensions_[number];
    data += dimension.stride;
    byte += dimension.step;
    if (++index_[number] != dimension.size) return true;
    data -= static_cast<std::int64_t>(dimension.size) * dimension.stride;
    byte -= dimension.size * dimension.step;
    index_[number] = 0;
  }
  return false;
}

int tiled_dimension(const Layout& layout) {
  const Dimension& inner = layout.inner();
  if (inner.size * layout.itemsize < kCacheLine) return kNoDimension;
  auto nearest = std::min<std::int64_t>(kCacheLine, std::abs(inner.stride));
  int found = kNoDimension;
  for (int number = 0; number < layout.count - 1; ++number) {
    const std::int64_t stride = std::abs(layout.dimensions[number].stride);
    if (stride != 0 && stride < nearest) {
      nearest = stride;
      found = number;
    }
  }
  return found;
}

Digest digest_strided(const Strided& tensor, Regions* regions) {
  for (int number = 0; number < tensor.dimensions; ++number) {
    if (tensor.shape[number] == 0) return digest(nullptr, 0, regions);
  }
  const Layout layout(tensor);
  const Flip flip(tensor);
  if (layout.is_dense() && !flip.any()) return digest(layout.data, layout.nbytes, regions);
  Totals totals(layout.nbytes, regions != nullptr);
  const int tiled = layout.count > 1 ? tiled_dimension(layout) : kNoDimension;
  if (tiled == kNoDimension) {
    add_rows(layout, flip, totals);
  } else {
    add_tiles(layout, tiled, flip, totals);
  }
  return totals.digest(regions);
}

}  // namespace opguard::fingerprint
