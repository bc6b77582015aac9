#include <exception>

#include "bind/bind.h"
#include "common/check.h"

namespace py = pybind11;

namespace {

/// NativeError in C++ is `opguard.errors.NativeError` in Python.
void translate(std::exception_ptr error) {
  try {
    std::rethrow_exception(error);
  } catch (const opguard::NativeError& native) {
    py::set_error(py::module_::import("opguard.errors").attr("NativeError"), native.what());
  }
}

}  // namespace

PYBIND11_MODULE(_C, module) {
  py::register_local_exception_translator(&translate);
  module.doc() = "The C++ recorder. Loaded by opguard.fingerprint.native alone.";
  opguard::bind::bind_fingerprint(module);
  opguard::bind::bind_strings(module);
  opguard::bind::bind_values(module);
  opguard::bind::bind_operators(module);
  opguard::bind::bind_recorder(module);
}
