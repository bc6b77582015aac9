#include "recorder/torch_c10d.h"

#include <dlfcn.h>
#include <unwind.h>

#ifdef OPGUARD_HAS_C10D
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#endif

namespace opguard {

#ifdef OPGUARD_HAS_C10D

WorkPtr work_of(const c10::IValue& value) {
  if (!value.isCustomClass()) {
    return {};
  }
  const auto name = value.toObjectRef().type()->name();
  if (!name || name->name() != "Work") {
    return {};
  }
  return value.toCustomClass<c10d::Work>();
}

bool work_is_done(const WorkPtr& work) {
  auto& known = static_cast<c10d::Work&>(*work);
  try {
    // Gloo completes the future first, and DDP waits for that; the flag follows.
    return known.isCompleted() || known.getFuture()->completed();
  } catch (const std::exception&) {
    return false;  // not every backend gives a future
  }
}

std::int64_t rank_of_group(const c10::IValue& group) {
  return group.toCustomClass<c10d::ProcessGroup>()->getRank();
}

#else

WorkPtr work_of(const c10::IValue&) { return {}; }
bool work_is_done(const WorkPtr&) { return false; }
std::int64_t rank_of_group(const c10::IValue&) { return 0; }

#endif

// By the function they run: in most releases they have no name of their own.
bool is_of_gloo() {
  static const void* const loop = dlsym(RTLD_DEFAULT, "_ZN4c10d16ProcessGroupGloo7runLoopEi");
  bool found = false;
  const auto compare = [](_Unwind_Context* frame, void* result) {
    const auto function = reinterpret_cast<const void*>(_Unwind_GetRegionStart(frame));
    *static_cast<bool*>(result) = function == loop;
    return function == loop ? _URC_END_OF_STACK : _URC_NO_REASON;
  };
  if (loop != nullptr) {
    _Unwind_Backtrace(compare, &found);
  }
  return found;
}

}  // namespace opguard
