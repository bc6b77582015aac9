#include "recorder/listener.h"

#include <pthread.h>

#include <chrono>
#include <exception>
#include <thread>
#include <utility>

#include "common/check.h"
#include "recorder/callbacks.h"
#include "recorder/thread_state.h"

namespace opguard {

namespace {

// Of a forked child, where torch's lock may be held for ever by a thread that is not there.
std::atomic<at::CallbackHandle> inherited{0};

/// A thread takes that lock when it first calls an operator after a capture began: here rather than
/// in the child of the fork that it is about to make.
void before_fork() {
  if (current.load() != 0) {
    at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION);
  }
}

void nobody_listens() {
  listening.store(nullptr);
  current.store(0);
}

/// The child of a fork has one thread and nobody who would take its rows: it would wait for room
/// for ever. Also called where Python does not hear of the fork.
void forked() {
  nobody_listens();
  inside.store(Inside::here());
}

}  // namespace

Listener::Listener(std::shared_ptr<Recorder> recorder, PyObject* stop)
    : recorder_(std::move(recorder)), stop_(stop) {
  Py_XINCREF(stop_);
}

Listener::~Listener() {
  stop();
  Py_XDECREF(stop_);
}

void Listener::start() {
  Recorder* nobody = nullptr;
  static const int watched = pthread_atfork(&before_fork, nullptr, &forked);
  OPGUARD_CHECK(watched == 0, "forks cannot be watched");
  OPGUARD_CHECK(listening.compare_exchange_strong(nobody, recorder_.get()),
                "another capture listens already");
  current.store(recorder_->program.number());
  stop_exception.store(stop_);
  try {
    add_callback();
  } catch (...) {
    recorder_->disarm();
    nobody_listens();
    throw;
  }
}

void Listener::add_callback() {
  recorder_->program.has_frames();
  if (const at::CallbackHandle left = inherited.exchange(0); left != 0) {
    at::removeCallback(left);
  }
  handle_ = at::addGlobalCallback(at::RecordFunctionCallback(&on_start, &on_end)
                                      .needsInputs(true)
                                      .needsOutputs(true)
                                      .scopes({at::RecordScope::FUNCTION}));
}

void Listener::stop() {
  if (handle_ == 0) {
    return;
  }
  disarm();
  // A callback may be waiting for the interpreter lock.
  PyThreadState* state = PyEval_SaveThread();
  while (inside.load() > Inside::here()) {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  PyEval_RestoreThread(state);
  if (Inside::here() != 0) {  // in a finalizer that a callback of this thread runs
    new std::shared_ptr<Recorder>(recorder_);  // never freed: the callback goes on with it
  }
}

void Listener::stop_after_fork() {
  if (handle_ != 0) {
    recorder_->disarm();
    inherited.store(std::exchange(handle_, 0));
    forked();
  }
}

void Listener::disarm() {
  recorder_->disarm();
  at::removeCallback(std::exchange(handle_, 0));
  nobody_listens();
}

bool Listener::enter_graph(std::vector<Slotted> reads, StringId arguments) {
  ThreadState& thread = this_thread();
  if (handle_ == 0 || !recorder_->on.load() || is_in_a_call(thread) || ends_here(*recorder_)) {
    return false;
  }
  auto call = thread.take_call();
  bool makes_event = false;
  try {
    makes_event = recorder_->before_graph(*call, std::move(reads), arguments);
  } catch (const std::exception& error) {
    recorder_->fail(reason(error));
  }
  if (!makes_event) {
    thread.give_back(std::move(call));
    return false;
  }
  thread.capture = recorder_->program.number();
  thread.hidden = 0;
  thread.call = std::move(call);
  thread.open = Open::Event;
  return true;
}

void Listener::leave_graph(Results result, bool raised) {
  ThreadState& thread = this_thread();
  auto call = std::move(thread.call);
  thread.open = Open::None;
  if (recorder_->armed.load()) {
    try {
      if (raised) {
        recorder_->raised(*call);
      } else {
        recorder_->after_graph(*call, result);
      }
    } catch (const std::exception& error) {
      recorder_->fail(reason(error));
    }
  }
  thread.give_back(std::move(call));
}

void Listener::begin_unseen() {
  ThreadState& thread = this_thread();
  if (is_in_a_call(thread)) {
    ++thread.hidden;
    return;
  }
  thread.capture = current.load();
  thread.open = Open::Unseen;
  thread.hidden = 0;
}

void Listener::end_unseen() {
  ThreadState& thread = this_thread();
  if (thread.open == Open::None) {
    return;
  }
  if (thread.hidden != 0) {
    --thread.hidden;
  } else {
    thread.open = Open::None;
  }
}

}  // namespace opguard
