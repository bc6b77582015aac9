#include "recorder/void_map.h"

#include <algorithm>
#include <cstring>

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

VoidMap::VoidMap(std::int64_t nbytes, std::int64_t first)
    : nbytes_(nbytes), whole_(first == 0), clean_(first) {
  if (!whole_) {
    map_.assign(static_cast<std::size_t>(nbytes), 1);
    std::fill_n(map_.begin(), first, std::uint8_t{0});
  }
}

void VoidMap::materialise() {
  if (whole_) {
    map_.assign(static_cast<std::size_t>(nbytes_), 1);
    whole_ = false;
  }
}

bool VoidMap::any(std::int64_t first, std::int64_t last) const {
  first = std::max(first, clean_);
  last = std::min(last, nbytes_);
  return first < last &&
         std::memchr(map_.data() + first, 1, static_cast<std::size_t>(last - first)) != nullptr;
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
    map_.resize(static_cast<std::size_t>(nbytes), 1);
    clean_ = std::min(clean_, nbytes);
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
      const std::int64_t last = std::min(byte + geometry.itemsize, nbytes_);
      std::memset(map_.data() + byte, 1, static_cast<std::size_t>(last - byte));
    }
  });
  clean_ = std::min(clean_, geometry.start);
}

bool VoidMap::written(const Geometry& geometry) {
  if (geometry.nbytes == 0) {
    return false;
  }
  materialise();
  any_run(geometry, nbytes_, [this](std::int64_t first, std::int64_t last) {
    std::memset(map_.data() + first, 0, static_cast<std::size_t>(last - first));
    return false;
  });
  const void* found = clean_ < nbytes_ ? std::memchr(map_.data() + clean_, 1,
                                                     static_cast<std::size_t>(nbytes_ - clean_))
                                       : nullptr;
  clean_ = found != nullptr ? static_cast<const std::uint8_t*>(found) - map_.data() : nbytes_;
  return found == nullptr;
}

}  // namespace opguard
