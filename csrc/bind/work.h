#pragma once

#include <pybind11/pybind11.h>

#include "recorder/torch_c10d.h"

namespace opguard::bind {

/// The object behind a `torch.distributed.Work`; null if it is none.
WorkPtr work_from(pybind11::handle work);

}  // namespace opguard::bind
