// The parts of `opguard._C`; each is bound in a file of its own.
#pragma once

#include <pybind11/pybind11.h>

#include <vector>

#include "recorder/strings.h"

namespace opguard::bind {

void bind_fingerprint(pybind11::module_& module);
void bind_strings(pybind11::module_& module);
void bind_values(pybind11::module_& module);
void bind_operators(pybind11::module_& module);
void bind_recorder(pybind11::module_& module);

/// `(kind, id, text)` of each string.
pybind11::tuple tuples_of(const std::vector<Interner::NewString>& strings);

}  // namespace opguard::bind
