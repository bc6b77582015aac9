#include "bind/work.h"

#include <torch/csrc/utils/pybind.h>

#ifdef OPGUARD_HAS_C10D
#include <torch/csrc/distributed/c10d/Work.hpp>
#endif

namespace opguard::bind {

WorkPtr work_from(pybind11::handle work) {
#ifdef OPGUARD_HAS_C10D
  return pybind11::cast<c10::intrusive_ptr<c10d::Work>>(work);
#else
  (void)work;
  return {};
#endif
}

}  // namespace opguard::bind
