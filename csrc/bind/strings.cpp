#include <Python.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bind/bind.h"
#include "recorder/callsite.h"
#include "recorder/strings.h"

namespace py = pybind11;

namespace opguard::bind {

namespace {

/// File names may hold unpaired surrogates (`os.fsdecode`), which pybind11's own cast refuses.
std::string to_utf8(const py::str& text) {
  PyObject* bytes = PyUnicode_AsEncodedString(text.ptr(), "utf-8", "surrogatepass");
  if (bytes == nullptr) {
    throw py::error_already_set();
  }
  return py::reinterpret_steal<py::bytes>(bytes);
}

py::str from_utf8(const std::string& text) {
  PyObject* decoded =
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "surrogatepass");
  if (decoded == nullptr) {
    throw py::error_already_set();
  }
  return py::reinterpret_steal<py::str>(decoded);
}

StringKind kind_of(const std::string& name) {
  const auto found = std::find(kStringKindNames.begin(), kStringKindNames.end(), name);
  if (found == kStringKindNames.end()) {
    throw py::value_error("no kind of string: " + name);
  }
  return static_cast<StringKind>(found - kStringKindNames.begin());
}

const char* name_of(StringKind kind) {
  return kStringKindNames[static_cast<std::size_t>(kind)];
}

PyObject* code_or_null(const py::object& code) {
  if (code.is_none()) {
    return nullptr;
  }
  if (!PyCode_Check(code.ptr())) {
    throw py::type_error("no code object");
  }
  return code.ptr();
}

Ask ask_of(const std::string& name) {
  constexpr std::array<const char*, 4> kNames = {"stack", "step", "recomputation", "everything"};
  const auto found = std::find(kNames.begin(), kNames.end(), name);
  if (found == kNames.end()) {
    throw py::value_error("nothing to ask for: " + name);
  }
  return static_cast<Ask>(found - kNames.begin());
}

py::tuple as_tuple(const Site& site) {
  return py::make_tuple(site.stack, site.in_step, site.recomputes, site.in_engine);
}

}  // namespace

py::tuple tuples_of(const std::vector<Interner::NewString>& strings) {
  py::tuple tuples(strings.size());
  for (std::size_t at = 0; at < strings.size(); ++at) {
    const Interner::NewString& string = strings[at];
    tuples[at] = py::make_tuple(name_of(string.kind), string.id, from_utf8(string.value));
  }
  return tuples;
}

void bind_strings(py::module_& module) {
  module.attr("STRING_KINDS") = py::tuple(py::cast(kStringKindNames));

  py::class_<Interner, std::shared_ptr<Interner>>(module, "Interner")
      .def(py::init<>())
      .def(
          "intern",
          [](Interner& self, const std::string& kind, const py::str& value) {
            return self.intern(kind_of(kind), to_utf8(value));
          },
          py::arg("kind"), py::arg("value"), "Id of ``value``, new or not.")
      .def(
          "text",
          [](const Interner& self, const std::string& kind, StringId identity) {
            return from_utf8(self.text(kind_of(kind), identity));
          },
          py::arg("kind"), py::arg("identity"), "The string behind an id.")
      .def("drain", [](Interner& self) { return tuples_of(self.drain()); },
           "What was added since the last call.");

  py::class_<CallSites>(module, "CallSites")
      .def(py::init([](Interner& interner, const py::str& package, const py::str& home,
                       const py::object& engine, const py::object& step,
                       const py::str& checkpoint) {
             return std::make_unique<CallSites>(interner, to_utf8(package), to_utf8(home),
                                                code_or_null(engine), code_or_null(step),
                                                to_utf8(checkpoint));
           }),
           py::keep_alive<1, 2>(), py::arg("interner"), py::arg("package"), py::arg("home"),
           py::arg("engine_code").none(true), py::arg("step_code").none(true),
           py::arg("checkpoint"))
      .def(
          "here",
          [](CallSites& self, const std::string& ask) { return as_tuple(self.here(ask_of(ask))); },
          py::arg("ask") = "everything",
          "(stack, in_step, recomputes, in_engine) of this thread; below the engine no stack.")
      .def(
          "whole",
          [](CallSites& self, const std::string& ask) { return as_tuple(self.whole(ask_of(ask))); },
          py::arg("ask") = "everything",
          "The same, in full also below the engine.");

  module.def(
      "json_string", [](const py::bytes& text) { return json_string(std::string_view(text)); },
      py::arg("text"), "A JSON string of UTF-8 text, as ``json.dumps`` makes it.");
  module.def(
      "json_list", [](const std::vector<std::int64_t>& values) { return json_list(values); },
      py::arg("values"), "A list of numbers as it is stored.");
}

}  // namespace opguard::bind
