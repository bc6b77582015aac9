#include "recorder/values.h"

#include <algorithm>

#include "common/check.h"

namespace opguard {

namespace {

/// The tensor's version counter. Inference tensors have none.
std::int64_t version_of(const at::Tensor& tensor) {
  const c10::VariableVersion& counter = tensor.unsafeGetTensorImpl()->version_counter();
  return counter.enabled() ? counter.current_version() : 0;
}

/// The tensor whose counter this is: itself or its base, by address.
const void* holder_of(const at::Tensor& tensor) {
  return tensor.is_view() ? tensor._base().unsafeGetTensorImpl() : tensor.unsafeGetTensorImpl();
}

const c10::Storage& storage_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->unsafe_storage();
}

/// Others may write the memory: numpy shares it, or another process.
bool is_shared(const c10::StorageImpl& storage) {
  if (!storage.resizable()) {
    return true;
  }
  if (storage.device_type() != c10::DeviceType::CPU) {
    return false;
  }
  const at::DataPtr& data = storage.data_ptr();
  return at::MapAllocator::fromDataPtr(data) != nullptr ||
         THManagedMapAllocator::fromDataPtr(data) != nullptr;
}

}  // namespace

// One storage

Storage::Storage(c10::weak_intrusive_ptr<c10::StorageImpl> weak, std::int64_t nbytes,
                 std::int64_t version)
    : weak_(std::move(weak)), nbytes_(nbytes), version_(version) {}

bool Storage::is_void(const Geometry& geometry) const {
  return void_.has_value() && void_->overlaps(geometry);
}

void Storage::learn(const Geometry& geometry, const fingerprint::Digest& digest) {
  if (!external_) {
    known_.learn(geometry, digest);
  }
}

const Known* Storage::covering(const Geometry& geometry) const {
  return writers_.lists_all(geometry.start, geometry.end) ? known_.covering(geometry) : nullptr;
}

Producers Storage::wrote(const Geometry& geometry, Record record, bool partial) {
  const std::int64_t start = geometry.start;
  const std::int64_t end = geometry.end;
  if (start == end) {
    return {};
  }
  Producers before = producers(geometry);
  writers_.add(start, end, record, !geometry.dense || partial);
  known_.drop(start, end);
  if (void_.has_value() && !partial) {
    const bool whole = geometry.dense && geometry.nbytes == void_->nbytes();
    if (whole || void_->written(geometry)) {
      void_.reset();
    }
  }
  return before;
}

void Storage::leave_void(const Geometry& geometry, const Unset& unset) {
  if (external_ || unset.how == Unset::How::None) {
    return;
  }
  if (unset.how == Unset::How::All) {
    void_.emplace(nbytes_);
    return;
  }
  if (!void_.has_value()) {
    void_.emplace(nbytes_, nbytes_);
  }
  void_->leave(geometry, unset);
}

Unset Storage::unset_elements(const Geometry& geometry) const {
  return void_.has_value() ? void_->elements(geometry) : Unset{};
}

void Storage::make_external() {
  external_ = true;
  known_.clear();
  if (void_.has_value()) {
    // Nobody tells which of the void bytes get written: they count as all written, by somebody
    // whom capture does not see.
    forget(false);
  }
}

void Storage::forget(bool keep_void) {
  known_.clear();
  writers_.clear();
  first_reader = kNoRecord;
  if (!keep_void) {
    void_.reset();
  }
}

void Storage::resized(std::int64_t nbytes) {
  known_.clear();
  if (nbytes < nbytes_) {
    writers_.cut(nbytes);
  }
  if (void_.has_value()) {
    void_->resize(nbytes);
  } else if (nbytes > nbytes_ && !external_) {
    void_.emplace(nbytes, nbytes_);
  }
  nbytes_ = nbytes;
}

void Storage::explain(const at::Tensor& tensor) {
  version_ = std::max(version_, version_of(tensor));
  hold(holder_of(tensor));
}

/// What happened to the memory outside capture since it was last met.
void Storage::refresh(const c10::StorageImpl& storage) {
  if (!external_ && is_shared(storage)) {
    make_external();
  }
  const auto nbytes = static_cast<std::int64_t>(storage.nbytes());
  if (nbytes != nbytes_) {
    resized(nbytes);
  }
}

/// The tensor's counter stands where no captured write has brought it.
///
/// A counter that was covered shows that somebody wrote. Another one belongs to a tensor that was
/// given the storage (`parameter.data = …`, `module.double()`), and shows what its earlier storages
/// went through: the bytes are read again, to be safe.
void Storage::moved(const at::Tensor& tensor, std::int64_t version) {
  const void* holder = holder_of(tensor);
  if (std::find(holders_.begin(), holders_.end(), holder) != holders_.end()) {
    forget(false);
  } else {
    known_.clear();
  }
  version_ = version;
  hold(holder);
}

void Storage::hold(const void* holder) {
  const auto found = std::find(holders_.begin(), holders_.end(), holder);
  if (found != holders_.end()) {
    std::rotate(holders_.begin(), found, found + 1);
    return;
  }
  if (holders_.size() == kMostHolders) {
    holders_.pop_back();
  }
  holders_.insert(holders_.begin(), holder);
}

// All storages

Storage& Values::meet(const at::Tensor& tensor) {
  const c10::Storage& storage = storage_of(tensor);
  Storage* entry = find(storage.unsafeGetStorageImpl());
  if (entry == nullptr) {
    Storage& made = enter(tensor, storage);
    made.external_ = is_shared(*storage.unsafeGetStorageImpl());
    made.hold(holder_of(tensor));
    return made;
  }
  entry->refresh(*storage.unsafeGetStorageImpl());
  const std::int64_t version = version_of(tensor);
  if (version > entry->version_) {
    entry->moved(tensor, version);
  } else if (entry->holders_.empty()) {
    entry->hold(holder_of(tensor));
  }
  return *entry;
}

Storage& Values::create(const at::Tensor& tensor) {
  const c10::Storage& storage = storage_of(tensor);
  Storage* entry = find(storage.unsafeGetStorageImpl());
  if (entry == nullptr) {
    return enter(tensor, storage);
  }
  entry->refresh(*storage.unsafeGetStorageImpl());
  return *entry;
}

Storage* Values::find(const at::Tensor& tensor) {
  return find(storage_of(tensor).unsafeGetStorageImpl());
}

Storage* Values::find(const c10::StorageImpl* storage) {
  const auto found = storages_.find(storage);
  return found != storages_.end() ? &found->second : nullptr;
}

void Values::rebuilt(const at::Tensor& tensor, const c10::Storage& storage) {
  const Storage* before = find(tensor);
  if (before != nullptr && find(storage.unsafeGetStorageImpl()) == nullptr) {
    const Record creator = before->creator;
    enter(tensor, storage).creator = creator;
  }
}

void Values::resized(const c10::Storage& storage) {
  Storage* entry = find(storage.unsafeGetStorageImpl());
  const auto nbytes = static_cast<std::int64_t>(storage.nbytes());
  if (entry != nullptr && nbytes != entry->nbytes_) {
    entry->resized(nbytes);
  }
}

void Values::reread_all() {
  for (auto& [_, storage] : storages_) {
    storage.reread();
  }
}

void Values::forget_all() {
  while (!storages_.empty()) {
    dropped_.push_back(storages_.extract(storages_.begin()));
  }
}

Storage& Values::enter(const at::Tensor& tensor, const c10::Storage& storage) {
  OPGUARD_CHECK(storage, "a tensor without storage has no value");
  if (storages_.size() >= sweep_at_) {
    sweep();
  }
  const auto entered = storages_.try_emplace(
      storage.unsafeGetStorageImpl(), storage.getWeakStorageImpl(),
      static_cast<std::int64_t>(storage.nbytes()), version_of(tensor));
  return entered.first->second;
}

void Values::sweep() {
  for (auto at = storages_.begin(); at != storages_.end();) {
    const auto entry = at++;
    if (entry->second.expired()) {
      dropped_.push_back(storages_.extract(entry));
    }
  }
  sweep_at_ = storages_.size() + std::max(kSweepEvery, storages_.size() / kSweepPart);
}

}  // namespace opguard
