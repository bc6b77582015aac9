#include "recorder/callbacks.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "common/check.h"
#include "recorder/transparent.h"

namespace opguard {

namespace {

/// What the outermost call that is no transparent one is to this thread.
enum class Open : std::uint8_t {
  None,
  Quiet,      ///< leaves no event, and what it calls neither
  Passing,    ///< leaves no event; explains the version counter of its first argument
  MaybeView,
  Event,
  Unseen,     ///< no call: `begin_unseen`
};

/// Gloo's threads compute what its operators return. Linux keeps 15 characters of a name.
bool is_of_gloo() {
  char name[16] = "";
  return pthread_getname_np(pthread_self(), name, sizeof name) == 0 &&
         std::string_view(name) == "pt_gloo_runloop";
}

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

ThreadState& this_thread() {
  thread_local ThreadState state;
  return state;
}

// A callback counts itself in before it looks for the recorder: once the recorder is taken away
// and nobody is inside, it may go.
std::atomic<Recorder*> listening{nullptr};
std::atomic<std::uint64_t> current{0};  // its capture's number
std::atomic<int> inside{0};
thread_local int inside_here = 0;  // how many of them are this thread's
PyObject* stop_exception = nullptr;

class Inside {
 public:
  Inside() : recorder_(enter()) {}
  ~Inside() {
    inside.fetch_sub(1);
    --inside_here;
  }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
  Recorder* recorder() const { return recorder_; }

 private:
  static Recorder* enter() {
    ++inside_here;
    inside.fetch_add(1);
    return listening.load();
  }
  Recorder* recorder_;
};

/// The child of a fork has one thread and nobody who would take its rows: it would wait for room
/// for ever. Also where Python does not hear of the fork.
void forked() {
  listening.store(nullptr);
  current.store(0);
  inside.store(inside_here);
}

/// True where what is open belongs to a capture that is over: the next one began inside that call,
/// or the program's exception came between `begin_unseen` and `end_unseen`.
bool is_left_over(const ThreadState& thread) {
  const std::uint64_t now = current.load(std::memory_order_relaxed);
  return now != 0 && now != thread.capture;
}

/// A boxed call passes its whole stack, of which the arguments, and later the results, are the end.
template <typename Values>
c10::ArrayRef<const c10::IValue> end_of(const Values& values, std::size_t count) {
  const c10::ArrayRef<const c10::IValue> all(values.data(), values.size());
  return all.size() > count ? all.slice(all.size() - count) : all;
}

/// One line: what torch throws tells its C++ stack as well.
std::string reason(const std::exception& error) {
  const auto* const torch_error = dynamic_cast<const c10::Error*>(&error);
  std::string text = torch_error == nullptr ? error.what() : torch_error->what_without_backtrace();
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

/// The program ends by an exception that its thread raises as soon as this call has returned.
void end_program(Recorder& recorder) {
  recorder.stopped.store(true);
  if (recorder.program.here().has_frames) {
    const PyGILState_STATE state = PyGILState_Ensure();
    PyThreadState_SetAsyncExc(PyThread_get_thread_ident(), stop_exception);
    PyGILState_Release(state);
  }
}

void begin_event(Recorder& recorder, ThreadState& thread, Operator& op,
                 c10::ArrayRef<const c10::IValue> stack) {
  auto call = thread.take_call();
  call->op = &op;
  Open open = Open::Event;
  if (op.may_view) {
    call->stack.assign(stack.begin(), stack.end());
    open = Open::MaybeView;
  } else if (!recorder.before(*call, stack)) {
    open = Open::Quiet;
  }
  thread.call = std::move(call);
  thread.open = open;
}

void begin_call(Recorder& recorder, ThreadState& thread, Operator& op,
                c10::ArrayRef<const c10::IValue> stack) {
  thread.capture = recorder.program.number();
  thread.hidden = 0;
  thread.exceptions = std::uncaught_exceptions();
  if (op.kind == Kind::Pass) {
    if (op.sets_storage) {
      recorder.rebuilds(stack);
    }
    if (op.declares_writes && !stack.empty() && stack[0].isTensor()) {
      thread.call = thread.take_call();
      thread.call->stack.push_back(stack[0]);
      thread.open = Open::Passing;
    } else {
      thread.open = Open::Quiet;
    }
  } else if (recorder.mode == Mode::Collectives && !op.collective) {
    if (recorder.touches()) {
      Call call;
      call.op = &op;
      recorder.touch(call, stack);
    }
    thread.open = Open::Quiet;
  } else {
    begin_event(recorder, thread, op, stack);
  }
}

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& function) {
  ThreadState& thread = this_thread();
  if (thread.open != Open::None) {
    if (!is_left_over(thread)) {
      ++thread.hidden;
      return nullptr;
    }
    thread.open = Open::None;
    thread.give_back(std::move(thread.call));
  }
  // Python there is the program's: what it wants done once a collective is over.
  if (thread.of_gloo && PyGILState_GetThisThreadState() == nullptr) {
    return nullptr;
  }
  const Inside here;
  Recorder* recorder = here.recorder();
  if (recorder == nullptr || !recorder->on.load(std::memory_order_relaxed)) {
    return nullptr;
  }
  try {
    Operator* op = recorder->operators.of(function);
    if (op == nullptr || is_housekeeping()) {
      return nullptr;
    }
    const auto stack = end_of(function.inputs(), op->parameters.size());
    if (is_transparent(*op, stack)) {
      return nullptr;
    }
    if (recorder->events() >= recorder->limit.load(std::memory_order_relaxed)) {
      end_program(*recorder);
      return nullptr;
    }
    begin_call(*recorder, thread, *op, stack);
  } catch (const std::exception& error) {
    recorder->fail(reason(error));
    // The call did begin: its end is still to come.
    if (thread.open == Open::None) {
      thread.open = Open::Quiet;
      thread.hidden = 0;
    }
  }
  return nullptr;
}

void end_call(Recorder& recorder, Open open, std::unique_ptr<Call>& call,
              const std::vector<c10::IValue>& outputs, bool raised) {
  const bool known = call != nullptr && call->op != nullptr;
  const auto result = end_of(outputs, known ? call->op->returned_writes.size() : 0);
  switch (open) {
    case Open::Passing:
      recorder.passed(call->stack.front().toTensor());
      return;
    case Open::MaybeView:
      recorder.after_maybe_view(call, result, raised);
      return;
    case Open::Event:
      if (raised) {
        recorder.raised(*call);
      } else {
        recorder.after(call, result);
      }
      return;
    case Open::Quiet:
    case Open::Unseen:
    case Open::None:
      return;
  }
}

void on_end(const at::RecordFunction& function, at::ObserverContext*) {
  ThreadState& thread = this_thread();
  if (thread.open == Open::None) {
    return;
  }
  if (thread.hidden != 0) {
    --thread.hidden;
    return;
  }
  // From here on the thread may call operators again: in finalizers that run while a tensor is let
  // go of, or while the interpreter lock is taken.
  auto call = std::move(thread.call);
  const Open open = std::exchange(thread.open, Open::None);
  const std::uint64_t began = thread.capture;
  const bool raised = std::uncaught_exceptions() > thread.exceptions;
  {
    const Inside here;
    Recorder* recorder = here.recorder();
    if (recorder != nullptr && recorder->program.number() == began && recorder->armed.load()) {
      try {
        end_call(*recorder, open, call, function.outputs(), raised);
      } catch (const std::exception& error) {
        recorder->fail(reason(error));
      }
    }
  }
  thread.give_back(std::move(call));
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
  OPGUARD_CHECK(listening.compare_exchange_strong(nobody, recorder_.get()),
                "another capture listens already");
  current.store(recorder_->program.number());
  stop_exception = stop_;
  static const int watched = pthread_atfork(nullptr, nullptr, &forked);
  OPGUARD_CHECK(watched == 0, "forks cannot be watched");
  recorder_->program.has_frames();
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
  while (inside.load() > inside_here) {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  PyEval_RestoreThread(state);
  if (inside_here != 0) {  // in a finalizer that a callback of this thread runs
    new std::shared_ptr<Recorder>(recorder_);  // never freed: the callback goes on with it
  }
}

void Listener::stop_after_fork() {
  if (handle_ != 0) {
    disarm();
    forked();
  }
}

void Listener::disarm() {
  recorder_->armed.store(false);
  recorder_->on.store(false);
  at::removeCallback(std::exchange(handle_, 0));
  listening.store(nullptr);
  current.store(0);
}

bool Listener::enter_graph(std::vector<Slotted> reads, StringId arguments) {
  ThreadState& thread = this_thread();
  if (handle_ == 0 || !recorder_->on.load() || thread.open != Open::None) {
    return false;
  }
  auto call = thread.take_call();
  try {
    recorder_->before_graph(*call, std::move(reads), arguments);
  } catch (const std::exception& error) {
    recorder_->fail(reason(error));
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
  if (thread.open != Open::None && !is_left_over(thread)) {
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
