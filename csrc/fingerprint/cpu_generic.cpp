#include "fingerprint/kernels.h"

namespace opguard::fingerprint {

Sums sum_words_generic(const std::uint8_t* data, std::size_t words, std::uint64_t position) {
  Sums even, odd;
  std::size_t word = 0;
  for (; word + 4 <= words; word += 4) {
    add_word(even, load_word(data), position);
    add_word(odd, load_word(data + kWord), position + kK);
    add_word(even, load_word(data + 2 * kWord), position + 2 * kK);
    add_word(odd, load_word(data + 3 * kWord), position + 3 * kK);
    data += 4 * kWord;
    position += 4 * kK;
  }
  for (; word < words; ++word) {
    add_word(even, load_word(data), position);
    data += kWord;
    position += kK;
  }
  even.merge(odd);
  return even;
}

}  // namespace opguard::fingerprint
