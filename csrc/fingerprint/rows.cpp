#include <algorithm>
#include <cstring>

#include "fingerprint/strided.h"

namespace opguard::fingerprint {
namespace {

/// A third of the smallest first-level cache: what is gathered is still there when it is read.
constexpr std::size_t kBlockBytes = 16384;
/// Dense runs of at least this many bytes are read where they lie.
constexpr std::size_t kLongRun = 512;
/// Of the next dense row: processors fetch ahead within a run alone, so rows of 1 KiB from main
/// memory take twice as long without it.
constexpr std::size_t kFetchAhead = 1024;
/// Rows of at most this many elements are gathered by columns.
constexpr std::size_t kFewColumns = 8;

/// Logical bytes in order, digested by blocks.
class Stream {
 public:
  Stream(const Flip& flip, Totals& totals) : flip_(flip), totals_(totals) {}

  void add_run(const std::uint8_t* data, std::size_t nbytes) {
    if (nbytes >= kLongRun && !flip_.any()) {
      const std::size_t head = (kWord - used_ % kWord) % kWord;
      copy(data, head);
      flush();
      const std::size_t whole = (nbytes - head) / kWord * kWord;
      totals_.add(data + head, whole, first_);
      first_ += whole / kWord;
      data += head + whole;
      nbytes -= head + whole;
    }
    copy(data, nbytes);
  }

  template <std::size_t kSize>
  void add_elements(const std::uint8_t* data, std::size_t count, std::int64_t stride) {
    while (count != 0) {
      const std::size_t some = std::min(count, (kBlockBytes - used_) / kSize);
      std::uint8_t* to = block_ + used_;
      for (std::size_t element = 0; element < some; ++element) {
        std::memcpy(to + element * kSize, data, kSize);
        data += stride;
      }
      count -= some;
      fill(some * kSize);
    }
  }

  /// Short rows: whole ones by columns, since a loop over a few elements costs more than they do.
  template <std::size_t kSize>
  void add_rows(const std::uint8_t* data, const Dimension& rows, const Dimension& columns) {
    const std::size_t width = columns.size * kSize;
    for (std::size_t row = 0; row < rows.size;) {
      const std::size_t some = std::min(rows.size - row, (kBlockBytes - used_) / width);
      for (std::size_t column = 0; column < columns.size; ++column) {
        const std::uint8_t* from = data + static_cast<std::int64_t>(column) * columns.stride;
        std::uint8_t* to = block_ + used_ + column * kSize;
        for (std::size_t count = 0; count < some; ++count, from += rows.stride, to += width) {
          std::memcpy(to, from, kSize);
        }
      }
      fill(some * width);
      data += static_cast<std::int64_t>(some) * rows.stride;
      row += some;
      if (row < rows.size) {  // one that lies across the block's end
        add_elements<kSize>(data, columns.size, columns.stride);
        data += rows.stride;
        ++row;
      }
    }
  }

  void flush() {
    if (used_ == 0) return;
    if (flip_.any()) flip_.apply(block_, used_);
    totals_.add(block_, used_, first_);
    first_ += used_ / kWord;
    used_ = 0;
  }

 private:
  void copy(const std::uint8_t* data, std::size_t nbytes) {
    while (nbytes != 0) {
      const std::size_t some = std::min(nbytes, kBlockBytes - used_);
      std::memcpy(block_ + used_, data, some);
      data += some;
      nbytes -= some;
      fill(some);
    }
  }
  void fill(std::size_t nbytes) {
    used_ += nbytes;
    if (used_ == kBlockBytes) flush();
  }

  const Flip& flip_;
  Totals& totals_;
  std::size_t used_ = 0;
  std::uint64_t first_ = 0;  // word at the block's start; even, but after a long run
  alignas(64) std::uint8_t block_[kBlockBytes];
};

void add_dense_rows(const Layout& layout, Stream& stream) {
  const std::size_t run = layout.inner().size * layout.itemsize;
  const std::size_t ahead = std::min(run, kFetchAhead);
  const std::int64_t next = layout.count > 1 ? layout.dimensions[layout.count - 2].stride : 0;
  Odometer row(layout, kNoDimension);
  do {
    for (std::size_t at = 0; at < ahead; at += kCacheLine) {
      __builtin_prefetch(row.data + next + static_cast<std::int64_t>(at));
    }
    stream.add_run(row.data, run);
  } while (row.advance());
}

template <std::size_t kSize>
void add_elements(const Layout& layout, Stream& stream) {
  const Dimension& inner = layout.inner();
  if (layout.count > 1 && inner.size <= kFewColumns) {
    const int rows = layout.count - 2;
    Odometer plane(layout, rows);
    do {
      stream.add_rows<kSize>(plane.data, layout.dimensions[rows], inner);
    } while (plane.advance());
  } else {
    Odometer row(layout, kNoDimension);
    do {
      stream.add_elements<kSize>(row.data, inner.size, inner.stride);
    } while (row.advance());
  }
}

}  // namespace

void add_rows(const Layout& layout, const Flip& flip, Totals& totals) {
  Stream stream(flip, totals);
  if (layout.count == 0) {
    stream.add_run(layout.data, layout.nbytes);
  } else if (layout.is_inner_dense() && layout.inner().size > kFewColumns) {
    add_dense_rows(layout, stream);
  } else {
    switch (layout.itemsize) {
      case 1: add_elements<1>(layout, stream); break;
      case 2: add_elements<2>(layout, stream); break;
      case 4: add_elements<4>(layout, stream); break;
      case 8: add_elements<8>(layout, stream); break;
      default: add_elements<16>(layout, stream);
    }
  }
  stream.flush();
}

}  // namespace opguard::fingerprint
