// Test of fingerprint/ without torch or Python: for sanitizers, and for processors that have none.
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "fingerprint/mix64.h"

namespace {

using namespace opguard::fingerprint;
using Bytes = std::vector<std::uint8_t>;

int failures = 0;

void expect(bool holds, const std::string& what) {
  if (holds) return;
  ++failures;
  std::fprintf(stderr, "%s: %s\n", vector_code(), what.c_str());
}

std::mt19937_64 random_words(1);  // the same examples each time

std::uint64_t below(std::uint64_t limit) { return random_words() % limit; }

Bytes random_bytes(std::size_t count) {
  Bytes bytes(count);
  for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random_words());
  return bytes;
}

struct Expected {
  Digest digest;
  Regions regions{};
};

/// DESIGN section 4, literally.
Expected expected(const Bytes& bytes) {
  Expected result;
  const std::size_t words = (bytes.size() + 7) / 8;
  for (std::size_t index = 0, region = 0, left = 0; index < words; ++index, --left) {
    if (left == 0) {
      region = index == 0 ? 0 : region + 1;
      left = words / kRegions + (region < words % kRegions ? 1 : 0);
    }
    std::uint64_t word = 0;
    for (std::size_t at = 0; at < 8 && index * 8 + at < bytes.size(); ++at) {
      word |= std::uint64_t{bytes[index * 8 + at]} << 8 * at;
    }
    std::uint64_t x = word ^ (index + 1) * kK;
    x = (x ^ x >> 32) * kM;
    x = (x ^ x >> 32) * kM;
    x ^= x >> 32;
    result.digest.mix64 += x;
    result.digest.xor32 ^= static_cast<std::uint32_t>(word ^ word >> 32);
    result.regions[region] += x;
  }
  return result;
}

bool same(const Digest& a, const Digest& b) { return a.mix64 == b.mix64 && a.xor32 == b.xor32; }

void expect_equal(const Bytes& bytes, const std::function<Digest(Regions*)>& compute,
                  const std::string& what) {
  const Expected want = expected(bytes);
  Regions regions;
  regions.fill(1);  // every one has to be set
  expect(same(compute(nullptr), want.digest), what);
  expect(same(compute(&regions), want.digest), what + " with regions");
  expect(regions == want.regions, what + ": regions");
}

void test_published_vectors() {
  const auto check = [](const Bytes& bytes, std::uint32_t xor32, std::uint64_t mix64) {
    expect(same(digest(bytes.data(), bytes.size()), {mix64, xor32}),
           "published vector of " + std::to_string(bytes.size()) + " bytes");
  };
  check({}, 0, 0);
  check({1}, 1, 0xf7622d3784a0ad54u);
  check({1, 2, 3}, 0x00030201, 0x8466113442a3355au);
  check(Bytes(16), 0, 0x891becc266ae16b6u);
  check(Bytes(16384), 0, 0xa40db17ce74a5a86u);
  Bytes mixed(100003);
  for (std::size_t i = 0; i < mixed.size(); ++i) {
    mixed[i] = static_cast<std::uint8_t>((i * i + 7) % 251);
  }
  check(mixed, 0x186dad61, 0x1e5d517be1ba6253u);
}

void test_lengths_and_addresses() {
  const auto check = [](std::size_t length, std::size_t offset) {
    // Allocated to the byte, so that a sanitizer sees a read past the end.
    const Bytes memory = random_bytes(offset + length);
    const Bytes bytes(memory.begin() + static_cast<std::ptrdiff_t>(offset), memory.end());
    const auto compute = [&](Regions* regions) {
      return digest(memory.data() + offset, length, regions);
    };
    expect_equal(bytes, compute, std::to_string(length) + " bytes at " + std::to_string(offset));
  };
  for (std::size_t length = 0; length < 700; ++length) check(length, length % 9);
  for (int round = 0; round < 50; ++round) check(below(300000), below(64));
}

void test_splitting() {
  const RunParts threads = [](int parts, const std::function<void(int)>& part) {
    std::vector<std::thread> running;
    for (int number = 0; number < parts; ++number) running.emplace_back(part, number);
    for (std::thread& thread : running) thread.join();
  };
  for (std::size_t length : {0u, 1u, 7u, 8u, 65u, 1000u, 65536u, 200003u}) {
    const Bytes bytes = random_bytes(length);
    for (int parts : {1, 2, 3, 7, 16}) {
      const auto compute = [&](Regions* regions) {
        return digest(bytes.data(), length, regions, &threads, parts);
      };
      expect_equal(bytes, compute,
                   std::to_string(length) + " bytes in " + std::to_string(parts) + " parts");
    }
  }
}

/// A tensor in memory of just its size.
struct Example {
  Bytes memory;
  std::vector<std::int64_t> shape, strides;
  Strided strided;

  /// `strides` in elements.
  Example(std::size_t itemsize, std::vector<std::int64_t> shape_,
          std::vector<std::int64_t> strides_)
      : shape(std::move(shape_)), strides(std::move(strides_)) {
    std::int64_t lowest = 0, highest = 0;
    bool empty = false;
    for (std::size_t d = 0; d < shape.size(); ++d) {
      empty = empty || shape[d] == 0;
      strides[d] *= static_cast<std::int64_t>(itemsize);
      const std::int64_t reach = (shape[d] - 1) * strides[d];
      (reach < 0 ? lowest : highest) += reach;
    }
    if (empty) lowest = highest = 0;
    memory = random_bytes(empty ? 0 : static_cast<std::size_t>(highest - lowest) + itemsize);
    strided.data = memory.data() - lowest;
    strided.itemsize = strided.part = itemsize;
    strided.dimensions = static_cast<int>(shape.size());
    strided.shape = shape.data();
    strided.strides = strides.data();
  }
  Example(const Example&) = delete;

  /// Its elements one by one.
  Bytes logical() const {
    std::size_t count = 1;
    for (std::int64_t size : shape) count *= static_cast<std::size_t>(size);
    Bytes bytes;
    for (std::size_t element = 0; element < count; ++element) {
      const std::uint8_t* from = strided.data;
      std::size_t rest = element;
      for (std::size_t d = shape.size(); d-- > 0;) {
        const auto size = static_cast<std::size_t>(shape[d]);
        from += static_cast<std::int64_t>(rest % size) * strides[d];
        rest /= size;
      }
      for (std::size_t at = 0; at < strided.itemsize; ++at) {
        const bool sign = (at + 1) % strided.part == 0;
        const bool flip = at < strided.part ? strided.flip_real : strided.flip_imaginary;
        bytes.push_back(static_cast<std::uint8_t>(from[at] ^ (sign && flip ? 0x80 : 0)));
      }
    }
    return bytes;
  }

  void check() const {
    std::string name = "itemsize " + std::to_string(strided.itemsize);
    for (std::size_t d = 0; d < shape.size(); ++d) {
      name.append(" ").append(std::to_string(shape[d]));
      name.append("*").append(std::to_string(strides[d]));
    }
    expect_equal(logical(), [&](Regions* regions) { return digest_strided(strided, regions); },
                 name);
  }
};

void check_all_bits(std::size_t itemsize, const std::vector<std::int64_t>& shape,
                    const std::vector<std::int64_t>& strides) {
  Example example(itemsize, shape, strides);
  example.check();
  example.strided.flip_real = true;
  example.check();
  if (itemsize < 4) return;
  example.strided.part = itemsize / 2;
  for (bool real : {false, true}) {
    example.strided.flip_real = real;
    example.strided.flip_imaginary = true;
    example.check();
  }
}

void test_chosen_strides() {
  for (std::size_t itemsize : {1u, 2u, 4u, 8u, 16u}) {
    check_all_bits(itemsize, {}, {});
    check_all_bits(itemsize, {3, 0, 2}, {5, 1, 1});
    check_all_bits(itemsize, {5, 6, 7}, {42, 7, 1});
    check_all_bits(itemsize, {70, 130}, {1, 70});         // transposed, ragged tiles
    check_all_bits(itemsize, {64, 1100}, {1, 64});        // several tiles
    check_all_bits(itemsize, {33, 301}, {-1, 33});        // … backwards
    check_all_bits(itemsize, {33, 301}, {2, -80});
    check_all_bits(itemsize, {64, 300}, {1, -64});
    check_all_bits(itemsize, {3, 40, 90}, {1, 270, 3});   // tiled along an outer dimension
    check_all_bits(itemsize, {2, 20, 3, 31}, {3720, 1, 1240, 40});
    check_all_bits(itemsize, {900, 3}, {1, 900});         // few columns
    check_all_bits(itemsize, {5000, 5}, {7, 1});
    check_all_bits(itemsize, {9, 700}, {1000, 1});        // long runs
    check_all_bits(itemsize, {40, 33}, {50, 1});
    check_all_bits(itemsize, {60, 50}, {0, 1});           // expanded
    check_all_bits(itemsize, {60, 50}, {1, 0});
    check_all_bits(itemsize, {20000}, {0});
    check_all_bits(itemsize, {100, 100}, {1, 1});         // overlapping
    check_all_bits(itemsize, {30000}, {-3});
    check_all_bits(itemsize, {500, 4}, {8, 1});           // a short run for an element
    check_all_bits(itemsize, {1, 300, 1, 2}, {7, 2, 9, 1});
  }
}

void test_random_strides() {
  for (int round = 0; round < 400; ++round) {
    const std::size_t itemsize = std::size_t{1} << below(5);
    std::vector<std::int64_t> shape(below(5)), strides(shape.size());
    for (std::int64_t& size : shape) size = static_cast<std::int64_t>(1 + below(12));
    for (std::int64_t& stride : strides) stride = static_cast<std::int64_t>(below(41)) - 20;
    check_all_bits(itemsize, shape, strides);
  }
  std::vector<std::int64_t> many(62, 2), places(62, 0);  // as many dimensions as elements allow
  many.resize(14);
  many.resize(70, 1);
  places.assign(70, 1);
  check_all_bits(4, many, places);
}

void test_unknown_code() {
  const std::string before = vector_code();
  expect(!use_vector_code("mmx"), "an unknown vector code is refused");
  expect(before == vector_code(), "a refused one changes nothing");
}

}  // namespace

int main() {
  int codes = 0;
  for (const char* const* name = vector_codes(); *name != nullptr; ++name, ++codes) {
    expect(use_vector_code(*name), std::string("cannot use ") + *name);
    test_published_vectors();
    test_lengths_and_addresses();
    test_splitting();
    test_chosen_strides();
    test_random_strides();
    test_unknown_code();
    std::printf("%s: done\n", vector_code());
  }
  expect(codes > 0, "no vector code");
  if (failures != 0) std::fprintf(stderr, "%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
