// Collectives whose data are not there yet: their events wait until they are.
//
// An event is written where the program waits for it, or where the next captured operator touches
// its storage. Both are places in the program, so that the order does not depend on timing.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "recorder/call.h"
#include "recorder/torch_c10d.h"

namespace opguard {

/// Collectives that nobody waits for keep their tensors: past this many the oldest is written as it
/// stands. A count is a place in the program, too.
constexpr std::size_t kMostPending = 2048;

/// A collective that was called and not waited for.
struct PendingCollective {
  WorkPtr work;  ///< null for functional collectives, which give no handle
  bool done = false;
  std::vector<const c10::StorageImpl*> reads, writes;
  std::unique_ptr<Call> call;
  std::vector<c10::IValue> result;  ///< empty where `work` is given: it returns what it writes
  std::vector<at::Tensor> returned;  ///< kept, so that their storages stay
};

/// The collectives in flight of one process. All but `any` is called under the capture's lock.
class Collectives {
 public:
  /// Writes the event; `ready` is false while the data may still be in flight.
  using Finish = std::function<void(PendingCollective&, bool ready)>;
  explicit Collectives(Finish finish) : finish_(std::move(finish)) {}

  bool any() const { return count_.load(std::memory_order_relaxed) != 0; }
  /// Ask each work whether it is done. A work may be written in Python: `lock` is released
  /// meanwhile, and the works are returned, to be let go of where it is not held.
  std::vector<WorkPtr> poll(std::unique_lock<std::mutex>& lock);

  /// A collective returned. Its event is written now if nothing is to arrive.
  void called(std::unique_ptr<Call>& call, Results result);
  /// A call touches what is being written, or writes what is being read.
  void touch(const Call& call);
  void waiting(const WorkPtr& work);
  /// `work.wait()` returned, or raised: then the data did not arrive.
  void waited(const WorkPtr& work, bool arrived);
  /// `wait_tensor` returned: the data of the storages that it read are there.
  void arrived(const Call& call);
  /// The capture ends.
  void finish_all();
  /// It has failed: nothing is written any more.
  void abandon();
  /// What was let go of: destroyed by the caller once the capture's lock is released.
  std::vector<PendingCollective> take_finished();

 private:
  std::vector<WorkPtr> unfinished() const;
  template <typename Wanted>
  void finish_where(Wanted wanted, bool ready);

  Finish finish_;
  std::vector<PendingCollective> pending_, finished_;
  std::vector<WorkPtr> waited_for_;  // what `wait` calls belongs to the collective
  std::atomic<std::size_t> count_{0};
};

}  // namespace opguard
