// Which bytes of a storage nothing has written yet.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
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

/// Void bytes of one storage: the whole of it, or an exact map once a part was written. The map is
/// in pages, of which only those have bits that are partly void.
class VoidMap {
 public:
  /// All bytes from `first` on are void.
  explicit VoidMap(std::int64_t nbytes, std::int64_t first = 0);

  static constexpr std::int64_t kPageBytes = 1 << 14;

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
  /// Bytes of the storage side by side, the first of them at a multiple of `kPageBytes`.
  struct Page {
    using Bits = std::array<std::uint64_t, kPageBytes / 64>;
    std::int64_t void_bytes = 0;
    std::unique_ptr<Bits> bits;  ///< 1: void; null where all bytes are alike

    bool any(std::int64_t first, std::int64_t last) const;
    void mark(std::int64_t first, std::int64_t last, bool is_void);
  };
  void materialise();
  bool any(std::int64_t first, std::int64_t last) const;
  void mark(std::int64_t first, std::int64_t last, bool is_void);

  std::int64_t nbytes_;
  bool whole_;               ///< everything is void, and there is no map
  std::vector<Page> pages_;  ///< what lies past the storage's end is not void
  std::int64_t void_bytes_ = 0;
};

}  // namespace opguard
