// The capture's lock, and what has to happen around it.
#pragma once

#include <mutex>

#include "recorder/recorder.h"

namespace opguard {

/// Holds the capture's lock. What the capture let go of meanwhile is destroyed after it is
/// released, and then the thread waits until there is room for more rows.
class Recorder::Locked {
 public:
  explicit Locked(Recorder& recorder) : recorder_(recorder), lock_(recorder.mutex_) {}

  ~Locked() {
    auto finished = recorder_.collectives_.take_finished();
    auto dropped = recorder_.reader_.values.take_dropped();
    lock_.unlock();
    if (recorder_.rows.crowded()) {
      wait();
    }
  }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

  void poll_collectives() {
    if (recorder_.collectives_.any()) {
      recorder_.collectives_.poll(lock_);
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
  std::unique_lock<std::mutex> lock_;
};

}  // namespace opguard
