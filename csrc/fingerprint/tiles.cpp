#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "fingerprint/strided.h"
#include "fingerprint/zip.h"

namespace opguard::fingerprint {
namespace {

/// A tile is as many rows as have neighbours in one cache line, by columns of this many bytes of a
/// row. Shorter ones are digested more slowly; longer ones drop the lines that were fetched ahead
/// where strides are powers of two.
constexpr std::size_t kTileColumns = 512;
constexpr std::size_t kMostRows = 64;
/// Not a power of two: neighbouring rows would share a cache set.
constexpr std::size_t kPitch = kTileColumns + kCacheLine;

template <std::size_t kSize>
class Tiles {
 public:
  Tiles(const Layout& layout, int tiled, const Flip& flip, Totals& totals)
      : layout_(layout), inner_(layout.inner()), rows_(layout.dimensions[tiled]), flip_(flip),
        totals_(totals), aligned_(layout.inner().size * kSize % kWord == 0) {}

  /// All rows and columns of one plane. They may be added in any order.
  void add_plane(const std::uint8_t* data, std::size_t byte) {
    const auto reach = static_cast<std::size_t>(std::abs(rows_.stride));
    const std::size_t most = std::min(kCacheLine / reach, kMostRows);
    for (std::size_t column = 0; column < inner_.size; column += kColumns) {
      for (std::size_t row = 0; row < rows_.size; row += most) {
        add_tile(data + static_cast<std::int64_t>(column) * inner_.stride +
                     static_cast<std::int64_t>(row) * rows_.stride,
                 byte + row * rows_.step, column, std::min(most, rows_.size - row));
      }
    }
  }

 private:
  static constexpr std::size_t kColumns = kTileColumns / kSize;
  // Where rows start within words, a row's words start up to this many columns later.
  static constexpr std::size_t kShift = kSize < kWord ? kWord / kSize - 1 : 0;

  /// `byte`: logical start of the tile's first row, at column 0.
  void add_tile(const std::uint8_t* data, std::size_t byte, std::size_t column,
                std::size_t rows) {
    const std::size_t left = inner_.size - column;
    const std::size_t columns = std::min(left, aligned_ ? kColumns : kColumns + kShift);
    gather(data, rows, columns);
    for (std::size_t row = 0; row < rows; ++row, byte += rows_.step) {
      const std::size_t shift = (kWord - byte % kWord) % kWord;
      std::uint8_t* words = tile_ + row * kPitch + shift;
      const std::size_t nbytes =
          std::min(left * kSize - std::min(shift, left * kSize), kTileColumns) / kWord * kWord;
      if (flip_.any()) flip_.apply(words, nbytes);
      totals_.add(words, nbytes, (byte + column * kSize + shift) / kWord);
      if (left <= kColumns) add_last_word(byte + inner_.size * kSize);
    }
  }

  void gather(const std::uint8_t* data, std::size_t rows, std::size_t columns) {
    const std::size_t done = gather_blocks(data, rows, columns);
    data += static_cast<std::int64_t>(done) * inner_.stride;
    for (std::size_t column = done; column < columns; ++column, data += inner_.stride) {
      const std::uint8_t* from = data;
      std::uint8_t* to = tile_ + column * kSize;
      for (std::size_t row = 0; row < rows; ++row, from += rows_.stride, to += kPitch) {
        std::memcpy(to, from, kSize);
      }
    }
  }

  /// Gathers a multiple of a block's columns; returns how many.
  std::size_t gather_blocks(const std::uint8_t* data, std::size_t rows, std::size_t columns) {
    std::size_t done = 0;
#if OPGUARD_ZIP
    if constexpr (kSize < kZipBytes) {
      constexpr std::size_t kSide = kZipBytes / kSize;
      if (rows_.stride != kSize || rows % kSide != 0) return 0;
      for (; done + kSide <= columns; done += kSide) {
        for (std::size_t column = 0; column < kSide; ++column) {
          // The next tile's lines: without it a matrix in main memory takes twice as long.
          __builtin_prefetch(data + static_cast<std::int64_t>(column) * inner_.stride + kCacheLine);
        }
        for (std::size_t row = 0; row < rows; row += kSide) {
          transpose_block<kSize>(data + row * kSize, inner_.stride,
                                 tile_ + row * kPitch + done * kSize, kPitch);
        }
        data += static_cast<std::int64_t>(kSide) * inner_.stride;
      }
    }
#endif
    return done;
  }

  /// The word that holds the end of a row and the start of the next one, if one does.
  void add_last_word(std::size_t end) {
    const std::size_t rest = end % kWord;
    if (rest == 0) return;
    const std::size_t start = end - rest;
    const std::size_t nbytes = std::min(kWord, layout_.nbytes - start);
    std::uint8_t bytes[kWord] = {};
    constexpr std::size_t kPiece = std::min(kSize, kWord);  // larger elements end with a word
    for (std::size_t at = 0; at < nbytes; at += kPiece) {
      std::memcpy(bytes + at, layout_.at(start + at), kPiece);
    }
    std::uint64_t mask = ~std::uint64_t{0};
    if (nbytes < kWord) mask >>= 8 * (kWord - nbytes);
    const std::uint64_t index = start / kWord;
    totals_.add(load_word(bytes) ^ (flip_.of_word(index) & mask), index);
  }

  const Layout& layout_;
  const Dimension inner_, rows_;
  const Flip& flip_;
  Totals& totals_;
  const bool aligned_;
  alignas(64) std::uint8_t tile_[kMostRows * kPitch];
};

template <std::size_t kSize>
void add_planes(const Layout& layout, int tiled, const Flip& flip, Totals& totals) {
  Tiles<kSize> tiles(layout, tiled, flip, totals);
  Odometer plane(layout, tiled);
  do {
    tiles.add_plane(plane.data, plane.byte);
  } while (plane.advance());
}

}  // namespace

void add_tiles(const Layout& layout, int tiled, const Flip& flip, Totals& totals) {
  switch (layout.itemsize) {
    case 1: return add_planes<1>(layout, tiled, flip, totals);
    case 2: return add_planes<2>(layout, tiled, flip, totals);
    case 4: return add_planes<4>(layout, tiled, flip, totals);
    case 8: return add_planes<8>(layout, tiled, flip, totals);
    default: return add_planes<16>(layout, tiled, flip, totals);
  }
}

}  // namespace opguard::fingerprint
