// Which tensor is which: storages, who wrote them, and what is known of their bytes.
//
// A value is a storage, the captured writes to it, and a geometry. A storage is identified by the
// address of its StorageImpl while a weak reference is held: the struct then stays allocated, so
// that a reused address is never the old value. Everything here is called under the capture's lock.
// `opguard.capture.values` is the same in Python; one specification test holds both to it.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "recorder/geometry.h"
#include "recorder/known_values.h"
#include "recorder/void_map.h"
#include "recorder/writers.h"

namespace opguard {

/// Storages met between two sweeps for dead ones, or this part of those alive where that is more.
/// An entry keeps a dead storage's struct, and one that lies within memory that was freed splits
/// it: with 8,192 of them a chain of 4 MiB temporaries took up 3.6 MiB more with each call.
constexpr std::size_t kSweepEvery = 64;
constexpr std::size_t kSweepPart = 8;
constexpr std::size_t kMostHolders = 8;      ///< tensors remembered for a storage

/// What capture knows of one storage.
class Storage {
 public:
  Storage(c10::weak_intrusive_ptr<c10::StorageImpl> weak, std::int64_t nbytes,
          std::int64_t version);

  /// True when the tensor overlaps memory that nothing wrote.
  bool is_void(const Geometry& geometry) const;
  /// The fingerprint of exactly this value; null if it is not known.
  const Known* known(const Geometry& geometry) const { return known_.find(geometry); }
  /// A known dense value that holds every byte of the view; the one learnt first. Null: none, or
  /// `producers`, by which the view is to be judged, do not list all of them.
  const Known* covering(const Geometry& geometry) const;
  /// The value has this fingerprint from now on. Nothing happens where others may write.
  void learn(const Geometry& geometry, const fingerprint::Digest& digest);
  /// Forget all fingerprints: the bytes are read again, the writers stay.
  void reread() { known_.clear(); }
  /// A compiled graph may have written it silently. The writers stay, what was void counts as
  /// written.
  void may_be_written() {
    known_.clear();
    void_.reset();
  }
  /// Records whose bytes the tensor may read, newest first, each once.
  Producers producers(const Geometry& geometry) const {
    return writers_.over(geometry.start, geometry.end);
  }
  /// A captured write; returns the records whose bytes it overwrote, newest first. `partial`:
  /// elements of the tensor may have kept their old bytes.
  Producers wrote(const Geometry& geometry, Record record, bool partial);
  /// Elements of the tensor that was just written hold what nothing wrote. `All` makes the whole
  /// storage void. Nothing happens where others may write.
  void leave_void(const Geometry& geometry, const Unset& unset);
  /// Which elements of the tensor nothing wrote.
  Unset unset_elements(const Geometry& geometry) const;
  /// Its bytes are read each time from now on; what was void counts as written.
  void make_external();
  /// Written by somebody whom capture did not see: a new value without producer. `keep_void`:
  /// nothing may have been written at all; what was void stays it.
  void forget(bool keep_void);
  /// `storage.resize_` happened: added bytes are void, old ones may have moved.
  void resized(std::int64_t nbytes);
  /// A captured call has moved the tensor's version counter to where it stands now.
  void explain(const at::Tensor& tensor);

  bool external() const { return external_; }
  bool has_void() const { return void_.has_value(); }
  std::int64_t nbytes() const { return nbytes_; }
  bool expired() const { return weak_.expired(); }

  Record first_reader = kNoRecord;
  /// Returned tensor that brought it into being; see also `Values::rebuilt`.
  Record creator = kNoRecord;
  /// (pass, value_key): views of it that a reading of final state has read.
  std::vector<std::pair<std::uint32_t, std::uint32_t>> final_views;

 private:
  friend class Values;
  void refresh(const c10::StorageImpl& storage);
  void moved(const at::Tensor& tensor, std::int64_t version);
  void hold(const void* holder);

  c10::weak_intrusive_ptr<c10::StorageImpl> weak_;
  std::int64_t nbytes_;
  // Highest version counter that captured writes explain. Views share a counter, `.data` and
  // `set_` start others, which may be lower.
  std::int64_t version_;
  // Tensors (a view's base for the view) that were read or written with it, by address, newest
  // first: their counters are covered by `version_`.
  c10::SmallVector<const void*, 2> holders_;
  Writers writers_;
  KnownValues known_;
  std::optional<VoidMap> void_;
  bool external_ = false;
};

/// All storages that capture has met and that are still alive.
class Values {
  using Storages = std::unordered_map<const c10::StorageImpl*, Storage>;

 public:
  using Dropped = Storages::node_type;

  /// The entry of an input, brought up to date with what happened outside capture.
  Storage& meet(const at::Tensor& tensor);
  /// The entry of an output; new for almost every one.
  Storage& create(const at::Tensor& tensor);
  /// The entry of a tensor's storage, null if it was not met before.
  Storage* find(const at::Tensor& tensor);
  Storage* find(const c10::StorageImpl* storage);
  /// `tensor.set_(storage)` is about to give a tensor a storage that no event created.
  void rebuilt(const at::Tensor& tensor, const c10::Storage& storage);
  /// `storage.resize_` was called outside of operators.
  void resized(const c10::Storage& storage);
  /// No fingerprint is known any more; the writers stay.
  void reread_all();
  /// After a stretch that was not captured, or an opaque region: nothing is known.
  void forget_all();
  /// Entries that are no longer needed, to be destroyed where the capture's lock is not held. They
  /// may hold the last reference to a storage, and one that Python has seen lets go of its Python
  /// object then, for which older torch (2.4) takes the GIL.
  std::vector<Dropped> take_dropped() { return std::exchange(dropped_, {}); }

 private:
  Storage& enter(const at::Tensor& tensor, const c10::Storage& storage);
  void sweep();
  Storages storages_;  // a reference to an entry survives a rehash
  std::vector<Dropped> dropped_;
  std::size_t sweep_at_ = kSweepEvery;
};

}  // namespace opguard
