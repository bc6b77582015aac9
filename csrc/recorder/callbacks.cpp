#include "recorder/callbacks.h"

#include <exception>
#include <thread>
#include <utility>

#include "common/check.h"

namespace opguard {

namespace {

/// What the outermost call that is no transparent one is to this thread.
enum class Open : std::uint8_t {
  None,
  Quiet,      ///< leaves no event, and what it calls neither
  Passing,    ///< leaves no event; explains the version counter of its first argument
  MaybeView,
  Event,
};

/// Read and written by its thread alone.
struct ThreadState {
  const void* recorder = nullptr;  ///< of the capture in which the call began
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
std::atomic<int> inside{0};
PyObject* stop_exception = nullptr;

class Inside {
 public:
  Inside() : recorder_(enter()) {}
  ~Inside() { inside.fetch_sub(1); }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
  Recorder* recorder() const { return recorder_; }

 private:
  static Recorder* enter() {
    inside.fetch_add(1);
    return listening.load();
  }
  Recorder* recorder_;
};

/// Keys under which a call is not yet the one that computes: subclasses and modes in Python, and
/// functorch's layers. The inner calls on plain tensors are the events.
const c10::DispatchKeySet kWrappers({
    c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot,
    c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
    c10::DispatchKey::FuncTorchDynamicLayerBackMode, c10::DispatchKey::FuncTorchGradWrapper,
    c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::FuncTorchVmapMode,
    c10::DispatchKey::BatchedNestedTensor, c10::DispatchKey::Functionalize,
});

/// Of these the tensor itself tells: a layer that is being left is excluded, its tensors are not.
const c10::DispatchKeySet kLayers({
    c10::DispatchKey::FuncTorchGradWrapper, c10::DispatchKey::FuncTorchBatched,
    c10::DispatchKey::BatchedNestedTensor,
});

void add_keys(const c10::IValue& value, c10::DispatchKeySet& keys) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) {
      keys = keys | value.toTensor().key_set();
    }
  } else if (value.isTensorList() || value.isList()) {
    for (const c10::IValue& item : value.toListRef()) {
      add_keys(item, keys);
    }
  }
}

/// A boxed call passes its whole stack, of which the arguments, and later the results, are the end.
template <typename Values>
c10::ArrayRef<const c10::IValue> end_of(const Values& values, std::size_t count) {
  const c10::ArrayRef<const c10::IValue> all(values.data(), values.size());
  return all.size() > count ? all.slice(all.size() - count) : all;
}

/// True for calls whose inner calls are the events.
bool is_transparent(const Operator& op, c10::ArrayRef<const c10::IValue> stack) {
  if (op.kind == Kind::Composite) {
    return true;
  }
  c10::DispatchKeySet keys;
  for (std::size_t index = 0; index < stack.size() && index < op.parameters.size(); ++index) {
    if (op.parameters[index].holds_tensors || stack[index].isTensor()) {
      add_keys(stack[index], keys);
    }
  }
  if (keys.has_any(kLayers)) {
    return true;
  }
  const auto local = c10::impl::tls_local_dispatch_key_set();
  keys = (keys | local.included_) - local.excluded_;
  return keys.has_any(kWrappers) ||
         (op.autocast_cpu && keys.has(c10::DispatchKey::AutocastCPU)) ||
         (op.autocast_cuda && keys.has(c10::DispatchKey::AutocastCUDA));
}

/// Where the key of Python modes is excluded, torch keeps house: the `empty` behind `torch.tensor`.
/// In a parallel region a kernel of an open call does, on threads of its own.
bool is_housekeeping() {
  return c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::Python) ||
         at::in_parallel_region();
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
  thread.recorder = &recorder;
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
    ++thread.hidden;
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
    recorder->fail(error.what());
    // The call did begin: its end is still to come.
    if (thread.open == Open::None && thread.recorder == recorder) {
      thread.open = Open::Quiet;
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
  const void* const began = thread.recorder;
  const bool raised = std::uncaught_exceptions() > thread.exceptions;
  {
    const Inside here;
    Recorder* recorder = here.recorder();
    if (recorder != nullptr && recorder == began && recorder->armed.load()) {
      try {
        end_call(*recorder, open, call, function.outputs(), raised);
      } catch (const std::exception& error) {
        recorder->fail(error.what());
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
  stop_exception = stop_;
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
  while (inside.load() != 0) {
    std::this_thread::yield();
  }
  PyEval_RestoreThread(state);
}

void Listener::stop_after_fork() {
  if (handle_ != 0) {
    disarm();
    inside.store(0);
  }
}

void Listener::disarm() {
  recorder_->armed.store(false);
  recorder_->on.store(false);
  at::removeCallback(std::exchange(handle_, 0));
  listening.store(nullptr);
}

bool Listener::enter_graph(const std::vector<Slotted>& reads, StringId arguments) {
  ThreadState& thread = this_thread();
  if (handle_ == 0 || !recorder_->on.load() || thread.open != Open::None) {
    return false;
  }
  auto call = thread.take_call();
  recorder_->before_graph(*call, reads, arguments);
  thread.recorder = recorder_.get();
  thread.hidden = 0;
  thread.call = std::move(call);
  thread.open = Open::Event;
  return true;
}

void Listener::leave_graph(const std::vector<at::Tensor>& result, bool raised) {
  ThreadState& thread = this_thread();
  auto call = std::move(thread.call);
  if (recorder_->armed.load()) {
    if (raised) {
      recorder_->raised(*call);
    } else {
      recorder_->after_graph(*call, result);
    }
  }
  thread.open = Open::None;
  thread.give_back(std::move(call));
}

void Listener::begin_unseen() {
  ThreadState& thread = this_thread();
  if (thread.open == Open::None) {
    thread.open = Open::Quiet;
    thread.hidden = 0;
  } else {
    ++thread.hidden;
  }
}

void Listener::end_unseen() {
  ThreadState& thread = this_thread();
  if (thread.hidden != 0) {
    --thread.hidden;
  } else {
    thread.open = Open::None;
  }
}

}  // namespace opguard
