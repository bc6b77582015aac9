#include "recorder/geometry.h"

#include <algorithm>
#include <utility>

#include "fingerprint/mix64.h"

namespace opguard {

/// What tells a geometry apart from others.
struct Geometries::Wanted {
  c10::IntArrayRef shape;
  c10::IntArrayRef strides;
  std::int64_t offset;
  c10::ScalarType dtype;
  std::int64_t itemsize;
  Bits bits;
  std::uint64_t mixed;

  bool is(const Geometry& geometry) const {
    return geometry.dtype == dtype && geometry.bits == bits &&
           geometry.start == offset * itemsize && shape == c10::IntArrayRef(geometry.shape) &&
           strides == c10::IntArrayRef(geometry.strides);
  }
};

namespace {

/// Two chains that the processor runs side by side: this is on the way of every tensor of every
/// call. The multipliers are the fingerprint's.
std::uint64_t mix(c10::IntArrayRef shape, c10::IntArrayRef strides, std::int64_t offset,
                  std::uint64_t kind) {
  std::uint64_t sizes = kind;
  std::uint64_t steps = static_cast<std::uint64_t>(offset);
  for (std::size_t at = 0; at < shape.size(); ++at) {
    sizes = sizes * fingerprint::kM + static_cast<std::uint64_t>(shape[at]);
    steps = steps * fingerprint::kK + static_cast<std::uint64_t>(strides[at]);
  }
  std::uint64_t state = (sizes ^ (steps << 32 | steps >> 32)) * fingerprint::kM;
  state = (state ^ (state >> 32)) * fingerprint::kM;
  return state ^ (state >> 32);
}

bool is_dense(c10::IntArrayRef shape, c10::IntArrayRef strides) {
  c10::SmallVector<std::pair<std::int64_t, std::int64_t>, 5> order;
  for (std::size_t at = 0; at < shape.size(); ++at) {
    order.emplace_back(strides[at], shape[at]);
  }
  std::sort(order.begin(), order.end());
  std::int64_t filled = 1;
  for (const auto& [stride, size] : order) {
    if (size > 1) {
      if (stride != filled) {
        return false;
      }
      filled *= size;
    }
  }
  return true;
}

/// The bytes of a value in one order have one text.
std::string value_text(const Geometry& geometry) {
  std::string text = std::to_string(static_cast<int>(geometry.dtype)) + "|" +
                     std::to_string(geometry.bits) + "|" + std::to_string(geometry.start) + "|";
  if (geometry.contiguous || geometry.nbytes == 0) {
    return text + std::to_string(geometry.nbytes);
  }
  return text + json_list(geometry.shape) + json_list(geometry.strides);
}

}  // namespace

std::string Geometry::layout() const {
  return contiguous ? "" : json_array({json_list(shape), json_list(strides)});
}

const Geometry& Geometries::of(const at::Tensor& tensor, Bits bits) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  Wanted wanted{impl.sizes(), impl.strides(), impl.storage_offset(), tensor.scalar_type(),
                static_cast<std::int64_t>(impl.dtype().itemsize()), bits, 0};
  wanted.mixed = mix(wanted.shape, wanted.strides, wanted.offset,
                     static_cast<std::uint64_t>(wanted.dtype) << 8 | bits);
  const std::size_t last = slots_.size() - 1;
  for (std::size_t at = wanted.mixed & last; slots_[at].geometry != nullptr; at = (at + 1) & last) {
    const Slot& slot = slots_[at];
    if (slot.mixed == wanted.mixed && wanted.is(*slot.geometry)) {
      return *slot.geometry;
    }
  }
  return add(wanted, impl.is_contiguous());
}

const Geometry& Geometries::add(const Wanted& wanted, bool contiguous) {
  Geometry made;
  made.itemsize = wanted.itemsize;
  made.shape.assign(wanted.shape.begin(), wanted.shape.end());
  made.strides.assign(wanted.strides.begin(), wanted.strides.end());
  made.dtype = wanted.dtype;
  made.bits = wanted.bits;
  made.nbytes = made.itemsize;
  for (const std::int64_t size : wanted.shape) {
    made.nbytes *= size;
  }
  made.start = wanted.offset * made.itemsize;
  made.contiguous = contiguous;
  if (contiguous || made.nbytes == 0) {
    made.end = made.start + made.nbytes;
    made.dense = true;
  } else {
    made.end = made.start + made.itemsize;
    for (std::size_t at = 0; at < wanted.shape.size(); ++at) {
      made.end += (wanted.shape[at] - 1) * wanted.strides[at] * made.itemsize;
    }
    made.dense = is_dense(wanted.shape, wanted.strides);
  }
  made.dtype_code = dtype_code(made.dtype);
  made.shape_id = interner_.intern(StringKind::Shape, json_list(wanted.shape));
  std::string strides = json_list(wanted.strides);
  if (made.start != 0) {
    strides.push_back('@');
    strides.append(std::to_string(made.start));
  }
  made.strides_id = interner_.intern(StringKind::Strides, strides);
  const auto [key, is_new] = value_keys_.emplace(value_text(made), next_key_);
  next_key_ += is_new ? 1 : 0;
  made.value_key = key->second;
  made.number = next_number_++;
  all_.push_back(std::move(made));
  if (all_.size() * 2 > slots_.size()) {
    grow();
  }
  insert({wanted.mixed, &all_.back()});
  return all_.back();
}

void Geometries::forget() {
  all_.clear();
  slots_.assign(kFirstSlots, {});
  value_keys_.clear();
  relative_.clear();
}

void Geometries::grow() {
  std::vector<Slot> full(slots_.size() * 2);
  full.swap(slots_);
  for (const Slot& slot : full) {
    if (slot.geometry != nullptr) {
      insert(slot);
    }
  }
}

void Geometries::insert(Slot slot) {
  const std::size_t last = slots_.size() - 1;
  std::size_t at = slot.mixed & last;
  while (slots_[at].geometry != nullptr) {
    at = (at + 1) & last;
  }
  slots_[at] = slot;
}

StringId Geometries::relative(const Geometry& view, const Geometry& base) {
  const std::uint64_t key = static_cast<std::uint64_t>(view.number) << 32 | base.number;
  const auto found = relative_.find(key);
  if (found != relative_.end()) {
    return found->second;
  }
  const std::string text = json_list(view.strides) + "|" +
                           std::to_string(view.start - base.start) + "|" +
                           std::to_string(base.nbytes) + "|" + base.layout();
  return relative_.emplace(key, interner_.intern(StringKind::Strides, text)).first->second;
}

std::uint8_t dtype_code(c10::ScalarType type) {
  // `DTYPES` has "none" before the types in torch's own order, which ends at float4_e2m1fn_x2, and
  // `unknown` after five that are ours; a test compares them.
  constexpr std::uint8_t kTypes = 46;
  constexpr std::uint8_t kUnknown = 52;
  const auto number = static_cast<std::uint8_t>(type);
  const bool has_code = type != c10::ScalarType::Undefined && number < kTypes;
  return has_code ? static_cast<std::uint8_t>(number + 1) : kUnknown;
}

}  // namespace opguard
