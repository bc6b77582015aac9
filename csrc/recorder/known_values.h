// The values of one storage whose bytes have a fingerprint.
#pragma once

#include <cstdint>
#include <memory>

#include "fingerprint/mix64.h"
#include "recorder/geometry.h"

namespace opguard {

/// A value whose bytes have a fingerprint.
struct Known {
  fingerprint::Digest digest;
  const Geometry* geometry;
};

/// Most storages have one or two known values: a list. A data set whose samples are read one by one
/// has tens of thousands: beyond `kFewKnown` they are found by their place in the storage.
class KnownValues {
 public:
  static constexpr std::size_t kFewKnown = 16;

  KnownValues();
  ~KnownValues();

  bool empty() const { return few_.empty() && many_ == nullptr; }
  /// The fingerprint of exactly this value; null if it is not known.
  const Known* find(const Geometry& geometry) const;
  /// A known dense value that holds every byte of the view; the one learnt first. Null: none.
  const Known* covering(const Geometry& geometry) const;
  /// The value has this fingerprint from now on. One that is known already keeps its place in the
  /// order of learning.
  void learn(const Geometry& geometry, const fingerprint::Digest& digest);
  /// Forget values that share bytes with the span.
  void drop(std::int64_t start, std::int64_t end);
  void clear();

 private:
  struct Many;

  c10::SmallVector<Known, 2> few_;  // in the order in which they were learnt
  std::unique_ptr<Many> many_;      // null, or never empty, and `few_` is
};

}  // namespace opguard
