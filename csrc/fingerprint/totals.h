// Private to fingerprint/: sums of a whole buffer, gathered from blocks in any order.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "fingerprint/kernels.h"

namespace opguard::fingerprint {

/// Sums of a buffer of `nbytes` logical bytes, by region where `by_region` asks for it.
class Totals {
 public:
  Totals(std::size_t nbytes, bool by_region)
      : kernel_(kernel()), words_((nbytes + kWord - 1) / kWord), by_region_(by_region) {}

  /// Adds the bytes from word `first` on. Only the buffer's end may lie within a word.
  void add(const std::uint8_t* data, std::size_t nbytes, std::uint64_t first) {
    const std::size_t words = nbytes / kWord;
    if (!by_region_) {
      regions_[0].merge(kernel_(data, words, position_of(first)));
    } else {
      add_by_region(data, words, first);
    }
    const std::size_t rest = nbytes % kWord;
    if (rest != 0) add(load_part(data + words * kWord, rest), first + words);
  }

  void add(std::uint64_t word, std::uint64_t index) {
    add_word(regions_[by_region_ ? region_of(index) : 0], word, position_of(index));
  }

  void merge(const Totals& other) {
    for (std::size_t region = 0; region < kRegions; ++region) {
      regions_[region].merge(other.regions_[region]);
    }
  }

  Digest digest(Regions* regions) const {
    Sums whole;
    for (std::size_t region = 0; region < kRegions; ++region) {
      whole.merge(regions_[region]);
      if (regions != nullptr) (*regions)[region] = regions_[region].mix;
    }
    return {whole.mix, static_cast<std::uint32_t>(whole.fold ^ whole.fold >> 32)};
  }

 private:
  // The first `longer` regions have a word more than the others.
  std::size_t region_of(std::uint64_t index) const {
    const std::uint64_t size = words_ / kRegions, longer = words_ % kRegions;
    const std::uint64_t past_longer = longer * (size + 1);
    return index < past_longer ? index / (size + 1) : longer + (index - past_longer) / size;
  }
  std::uint64_t end_of(std::size_t region) const {
    return (region + 1) * (words_ / kRegions) + std::min(region + 1, words_ % kRegions);
  }

  void add_by_region(const std::uint8_t* data, std::size_t words, std::uint64_t first) {
    if (words == 0) return;
    for (std::size_t region = region_of(first); words != 0; ++region) {
      const std::size_t count = std::min<std::uint64_t>(words, end_of(region) - first);
      regions_[region].merge(kernel_(data, count, position_of(first)));
      data += count * kWord;
      first += count;
      words -= count;
    }
  }

  Kernel kernel_;
  std::size_t words_;
  bool by_region_;
  Sums regions_[kRegions];  // the first one holds everything unless by_region_
};

}  // namespace opguard::fingerprint
