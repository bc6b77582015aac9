#include "recorder/program.h"

#include <algorithm>
#include <utility>

namespace opguard {

namespace {

std::atomic<std::uint64_t> captures{0};

/// Holds the interpreter lock, whether or not the thread has it already.
class Gil {
 public:
  Gil() : state_(PyGILState_Ensure()) {}
  ~Gil() { PyGILState_Release(state_); }
  Gil(const Gil&) = delete;
  Gil& operator=(const Gil&) = delete;

 private:
  PyGILState_STATE state_;
};

/// A node may be followed by this many others before its operator's call is over: double backward
/// formulas and views make a few, a program that runs uncaptured many.
constexpr std::uint64_t kMostNodesACall = 8;

}  // namespace

Program::Program(CallSites& sites, StringId no_module, StringId no_stack)
    : sites_(sites), no_module_(no_module), no_stack_(no_stack), number_(++captures) {}

ThreadPlace& Program::here() {
  thread_local std::uint64_t number = 0;
  thread_local ThreadPlace* place = nullptr;
  if (number != number_) {
    const std::lock_guard<std::mutex> guard(mutex_);
    threads_.push_back(std::make_unique<ThreadPlace>());
    place = threads_.back().get();
    // Threads past 65,536 get the numbers of earlier ones: the column has 16 bits.
    place->ordinal = static_cast<std::uint16_t>(threads_.size() - 1);
    place->next_node = at::sequence_number::peek();
    look_for_frames(*place);
    number = number_;
  }
  return *place;
}

/// A thread that Python has not told of runs Python if the interpreter knows it. Autograd's own
/// threads are known too, but work on a graph, as others do at times: nothing is certain then.
void Program::look_for_frames(ThreadPlace& here) {
  if (graph_task_id() < 0) {
    here.has_frames = PyGILState_GetThisThreadState() != nullptr;
    here.is_known = true;
  }
}

Place Program::locate(ThreadPlace& here) {
  const std::int64_t task = graph_task_id();
  if (task >= 0) {
    return in_backward(here, task);
  }
  if (!here.is_known) {
    look_for_frames(here);
  }
  Place place;
  place.module = here.modules.empty() ? no_module_ : here.modules.back().path;
  place.phase = here.modules.empty() ? Phase::Other : Phase::Forward;
  place.stack = no_stack_;
  if (here.has_frames) {
    const Gil gil;
    const Site site = sites_.whole(here.optimizers != 0 ? Ask::Step : Ask::Stack);
    place.stack = site.stack;
    if (here.optimizers != 0) {
      if (site.in_step) {
        place.phase = Phase::Optimizer;
      } else {
        here.optimizers = 0;  // the step ended by an exception, which calls no hook
      }
    }
  }
  return place;
}

Place Program::in_backward(ThreadPlace& here, std::int64_t graph_task) {
  const auto node = current_node();
  const std::uint64_t number = node ? node->sequence_nr() : UINT64_MAX;
  std::optional<ForwardSite> forward;
  if (number != UINT64_MAX) {
    forward = forward_site(node->thread_id(), number);
  }
  const bool in_module = !here.modules.empty() && here.modules.back().graph_task == graph_task;
  if (!here.has_frames) {
    const StringId stack = forward ? forward->stack : no_stack_;
    if (in_module) {
      return {here.modules.back().path, Phase::Recompute, stack};
    }
    return {forward ? forward->module : accumulation(node.get()), Phase::Backward, stack};
  }
  const Gil gil;
  if (forward && sites_.here(Ask::Stack).in_engine) {
    return {forward->module, Phase::Backward, forward->stack};
  }
  // Python runs inside the node: a custom function's backward, a hook, a recomputation. Or the
  // node has no forward call: an accumulation.
  const Site site = sites_.whole(Ask::Recomputation);
  if (!site.in_engine && (in_module || site.recomputes)) {
    const StringId module = in_module ? here.modules.back().path
                            : forward ? forward->module
                                      : no_module_;
    return {module, Phase::Recompute, site.stack};
  }
  return {forward ? forward->module : accumulation(node.get()), Phase::Backward, site.stack};
}

bool Program::made_nodes(const ThreadPlace& here) {
  return at::sequence_number::peek() != here.next_node;
}

void Program::note_nodes(ThreadPlace& here, const Place& place) {
  const std::uint64_t next = at::sequence_number::peek();
  const std::uint64_t first =
      std::max(here.next_node, next > kMostNodesACall ? next - kMostNodesACall : 0);
  const std::lock_guard<std::mutex> guard(mutex_);
  if (forward_sites_ > kMostSites) {
    forward_.clear();
    forward_sites_ = 0;
  }
  Sites& sites = forward_[at::RecordFunction::currentThreadId()];
  forward_sites_ += next - first;
  for (std::uint64_t node = first; node < next; ++node) {
    sites[node] = {place.module, place.stack};
  }
  here.next_node = next;
}

std::optional<Program::ForwardSite> Program::forward_site(std::uint64_t thread,
                                                          std::uint64_t node) {
  const std::lock_guard<std::mutex> guard(mutex_);
  const auto sites = forward_.find(thread);
  if (sites == forward_.end()) {
    return std::nullopt;
  }
  const auto found = sites->second.find(node);
  return found == sites->second.end() ? std::nullopt : std::make_optional(found->second);
}

StringId Program::accumulation(const autograd::Node* node) {
  const c10::TensorImpl* variable = accumulated_variable(node);
  if (variable == nullptr) {
    return no_module_;
  }
  const std::lock_guard<std::mutex> guard(mutex_);
  const auto found = parameters_.find(variable);
  return found == parameters_.end() ? no_module_ : found->second.path;
}

void Program::name_parameter(const at::Tensor& parameter, StringId path) {
  // While the weak reference is held, no other tensor gets the address.
  Named named{c10::weak_intrusive_ptr<c10::TensorImpl>(parameter.getIntrusivePtr()), path};
  std::vector<Named> gone;  // let go of when the lock is released
  const std::lock_guard<std::mutex> guard(mutex_);
  if (parameters_.size() >= sweep_at_) {
    for (auto at = parameters_.begin(); at != parameters_.end();) {
      if (at->second.parameter.expired()) {
        gone.push_back(std::move(at->second));
        at = parameters_.erase(at);
      } else {
        ++at;
      }
    }
    sweep_at_ = parameters_.size() + std::max(kSweepParameters, parameters_.size());
  }
  parameters_.insert_or_assign(parameter.unsafeGetTensorImpl(), std::move(named));
}

void Program::begin_step(std::int32_t step) {
  step_.store(step, std::memory_order_relaxed);
  const std::lock_guard<std::mutex> guard(mutex_);
  forward_.clear();
  forward_sites_ = 0;
}

}  // namespace opguard
