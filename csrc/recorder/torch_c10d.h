// What is asked of torch.distributed. Its headers are large and absent from some builds: they are
// included by torch_c10d.cpp alone.
#pragma once

#include <cstdint>

#include "recorder/torch_headers.h"

#if __has_include(<torch/csrc/distributed/c10d/Work.hpp>)
#define OPGUARD_HAS_C10D 1
#endif

namespace opguard {

/// A `torch.distributed.Work`, by its base class.
using WorkPtr = c10::intrusive_ptr<c10::intrusive_ptr_target>;

/// The Work that a c10d operator returned; null if the value is something else.
WorkPtr work_of(const c10::IValue& value);
/// True once the data are there. Never waits. A work may be a Python object, which takes the GIL.
bool work_is_done(const WorkPtr& work);
/// This process's rank in a boxed process group.
std::int64_t rank_of_group(const c10::IValue& group);
/// True on the threads that compute what Gloo's operators return, while they do.
bool is_of_gloo();

}  // namespace opguard
