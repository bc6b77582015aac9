// Listens on torch's record-function callbacks and hands operator calls to the recorder.
#pragma once

#include <Python.h>

#include <memory>
#include <vector>

#include "recorder/recorder.h"

namespace opguard {

/// One capture of this process; at most one listens at a time. All of it is called with the GIL.
class Listener {
 public:
  /// `stop`: exception that ends the program once the limit of events is reached.
  Listener(std::shared_ptr<Recorder> recorder, PyObject* stop);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  /// From now on every thread's operator calls are captured. Throws NativeError if another
  /// capture listens.
  void start();
  /// Nothing is captured any more when it returns: no thread is inside a callback.
  void stop();
  /// In a forked child: the threads that might be inside a callback do not exist.
  void stop_after_fork();

  /// A compiled graph is about to run on this thread: what it calls is part of it. Returns false
  /// where it makes no event; then `leave_graph` must not be called.
  bool enter_graph(std::vector<Slotted> reads, StringId arguments);
  /// It returned these tensors and numbers, or raised.
  void leave_graph(Results result, bool raised);
  /// Until `end_unseen` operator calls of this thread are nobody's business.
  static void begin_unseen();
  static void end_unseen();

 private:
  void add_callback();
  void disarm();
  std::shared_ptr<Recorder> recorder_;
  PyObject* stop_;
  at::CallbackHandle handle_ = 0;
};

}  // namespace opguard
