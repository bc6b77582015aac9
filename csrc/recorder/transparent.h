// Which operator calls are events at all.
#pragma once

#include "recorder/operators.h"
#include "recorder/torch_headers.h"

namespace opguard {

/// True for calls whose inner calls are the events: composites, calls on wrappers and under modes
/// in Python, functorch's layers, calls that autocast wraps.
bool is_transparent(const Operator& op, c10::ArrayRef<const c10::IValue> stack);

/// True for calls of this thread that the program did not make.
bool is_housekeeping();

}  // namespace opguard
