// Which bytes of a storage nothing has written yet.
#pragma once

#include <cstdint>
#include <vector>

#include "recorder/geometry.h"

namespace opguard {

/// Which elements of a tensor nothing wrote.
struct Unset {
  enum class How : std::uint8_t { None, All, Some };
  How how = How::None;
  c10::DimVector shape;            ///< of `mask`; broadcasts to the tensor's
  std::vector<std::uint8_t> mask;  ///< row-major, 1: unset; only for `Some`
};

/// Void bytes of one storage: the whole of it, or an exact map once a part was written. The map has
/// one byte per storage byte and lives only while some of them are void.
class VoidMap {
 public:
  /// All bytes from `first` on are void.
  explicit VoidMap(std::int64_t nbytes, std::int64_t first = 0);

  std::int64_t nbytes() const { return nbytes_; }
  /// True when the tensor reads a void byte. What lies past the storage's end is none.
  bool overlaps(const Geometry& geometry) const;
  /// Which elements of the tensor hold a void byte, in its shape.
  Unset elements(const Geometry& geometry) const;
  /// The storage has `nbytes` bytes now; those added are void.
  void resize(std::int64_t nbytes);
  /// Make some elements of the tensor void. Where elements share bytes, one of them is enough.
  void leave(const Geometry& geometry, const Unset& unset);
  /// Every element of the tensor was written. True when nothing is void any more.
  bool written(const Geometry& geometry);

 private:
  void materialise();
  bool any(std::int64_t first, std::int64_t last) const;

  std::int64_t nbytes_;
  bool whole_;                     ///< everything is void, and there is no map
  std::vector<std::uint8_t> map_;  ///< 1: void
  /// No byte before it is void. A buffer that is filled piece by piece is then not searched from
  /// its start after each piece.
  std::int64_t clean_;
};

}  // namespace opguard
