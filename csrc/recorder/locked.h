// The capture's lock, and what has to happen around it.
#pragma once

#include <mutex>

#include "recorder/recorder.h"

namespace opguard {

/// Holds the capture's lock. After it is released the thread waits until there is room for more
/// rows, and then what the capture let go of is destroyed: with it the capture may end.
class Recorder::Locked {
 public:
  /// `waits`: not where Python holds locks of ours, which the writer's thread may ask for when it
  /// runs finalizers.
  explicit Locked(Recorder& recorder, bool waits = true)
      : recorder_(recorder), lock_(recorder.mutex_), waits_(waits) {}

  ~Locked() {
    auto finished = recorder_.collectives_.take_finished();
    auto dropped = recorder_.reader_.values.take_dropped();
    lock_.unlock();
    if (waits_ && recorder_.rows.crowded()) {
      wait();
    }
  }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

  void poll_collectives() {
    if (recorder_.collectives_.any()) {
      polled_ = recorder_.collectives_.poll(lock_);
    }
  }

 private:
  void wait() {
    // The writer is a Python thread: it needs the GIL to make room.
    if (Py_IsInitialized() && PyGILState_Check()) {
      PyThreadState* state = PyEval_SaveThread();
      recorder_.rows.wait_for_room();
      PyEval_RestoreThread(state);
    } else {
      recorder_.rows.wait_for_room();
    }
  }

  Recorder& recorder_;
  std::vector<WorkPtr> polled_;  // destroyed after the lock was released
  std::unique_lock<std::mutex> lock_;
  const bool waits_;
};

}  // namespace opguard
