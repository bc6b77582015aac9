// Where a tensor's elements lie in its storage. Geometries are interned: a training step meets the
// same few hundred of them again and again.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>
#include <vector>

#include "recorder/strings.h"
#include "recorder/torch_headers.h"

namespace opguard {

/// Conjugate (1) and negative (2) bits of a tensor.
using Bits = std::uint8_t;

/// Offset, shape, strides and dtype of a strided tensor, in bytes and as string ids.
struct Geometry {
  std::int64_t start = 0;   ///< first byte in the storage
  std::int64_t end = 0;     ///< past its last byte
  std::int64_t nbytes = 0;  ///< logical bytes
  std::int64_t itemsize = 0;
  c10::DimVector shape;
  c10::DimVector strides;  ///< in elements
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  Bits bits = 0;
  bool contiguous = false;
  bool dense = false;  ///< the elements fill their span, each in a place of its own
  std::uint8_t dtype_code = 0;
  StringId shape_id = 0;
  StringId strides_id = 0;
  /// Equal exactly for views of one storage with the same bytes in the same order.
  std::uint32_t value_key = 0;
  std::uint32_t number = 0;  ///< in order of first use

  /// Order of the elements of a value that is not row-major; empty for one that is.
  std::string layout() const;
};

constexpr std::size_t kFirstSlots = 1024;
/// Geometries after which those met so far are forgotten: a program may read ever other views.
constexpr std::size_t kMostGeometries = 1 << 16;

/// The geometries met so far. They are not moved or freed before `forget`.
class Geometries {
 public:
  explicit Geometries(Interner& interner) : interner_(interner), slots_(kFirstSlots) {}

  /// The geometry of a strided tensor with those conj and neg bits.
  const Geometry& of(const at::Tensor& tensor, Bits bits);
  bool crowded() const {
    return all_.size() >= kMostGeometries || relative_.size() >= kMostGeometries;
  }
  /// Those handed out are freed. Later ones get numbers and value keys of their own.
  void forget();
  /// Strides id of a view that is known through `base`: with its place in it.
  StringId relative(const Geometry& view, const Geometry& base);

 private:
  struct Wanted;
  struct Slot {
    std::uint64_t mixed = 0;
    const Geometry* geometry = nullptr;  // null: free
  };
  const Geometry& add(const Wanted& wanted, bool contiguous);
  void insert(Slot slot);
  void grow();

  Interner& interner_;
  std::deque<Geometry> all_;
  // Open addressing, a power of two long and at most half full: a look-up is on the way of every
  // tensor of every call.
  std::vector<Slot> slots_;
  std::unordered_map<std::string, std::uint32_t> value_keys_;
  std::unordered_map<std::uint64_t, StringId> relative_;  // by (view, base) number
  std::uint32_t next_key_ = 0;
  std::uint32_t next_number_ = 0;
};

/// Position of a dtype in `DTYPES` of `opguard.model`, or that of `unknown`.
std::uint8_t dtype_code(c10::ScalarType type);

}  // namespace opguard
