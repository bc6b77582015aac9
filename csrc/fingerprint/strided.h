// Private to fingerprint/: the logical bytes of a strided tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "fingerprint/mix64.h"
#include "fingerprint/totals.h"

namespace opguard::fingerprint {

constexpr std::size_t kCacheLine = 64;

struct Dimension {
  std::size_t size;
  std::int64_t stride;  ///< bytes in memory between neighbours
  std::size_t step;     ///< logical bytes between neighbours
};

/// The bits that conj and neg bits flip, as a pattern of two words: that of complex128 is no
/// shorter.
class Flip {
 public:
  explicit Flip(const Strided& tensor);

  bool any() const { return (pattern_[0] | pattern_[1]) != 0; }
  std::uint64_t of_word(std::uint64_t index) const { return pattern_[index % 2]; }
  /// Flips words whose first one has an even index, up to the end of the word that `nbytes` ends
  /// in.
  void apply(std::uint8_t* data, std::size_t nbytes) const;

 private:
  std::uint64_t pattern_[2] = {};
};

/// Dimensions of a tensor with at least one element: outermost first, those of size 1 left out,
/// neighbours merged where memory allows, and a short dense innermost one taken for the element.
class Layout {
 public:
  explicit Layout(const Strided& tensor);

  /// The elements lie in row-major order without gaps.
  bool is_dense() const { return count == 0 || (count == 1 && is_inner_dense()); }
  bool is_inner_dense() const { return inner().stride == static_cast<std::int64_t>(itemsize); }
  const Dimension& inner() const { return dimensions[count - 1]; }
  /// Address of the element that starts at this logical byte.
  const std::uint8_t* at(std::size_t byte) const;

  const std::uint8_t* data;
  std::size_t nbytes;
  std::size_t itemsize;  ///< a power of two up to 16
  int count = 0;
  Dimension dimensions[64];  // without those of size 1, 2^63 elements have at most 63
};

/// Walks over some dimensions of a layout in row-major order.
class Odometer {
 public:
  /// All but the innermost one, and but `skipped`.
  Odometer(const Layout& layout, int skipped);

  /// The next place; false after the last one.
  bool advance();

  const std::uint8_t* data;
  std::size_t byte = 0;  ///< logical

 private:
  int count_ = 0;
  Dimension dimensions_[64];
  std::size_t index_[64];
};

constexpr int kNoDimension = -1;

/// The outer dimension along which neighbours share cache lines while those of the innermost one do
/// not; else kNoDimension.
int tiled_dimension(const Layout& layout);

/// Adds the tensor's bytes row by row.
void add_rows(const Layout& layout, const Flip& flip, Totals& totals);
/// The same, by tiles of several rows along dimension `tiled`.
void add_tiles(const Layout& layout, int tiled, const Flip& flip, Totals& totals);

}  // namespace opguard::fingerprint
