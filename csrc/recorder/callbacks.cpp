#include "recorder/callbacks.h"

#include <dlfcn.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "recorder/thread_state.h"
#include "recorder/transparent.h"

namespace opguard {

std::atomic<PyObject*> stop_exception{nullptr};

std::string reason(const std::exception& error) {
  const auto* const torch_error = dynamic_cast<const c10::Error*>(&error);
  std::string text = torch_error == nullptr ? error.what() : torch_error->what_without_backtrace();
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

namespace {

/// A boxed call passes its whole stack, of which the arguments, and later the results, are the end.
template <typename Values>
c10::ArrayRef<const c10::IValue> end_of(const Values& values, std::size_t count) {
  const c10::ArrayRef<const c10::IValue> all(values.data(), values.size());
  return all.size() > count ? all.slice(all.size() - count) : all;
}

using Count = int (*)();

Count find_count() {
  Dl_info torch;
  if (dladdr(reinterpret_cast<void*>(&at::removeCallback), &torch) != 0) {
    if (void* const library = dlopen(torch.dli_fname, RTLD_LAZY | RTLD_NOLOAD)) {
      if (void* const count = dlsym(library, "_ZSt19uncaught_exceptionsv")) {
        return reinterpret_cast<Count>(count);
      }
    }
  }
  return &std::uncaught_exceptions;
}

/// What torch asks: some compilers link this module to a C++ library of its own, which counts only
/// what it threw itself.
const Count exceptions_in_flight = find_count();

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
  } else if (recorder.only_touches(op) && !(op.may_view && recorder.touches())) {
    if (recorder.touches()) {
      Call call;
      call.op = &op;
      recorder.touch(call, stack);
    }
    // Nothing is open: what it calls may communicate.
  } else {
    begin_event(recorder, thread, op, stack);
  }
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

}  // namespace

bool ends_here(Recorder& recorder) {
  if (recorder.events() < recorder.limit.load(std::memory_order_relaxed)) {
    return false;
  }
  recorder.stopped.store(true);
  if (recorder.program.here().has_frames) {
    const PyGILState_STATE state = PyGILState_Ensure();
    PyThreadState_SetAsyncExc(PyThread_get_thread_ident(), stop_exception.load());
    PyGILState_Release(state);
  }
  return true;
}

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& function) {
  ThreadState& thread = this_thread();
  if (is_in_a_call(thread)) {
    ++thread.hidden;
    return nullptr;
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
    if (is_transparent(*op, stack) || ends_here(*recorder)) {
      return nullptr;
    }
    begin_call(*recorder, thread, *op, stack);
    // Not earlier: what torch has thrown and this module caught, as for a work without a future,
    // counts as in flight for good where each has a C++ library of its own.
    thread.exceptions = exceptions_in_flight();
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
  const bool raised = exceptions_in_flight() > thread.exceptions;
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

}  // namespace opguard
