// Which records wrote the bytes of one storage.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "recorder/torch_headers.h"

namespace opguard {

/// Global index of a tensor record of this rank.
using Record = std::int64_t;
constexpr Record kNoRecord = -1;
/// Newest first.
using Producers = c10::SmallVector<Record, 4>;

/// Scattered writes that may stand beside each other. A ring buffer or a cache, of which each
/// strided write leaves the former ones in place, has ever more: of these the older half then
/// counts as one, by the newest of them.
constexpr std::size_t kMostScattered = 1024;
constexpr std::size_t kMostProducers = 1024;  ///< listed of one tensor: the newest

constexpr std::size_t kLongAnswer = 64;

/// Later writes have higher record numbers.
class Writers {
 public:
  /// Records that may have written bytes from `start` to `end`, newest first, each once.
  Producers over(std::int64_t start, std::int64_t end) const;
  /// A write of the bytes from `start` to `end`, of which there are some. `scattered`: some of them
  /// may have been left as they were.
  void add(std::int64_t start, std::int64_t end, Record record, bool scattered);
  /// The storage has no bytes from `end` on any more.
  void cut(std::int64_t end);
  void clear();
  /// False where `over` names some writers for others, or leaves them out.
  bool lists_all(std::int64_t start, std::int64_t end) const;

 private:
  struct Write {
    std::int64_t start;
    std::int64_t end;
    Record record;
  };
  void uncover(std::int64_t start, std::int64_t end);
  void merge_scattered();
  const Write* first_dense(std::int64_t start) const;

  // What is left of dense writes, side by side in order of place: a data set that is filled row by
  // row has hundreds of thousands.
  c10::SmallVector<Write, 1> dense_;
  std::vector<Write> scattered_;  // newest last; each newer than the dense ones it meets
  bool merged_ = false;

  /// The last long answer: a whole that was filled in pieces is read again and again.
  struct Answer {
    std::int64_t start = 0;
    std::int64_t end = 0;
    Producers producers;
  };
  mutable std::unique_ptr<const Answer> last_;
};

}  // namespace opguard
