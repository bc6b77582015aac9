#include "recorder/reader.h"

#include <algorithm>
#include <cstring>

#include "common/check.h"
#include "recorder/dense.h"
#include "recorder/small.h"

namespace opguard {

namespace {

/// Elements of a list that have a slot of their own; the others share `tensors[…]`, in order.
constexpr std::size_t kMostElements = 4096;
constexpr const char* kShared = "[\xE2\x80\xA6]";
/// Slots after which all new elements share theirs: a slot's id has 16 bits.
constexpr std::size_t kMostSlots = 60000;

/// True for wrappers that Python made (`_make_wrapper_subclass`): they have no data of their own.
bool asks_python(const c10::TensorImpl& impl) {
  if (!impl.key_set().has(c10::DispatchKey::Python)) {
    return false;
  }
  const c10::StorageImpl* storage = impl.unsafe_storage().unsafeGetStorageImpl();
  return storage == nullptr || storage->data() == nullptr;
}

std::uint8_t reason_bits(Reason reason) {
  return static_cast<std::uint8_t>(static_cast<unsigned>(reason) << kReasonShift);
}

}  // namespace

Traits traits(const at::Tensor& tensor) {
  Traits traits;
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  const c10::DispatchKeySet keys = impl.key_set();
  traits.dataless = keys.has_backend(c10::BackendComponent::MetaBit);
  traits.wrapper = asks_python(impl);
  const bool odd = traits.wrapper || impl.layout() != c10::kStrided ||
                   keys.has(c10::DispatchKey::Quantized) ||
                   tensor.is_quantized() || impl.is_nested();
  traits.plain = !traits.dataless && !odd && impl.has_storage();
  if (!odd) {
    traits.bits = static_cast<Bits>((impl.is_conj() ? 1 : 0) | (impl.is_neg() ? 2 : 0));
  }
  return traits;
}

const c10::StorageImpl* storage_key(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

Reader::Reader(Interner& interner, Mode mode)
    : interner_(interner),
      geometries_(interner),
      full_(mode != Mode::Trusted),
      tracks_(mode != Mode::Collectives),
      no_shape_(interner.intern(StringKind::Shape, "[]")),
      no_strides_(interner.intern(StringKind::Strides, "[]")) {}

// Inputs

void Reader::tidy() {
  if (geometries_.crowded()) {
    values.reread_all();
    geometries_.forget();
  }
}

void Reader::input(Call& call, StringId slot, const at::Tensor& tensor) {
  const Traits kind = traits(tensor);
  if (kind.plain) {
    plain_input(call, slot, tensor, kind.bits);
    return;
  }
  if (kind.dataless) {
    call.dataless = true;
    return;
  }
  std::vector<Part> parts;
  const Reason reason = parts_of(tensor, parts);
  if (reason != Reason::Present) {
    missing(call.inputs, slot, tensor, kFresh, reason);
    return;
  }
  for (const Part& part : parts) {
    plain_input(call, sub_slot(slot, part.suffix), part.tensor, traits(part.tensor).bits);
    // A part may be made here and freed at once: nothing else may have its address meanwhile.
    call.kept.push_back(part.tensor.storage().getWeakStorageImpl());
  }
}

void Reader::plain_input(Call& call, StringId slot, const at::Tensor& tensor, Bits bits) {
  Storage& storage = values.meet(tensor);
  const Geometry& geometry = geometries_.of(tensor, bits);
  RecordRow added = row(slot, geometry, 0);
  if (tracks_) {
    added.producers = storage.producers(geometry);
  }
  if (storage.has_void() && storage.is_void(geometry)) {
    added.flags = kVoid;
  } else if (const Known* known = full_ ? nullptr : storage.known(geometry)) {
    added.digest = known->digest;
  } else if (const Known* base = full_ || bits != 0 ? nullptr : storage.covering(geometry)) {
    added.flags = kVia;
    added.strides = geometries_.relative(geometry, *base->geometry);
    added.digest = base->digest;
  } else {
    added.flags = kFresh;
    if (read(added, tensor, geometry, storage)) {
      storage.learn(geometry, added.digest);
    }
  }
  if (added.producers.empty()) {
    call.unproduced.push_back({storage_key(tensor), call.inputs.size()});
  }
  call.storages.push_back(storage_key(tensor));
  call.inputs.push_back(added);
}

void Reader::generator(Call& call, StringId slot) {
  if (!call.generator.empty()) {
    bytes(call.inputs, slot, kBytes, call.generator.data(), call.generator.size(), kFresh);
  }
}

bool Reader::read(RecordRow& row, const at::Tensor& tensor, const Geometry& geometry,
                  const Storage& storage) {
  if (geometry.nbytes == 0) {
    return true;
  }
  Reason reason = Reason::Present;
  const void* const data = tensor.unsafeGetTensorImpl()->unsafe_storage().data();
  if (storage.nbytes() < geometry.end || data == nullptr) {
    reason = Reason::Freed;
  } else if (!tensor.is_cpu()) {
    reason = Reason::Unsupported;  // this build reads host memory only
  }
  if (reason != Reason::Present) {
    unfingerprinted[static_cast<std::size_t>(reason)] += 1;
    row.flags |= reason_bits(reason);
    return false;
  }
  const auto nbytes = static_cast<std::size_t>(geometry.nbytes);
  row.has_regions = (row.flags & kOutput) != 0 && nbytes >= fingerprint::kRegionBytes;
  row.digest = digest_tensor(tensor, geometry, row.has_regions ? &row.regions : nullptr);
  if (nbytes <= fingerprint::kSmallBytes) {
    copy_small(tensor, geometry, row.small.data());
    row.small_bytes = static_cast<std::uint8_t>(nbytes);
  }
  return true;
}

// Outputs

void Reader::output(std::vector<RecordRow>& rows, StringId slot, const at::Tensor& tensor,
                    const Written& written, Record first, const Call& call) {
  const Traits kind = traits(tensor);
  if (kind.plain) {
    plain_output(rows, slot, tensor, kind.bits, written, first, call);
    return;
  }
  if (kind.dataless) {
    return;
  }
  std::vector<Part> parts;
  const Reason reason = parts_of(tensor, parts);
  if (reason != Reason::Present) {
    missing(rows, slot, tensor, kOutput, reason);
    return;
  }
  for (const Part& part : parts) {
    plain_output(rows, sub_slot(slot, part.suffix), part.tensor, traits(part.tensor).bits, written,
                 first, call);
  }
}

void Reader::plain_output(std::vector<RecordRow>& rows, StringId slot, const at::Tensor& tensor,
                          Bits bits, const Written& written, Record first, const Call& call) {
  Storage& storage = values.create(tensor);
  const Geometry& geometry = geometries_.of(tensor, bits);
  RecordRow added = row(slot, geometry, kOutput);
  // Of a sparse tensor one part may be an input's and another one new.
  const bool alias = written.how == Output::Returned &&
                     std::find(call.storages.begin(), call.storages.end(), storage_key(tensor)) !=
                         call.storages.end();
  Producers producers;
  if (alias) {
    producers = storage.producers(geometry);
  } else {
    const auto record = first + static_cast<Record>(call.inputs.size() + rows.size());
    producers = storage.wrote(geometry, record, written.partial);
    if (written.how == Output::Returned) {
      storage.creator = record;
    } else if (producers.empty() && storage.creator != kNoRecord) {
      producers.push_back(storage.creator);
    }
    // Undeclared writers, and Gloo's threads, may write by operators that move version counters.
    if (written.how != Output::Returned || call.op->collective) {
      storage.explain(tensor);
    }
    if (written.is_void) {
      Unset all;
      all.how = Unset::How::All;
      storage.leave_void(geometry, all);
    } else if (written.unset != nullptr && written.unset->how != Unset::How::None) {
      storage.leave_void(geometry, *written.unset);
    }
  }
  // What a call writes twice, in a list that holds a tensor twice, is not its own producer.
  for (const Record producer : producers) {
    if (tracks_ && producer < first) {
      added.producers.push_back(producer);
    }
  }
  if (storage.has_void() && storage.is_void(geometry)) {
    added.flags |= kVoid;
  } else if (read(added, tensor, geometry, storage)) {
    storage.learn(geometry, added.digest);
  }
  rows.push_back(added);
}

void Reader::final(std::vector<RecordRow>& rows, StringId slot, const at::Tensor& tensor) {
  Storage& storage = values.meet(tensor);
  const Geometry& geometry = geometries_.of(tensor, traits(tensor).bits);
  auto& views = storage.final_views;
  views.erase(std::remove_if(views.begin(), views.end(),
                             [this](const auto& view) { return view.first != pass_; }),
              views.end());
  const std::pair<std::uint32_t, std::uint32_t> view{pass_, geometry.value_key};
  if (std::find(views.begin(), views.end(), view) != views.end()) {
    return;
  }
  views.push_back(view);
  RecordRow added = row(slot, geometry, kOutput);
  if (tracks_) {
    added.producers = storage.producers(geometry);
  }
  if (added.producers.empty() && storage.first_reader != kNoRecord) {
    added.producers.push_back(storage.first_reader);
  }
  if (storage.has_void() && storage.is_void(geometry)) {
    added.flags |= kVoid;
  } else {
    read(added, tensor, geometry, storage);
  }
  rows.push_back(added);
}

// Records without a plain tensor

void Reader::bytes(std::vector<RecordRow>& rows, StringId slot, std::uint8_t dtype,
                   const void* data, std::size_t nbytes, std::uint8_t flags) {
  RecordRow added;
  added.slot = slot;
  added.dtype = dtype;
  added.flags = flags;
  added.shape = no_shape_;
  added.strides = no_strides_;
  if (nbytes >= fingerprint::kRegionBytes && (flags & kOutput) != 0) {
    added.has_regions = true;
    added.digest = fingerprint::digest(data, nbytes, &added.regions);
  } else {
    added.digest = fingerprint::digest(data, nbytes);
  }
  if (nbytes <= fingerprint::kSmallBytes) {
    std::memcpy(added.small.data(), data, nbytes);
    added.small_bytes = static_cast<std::uint8_t>(nbytes);
  }
  rows.push_back(added);
}

void Reader::missing(std::vector<RecordRow>& rows, StringId slot, const at::Tensor& tensor,
                     std::uint8_t flags, Reason reason) {
  unfingerprinted[static_cast<std::size_t>(reason)] += 1;
  RecordRow added;
  added.slot = slot;
  added.dtype = dtype_code(tensor.scalar_type());
  added.flags = static_cast<std::uint8_t>(flags | reason_bits(reason));
  // Not `sizes()`, which some tensors answer in Python and others by raising.
  const auto sizes = c10::asIntArrayRefSlowOpt(tensor.unsafeGetTensorImpl()->sym_sizes_default());
  added.shape = sizes ? interner_.intern(StringKind::Shape, json_list(*sizes)) : no_shape_;
  added.strides = no_strides_;
  rows.push_back(added);
}

RecordRow Reader::row(StringId slot, const Geometry& geometry, std::uint8_t flags) const {
  RecordRow added;
  added.slot = slot;
  added.shape = geometry.shape_id;
  added.strides = geometry.strides_id;
  added.dtype = geometry.dtype_code;
  added.flags = flags;
  return added;
}

// Values

Unset Reader::unset_elements(const at::Tensor& tensor) {
  const Traits kind = traits(tensor);
  const Storage* storage = kind.plain ? values.find(tensor) : nullptr;
  if (storage == nullptr || !storage->has_void()) {
    return {};
  }
  return storage->unset_elements(geometries_.of(tensor, kind.bits));
}

void Reader::explain(const at::Tensor& tensor) {
  Storage* storage = traits(tensor).plain ? values.find(tensor) : nullptr;
  if (storage != nullptr) {
    storage->explain(tensor);
  }
}

void Reader::forget(const at::Tensor& tensor, bool keep_void) {
  Storage* storage = traits(tensor).plain ? values.find(tensor) : nullptr;
  if (storage != nullptr) {
    storage->forget(keep_void);
  }
}

void Reader::make_external(const at::Tensor& tensor) {
  if (traits(tensor).plain) {
    values.meet(tensor).make_external();
  }
}

// Slots

StringId Reader::sub_slot(StringId slot, const std::string& suffix) {
  const std::string key = std::to_string(slot) + suffix;
  const auto found = part_slots_.find(key);
  if (found != part_slots_.end()) {
    return found->second;
  }
  if (suffix != kShared && ++slots_ > kMostSlots) {
    return sub_slot(slot, kShared);
  }
  std::string name = interner_.text(StringKind::Slot, slot);
  const bool written = !name.empty() && name.back() == '!';
  if (written) {
    name.pop_back();
  }
  const StringId made = interner_.intern(StringKind::Slot, name + suffix + (written ? "!" : ""));
  part_slots_.emplace(key, made);
  return made;
}

StringId Reader::element_slot(StringId slot, std::size_t index) {
  if (index >= kMostElements) {
    return sub_slot(slot, kShared);
  }
  std::vector<StringId>& known = element_slots_[slot];
  while (known.size() <= index) {
    known.push_back(sub_slot(slot, json_array({std::to_string(known.size())})));
  }
  return known[index];
}

}  // namespace opguard
