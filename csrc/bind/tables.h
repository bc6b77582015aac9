// The Python tables of operators, as the recorder takes them.
#pragma once

#include <pybind11/pybind11.h>

#include "recorder/operators.h"

namespace opguard::bind {

/// From what `opguard.capture.operators.tables` returns.
Tables tables_from(const pybind11::dict& tables);

}  // namespace opguard::bind
