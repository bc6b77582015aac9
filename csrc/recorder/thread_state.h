// What a thread is in the middle of, and who listens: shared by the callbacks and the listener.
#pragma once

#include <Python.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "recorder/recorder.h"
#include "recorder/torch_c10d.h"

namespace opguard {

/// What the outermost call that is no transparent one is to this thread.
enum class Open : std::uint8_t {
  None,
  Quiet,      ///< leaves no event, and what it calls neither
  Passing,    ///< leaves no event; explains the version counter of its first argument
  MaybeView,
  Event,
  Unseen,     ///< no call: `begin_unseen`
};

/// Read and written by its thread alone.
struct ThreadState {
  const bool of_gloo = is_of_gloo();
  /// In which the call began. Not the recorder's address, which the next capture may have again.
  std::uint64_t capture = 0;
  Open open = Open::None;
  std::size_t hidden = 0;  ///< calls that the open one has made and that have not returned
  int exceptions = 0;      ///< in flight when the call began
  std::unique_ptr<Call> call;
  std::vector<std::unique_ptr<Call>> spare;

  std::unique_ptr<Call> take_call() {
    if (spare.empty()) {
      return std::make_unique<Call>();
    }
    auto taken = std::move(spare.back());
    spare.pop_back();
    return taken;
  }

  /// Letting go of tensors may run the program's finalizers, and these may call operators: the
  /// state is consistent by then.
  void give_back(std::unique_ptr<Call> used) {
    if (used != nullptr) {
      used->clear();
      spare.push_back(std::move(used));
    }
  }
};

extern thread_local ThreadState* of_this_thread;  ///< null at its first call
ThreadState& begin_thread();

/// It lives as long as operators may be called on the thread, by whatever ends with it.
inline ThreadState& this_thread() {
  return of_this_thread != nullptr ? *of_this_thread : begin_thread();
}

// A callback counts itself in before it looks for the recorder: once the recorder is taken away
// and nobody is inside, it may go.
extern std::atomic<Recorder*> listening;
extern std::atomic<std::uint64_t> current;  ///< its capture's number
extern std::atomic<int> inside;

class Inside {
 public:
  Inside() : recorder_(enter()) {}
  ~Inside() {
    inside.fetch_sub(1);
    --here_;
  }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
  Recorder* recorder() const { return recorder_; }
  /// How many of this thread's there are.
  static int here() { return here_; }

 private:
  static Recorder* enter() {
    ++here_;
    inside.fetch_add(1);
    return listening.load();
  }
  inline static thread_local int here_ = 0;
  Recorder* recorder_;
};

/// True inside a call that is open in this capture. What an earlier one left is let go of: this
/// capture began inside that call, or the program's exception came between `begin_unseen` and
/// `end_unseen`.
inline bool is_in_a_call(ThreadState& thread) {
  if (thread.open == Open::None) {
    return false;
  }
  const std::uint64_t now = current.load(std::memory_order_relaxed);
  if (now == 0 || now == thread.capture) {
    return true;
  }
  thread.open = Open::None;
  thread.give_back(std::move(thread.call));
  return false;
}

}  // namespace opguard
