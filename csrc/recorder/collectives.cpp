#include "recorder/collectives.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "recorder/reader.h"

namespace opguard {

namespace {

using Keys = std::vector<const c10::StorageImpl*>;

Keys storages_of(const std::vector<Slotted>& tensors) {
  Keys keys;
  for (const Slotted& slotted : tensors) {
    if (traits(slotted.tensor).plain) {
      keys.push_back(storage_key(slotted.tensor));
    }
  }
  return keys;
}

bool meet(const Keys& a, const Keys& b) {
  return std::find_first_of(a.begin(), a.end(), b.begin(), b.end()) != a.end();
}

/// The lock is not held while this lives, whatever is thrown.
class Released {
 public:
  explicit Released(std::unique_lock<std::mutex>& lock) : lock_(lock) { lock_.unlock(); }
  ~Released() { lock_.lock(); }
  Released(const Released&) = delete;
  Released& operator=(const Released&) = delete;

 private:
  std::unique_lock<std::mutex>& lock_;
};

}  // namespace

std::vector<WorkPtr> Collectives::unfinished() const {
  std::vector<WorkPtr> works;
  for (const PendingCollective& pending : pending_) {
    if (pending.work && !pending.done) {
      works.push_back(pending.work);
    }
  }
  return works;
}

std::vector<WorkPtr> Collectives::poll(std::unique_lock<std::mutex>& lock) {
  std::vector<WorkPtr> works = unfinished();
  std::vector<const void*> done;
  {
    const Released released(lock);
    for (const WorkPtr& work : works) {
      if (work_is_done(work)) {
        done.push_back(work.get());
      }
    }
  }
  for (PendingCollective& pending : pending_) {
    pending.done |= std::find(done.begin(), done.end(), pending.work.get()) != done.end();
  }
  return works;
}

void Collectives::called(std::unique_ptr<Call>& call, Results result) {
  PendingCollective pending;
  pending.work = result.empty() ? WorkPtr() : work_of(result.back());
  if (!pending.work) {
    for (const c10::IValue& value : result) {
      tensors_in(value, pending.returned);
    }
    pending.result.assign(result.begin(), result.end());
  }
  if (pending.returned.empty() && call->writes.empty()) {  // send, barrier: nothing arrives
    pending.call = std::move(call);
    finish_(pending, true);
    finished_.push_back(std::move(pending));
    return;
  }
  pending.reads = storages_of(call->reads);
  pending.writes = storages_of(call->writes);
  for (const at::Tensor& tensor : pending.returned) {
    if (traits(tensor).plain) {
      pending.writes.push_back(storage_key(tensor));
    }
  }
  pending.call = std::move(call);
  pending_.push_back(std::move(pending));
  count_.store(pending_.size(), std::memory_order_relaxed);
  if (pending_.size() > kMostPending) {
    PendingCollective oldest = std::move(pending_.front());
    pending_.erase(pending_.begin());
    count_.store(pending_.size(), std::memory_order_relaxed);
    finish_(oldest, oldest.done);
    finished_.push_back(std::move(oldest));
  }
}

void Collectives::arrived(const Call& call) {
  const Keys keys(call.storages.begin(), call.storages.end());
  finish_where([&keys](const PendingCollective& p) { return meet(keys, p.writes); }, true);
}

void Collectives::touch(const Call& call) {
  const Keys written = storages_of(call.writes);
  Keys touched = storages_of(call.reads);
  touched.insert(touched.end(), written.begin(), written.end());
  finish_where(
      [&](const PendingCollective& p) {
        return (meet(touched, p.writes) || meet(written, p.reads)) &&
               (!p.work || std::find(waited_for_.begin(), waited_for_.end(), p.work) ==
                               waited_for_.end());
      },
      false);
}

void Collectives::waiting(const WorkPtr& work) { waited_for_.push_back(work); }

void Collectives::waited(const WorkPtr& work, bool arrived) {
  // The caller holds a reference: none of those dropped here is the last.
  waited_for_.erase(std::remove(waited_for_.begin(), waited_for_.end(), work), waited_for_.end());
  if (arrived) {
    finish_where([&work](const PendingCollective& p) { return p.work == work; }, true);
  }
}

void Collectives::finish_all() {
  finish_where([](const PendingCollective&) { return true; }, false);
}

void Collectives::abandon() {
  std::move(pending_.begin(), pending_.end(), std::back_inserter(finished_));
  pending_.clear();
  count_.store(0, std::memory_order_relaxed);
}

template <typename Wanted>
void Collectives::finish_where(Wanted wanted, bool ready) {
  const auto first = std::stable_partition(pending_.begin(), pending_.end(),
                                           [&](const PendingCollective& p) { return !wanted(p); });
  std::vector<PendingCollective> chosen(std::make_move_iterator(first),
                                        std::make_move_iterator(pending_.end()));
  pending_.erase(first, pending_.end());
  count_.store(pending_.size(), std::memory_order_relaxed);
  for (PendingCollective& pending : chosen) {
    finish_(pending, ready || pending.done);
    finished_.push_back(std::move(pending));
  }
}

std::vector<PendingCollective> Collectives::take_finished() {
  return std::exchange(finished_, {});
}

}  // namespace opguard
