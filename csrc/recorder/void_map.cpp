#include "recorder/void_map.h"

#include <algorithm>

#include "common/check.h"

namespace opguard {

namespace {

struct Axis {
  std::int64_t stride;  // in bytes
  std::int64_t size;
};

/// Calls `visit(first, last)` for runs of bytes that together are those of the tensor, in any
/// order, up to byte `nbytes` of the storage. Ends and returns true as soon as a call does.
template <class Visit>
bool any_run(const Geometry& geometry, std::int64_t nbytes, Visit visit) {
  if (geometry.nbytes == 0) {
    return false;
  }
  c10::SmallVector<Axis, 5> axes;
  for (std::size_t at = 0; at < geometry.shape.size(); ++at) {
    if (geometry.shape[at] > 1 && geometry.strides[at] != 0) {
      axes.push_back({geometry.strides[at] * geometry.itemsize, geometry.shape[at]});
    }
  }
  std::sort(axes.begin(), axes.end(),
            [](const Axis& a, const Axis& b) { return a.stride < b.stride; });
  std::int64_t run = geometry.itemsize;
  std::size_t merged = 0;
  for (; merged < axes.size() && axes[merged].stride <= run; ++merged) {
    run += (axes[merged].size - 1) * axes[merged].stride;
  }
  c10::DimVector index(axes.size(), 0);
  std::int64_t first = geometry.start;
  while (true) {
    if (first < nbytes && visit(first, std::min(first + run, nbytes))) {
      return true;
    }
    std::size_t axis = merged;
    for (; axis < axes.size(); ++axis) {
      first += axes[axis].stride;
      if (++index[axis] < axes[axis].size) {
        break;
      }
      first -= axes[axis].stride * axes[axis].size;
      index[axis] = 0;
    }
    if (axis == axes.size()) {
      return false;
    }
  }
}

/// Calls `visit(byte, place)` for the elements of a tensor that has some, in row-major order:
/// first byte in the storage, and place by strides of its own.
template <class Visit>
void each_element(const Geometry& geometry, c10::IntArrayRef place_strides, Visit visit) {
  c10::DimVector index(geometry.shape.size(), 0);
  std::int64_t byte = geometry.start;
  std::int64_t place = 0;
  while (true) {
    visit(byte, place);
    std::size_t left = geometry.shape.size();
    for (; left > 0; --left) {
      const std::size_t axis = left - 1;
      byte += geometry.strides[axis] * geometry.itemsize;
      place += place_strides[axis];
      if (++index[axis] < geometry.shape[axis]) {
        break;
      }
      byte -= geometry.strides[axis] * geometry.itemsize * geometry.shape[axis];
      place -= place_strides[axis] * geometry.shape[axis];
      index[axis] = 0;
    }
    if (left == 0) {
      return;
    }
  }
}

/// Strides of a row-major mask, seen in the shape that it broadcasts to.
c10::DimVector broadcast_strides(c10::IntArrayRef mask, c10::IntArrayRef shape) {
  OPGUARD_CHECK(mask.size() <= shape.size(), "a mask has more dimensions than its tensor");
  c10::DimVector strides(shape.size(), 0);
  const std::size_t missing = shape.size() - mask.size();
  std::int64_t stride = 1;
  for (std::size_t left = mask.size(); left > 0; --left) {
    const std::int64_t size = mask[left - 1];
    OPGUARD_CHECK(size == 1 || size == shape[missing + left - 1], "a mask does not broadcast");
    strides[missing + left - 1] = size == 1 ? 0 : stride;
    stride *= size;
  }
  return strides;
}

}  // namespace

// One page

namespace {

/// Bits `first` to `last` of a word, of which there is at least one.
std::uint64_t bits_between(std::int64_t first, std::int64_t last) {
  return (~std::uint64_t{0} >> (64 - (last - first))) << first;
}

/// Calls `visit(word, mask)` for the bits from `first` to `last`. Ends and returns true as soon as
/// a call does.
template <class Visit>
bool any_word(std::int64_t first, std::int64_t last, Visit visit) {
  while (first < last) {
    const std::int64_t word = first / 64;
    const std::int64_t end = std::min(last, (word + 1) * 64);
    if (visit(static_cast<std::size_t>(word), bits_between(first - word * 64, end - word * 64))) {
      return true;
    }
    first = end;
  }
  return false;
}

}  // namespace

bool VoidMap::Page::any(std::int64_t first, std::int64_t last) const {
  if (bits == nullptr) {
    return void_bytes != 0;
  }
  return any_word(first, last, [this](std::size_t word, std::uint64_t mask) {
    return ((*bits)[word] & mask) != 0;
  });
}

void VoidMap::Page::mark(std::int64_t first, std::int64_t last, bool is_void) {
  const std::int64_t all_alike = is_void ? kPageBytes : 0;
  if (void_bytes == all_alike) {
    return;
  }
  if (last - first == kPageBytes) {
    void_bytes = all_alike;
    bits.reset();
    return;
  }
  if (bits == nullptr) {
    bits = std::make_unique<Bits>();
    bits->fill(void_bytes == 0 ? 0 : ~std::uint64_t{0});
  }
  any_word(first, last, [&](std::size_t at, std::uint64_t mask) {
    std::uint64_t& word = (*bits)[at];
    const std::uint64_t changed = (is_void ? ~word : word) & mask;
    word ^= changed;
    const std::int64_t count = __builtin_popcountll(changed);
    void_bytes += is_void ? count : -count;
    return false;
  });
  if (void_bytes == all_alike) {
    bits.reset();
  }
}

// All of them

VoidMap::VoidMap(std::int64_t nbytes, std::int64_t first) : nbytes_(nbytes), whole_(first == 0) {
  if (!whole_) {
    pages_.resize(static_cast<std::size_t>((nbytes + kPageBytes - 1) / kPageBytes));
    mark(first, nbytes, true);
  }
}

void VoidMap::materialise() {
  if (whole_) {
    whole_ = false;
    pages_.resize(static_cast<std::size_t>((nbytes_ + kPageBytes - 1) / kPageBytes));
    mark(0, nbytes_, true);
  }
}

void VoidMap::mark(std::int64_t first, std::int64_t last, bool is_void) {
  while (first < last) {
    const std::int64_t start = first / kPageBytes * kPageBytes;
    const std::int64_t end = std::min(last, start + kPageBytes);
    Page& page = pages_[static_cast<std::size_t>(first / kPageBytes)];
    void_bytes_ -= page.void_bytes;
    page.mark(first - start, end - start, is_void);
    void_bytes_ += page.void_bytes;
    first = end;
  }
}

bool VoidMap::any(std::int64_t first, std::int64_t last) const {
  last = std::min(last, nbytes_);
  while (first < last) {
    const std::int64_t start = first / kPageBytes * kPageBytes;
    const std::int64_t end = std::min(last, start + kPageBytes);
    if (pages_[static_cast<std::size_t>(first / kPageBytes)].any(first - start, end - start)) {
      return true;
    }
    first = end;
  }
  return false;
}

bool VoidMap::overlaps(const Geometry& geometry) const {
  if (geometry.nbytes == 0) {
    return false;
  }
  if (whole_) {
    return true;
  }
  return any(geometry.start, geometry.end) &&
         any_run(geometry, nbytes_,
                 [this](std::int64_t first, std::int64_t last) { return any(first, last); });
}

Unset VoidMap::elements(const Geometry& geometry) const {
  Unset unset;
  if (!overlaps(geometry)) {
    return unset;
  }
  unset.how = Unset::How::Some;
  unset.shape = geometry.shape;
  unset.mask.resize(static_cast<std::size_t>(geometry.nbytes / geometry.itemsize));
  const c10::DimVector strides = broadcast_strides(geometry.shape, geometry.shape);
  each_element(geometry, strides, [&](std::int64_t byte, std::int64_t place) {
    unset.mask[static_cast<std::size_t>(place)] = whole_ || any(byte, byte + geometry.itemsize);
  });
  return unset;
}

void VoidMap::resize(std::int64_t nbytes) {
  if (!whole_) {
    mark(std::min(nbytes, nbytes_), nbytes_, false);
    pages_.resize(static_cast<std::size_t>((nbytes + kPageBytes - 1) / kPageBytes));
    mark(nbytes_, nbytes, true);
  }
  nbytes_ = nbytes;
}

void VoidMap::leave(const Geometry& geometry, const Unset& unset) {
  materialise();
  if (geometry.nbytes == 0) {
    return;
  }
  const c10::DimVector strides = broadcast_strides(unset.shape, geometry.shape);
  OPGUARD_CHECK(unset.mask.size() == static_cast<std::size_t>(c10::multiply_integers(unset.shape)),
                "a mask has another size than its shape");
  each_element(geometry, strides, [&](std::int64_t byte, std::int64_t place) {
    if (unset.mask[static_cast<std::size_t>(place)] != 0 && byte < nbytes_) {
      mark(byte, std::min(byte + geometry.itemsize, nbytes_), true);
    }
  });
}

bool VoidMap::written(const Geometry& geometry) {
  if (geometry.nbytes == 0) {
    return false;
  }
  materialise();
  any_run(geometry, nbytes_, [this](std::int64_t first, std::int64_t last) {
    mark(first, last, false);
    return false;
  });
  return void_bytes_ == 0;
}

}  // namespace opguard
