#include <pybind11/numpy.h>
#include <pybind11/stl.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <string>
#include <utility>

#include "bind/bind.h"
#include "bind/tables.h"
#include "bind/work.h"
#include "common/check.h"
#include "recorder/listener.h"
#include "recorder/locked.h"

namespace py = pybind11;

namespace opguard::bind {

namespace {

/// Tensors and numbers of a list; other things are None, so that each keeps its position.
std::vector<c10::IValue> values_of(const py::list& list) {
  std::vector<c10::IValue> values;
  for (const py::handle item : list) {
    int overflow = 0;
    if (THPVariable_Check(item.ptr())) {
      values.emplace_back(item.cast<at::Tensor>());
    } else if (PyBool_Check(item.ptr())) {
      values.emplace_back(item.ptr() == Py_True);
    } else if (PyFloat_Check(item.ptr())) {
      values.emplace_back(PyFloat_AS_DOUBLE(item.ptr()));
    } else if (PyLong_Check(item.ptr())) {
      const std::int64_t number = PyLong_AsLongLongAndOverflow(item.ptr(), &overflow);
      values.push_back(overflow == 0 ? c10::IValue(number) : c10::IValue());
    } else {
      values.emplace_back();
    }
  }
  return values;
}

Mode mode_of(const std::string& name) {
  if (name == "trusted") {
    return Mode::Trusted;
  }
  OPGUARD_CHECK(name == "full" || name == "collectives", "unknown mode " + name);
  return name == "full" ? Mode::Full : Mode::Collectives;
}

/// A column as a numpy array of the block's memory, which it keeps alive.
template <typename T>
py::array column(const std::vector<T>& values, const py::object& owner) {
  return py::array_t<T>({static_cast<py::ssize_t>(values.size())}, {sizeof(T)}, values.data(),
                        owner);
}

py::dict events_of(const Block& block, const py::object& owner) {
  py::dict columns;
  columns["boundary"] = column(block.boundary, owner);
  columns["step"] = column(block.step, owner);
  columns["thread"] = column(block.thread, owner);
  columns["stream"] = column(block.stream, owner);
  columns["host_ns"] = column(block.host_ns, owner);
  columns["arguments"] = column(block.arguments, owner);
  columns["flags"] = column(block.flags, owner);
  columns["first_record"] = column(block.first_record, owner);
  return columns;
}

py::dict records_of(const Block& block, const py::object& owner) {
  py::dict columns;
  columns["slot"] = column(block.slot, owner);
  columns["dtype"] = column(block.dtype, owner);
  columns["record_flags"] = column(block.record_flags, owner);
  columns["shape"] = column(block.shape, owner);
  columns["strides"] = column(block.strides, owner);
  columns["mix64"] = column(block.mix64, owner);
  columns["xor32"] = column(block.xor32, owner);
  columns["first_producer"] = column(block.first_producer, owner);
  columns["small_offset"] = column(block.small_offset, owner);
  columns["small"] = column(block.small, owner);
  return columns;
}

/// What Python holds of one capture.
struct NativeRecorder {
  std::shared_ptr<Interner> interner;
  std::shared_ptr<Recorder> recorder;
  std::unique_ptr<Listener> listener;

  NativeRecorder(std::shared_ptr<Interner> strings, const py::dict& sites, const py::dict& tables,
                 const std::string& mode, const py::object& stop)
      : interner(std::move(strings)) {
    const auto code = [&sites](const char* name) {
      const py::object value = sites[name];
      return value.is_none() ? nullptr : value.ptr();
    };
    auto call_sites = std::make_unique<CallSites>(
        *interner, sites["package"].cast<std::string>(), sites["home"].cast<std::string>(),
        code("engine"), code("step"), sites["checkpoint"].cast<std::string>());
    recorder = std::make_shared<Recorder>(interner, std::move(call_sites), tables_from(tables),
                                          mode_of(mode));
    listener = std::make_unique<Listener>(recorder, stop.ptr());
  }

  ThreadPlace& here() { return recorder->program.here(); }

  void enter_module(StringId path) {
    ThreadPlace& place = here();
    place.modules.push_back({path, graph_task_id()});
  }

  void leave_modules(std::size_t depth) {
    ThreadPlace& place = here();
    place.modules.resize(std::min(depth, place.modules.size()));
  }

  /// Not in Python, where the program's signal handler may raise between any two calls.
  py::object call_graph(const py::object& call, const py::sequence& inputs,
                        const std::string& arguments) {
    std::vector<Slotted> reads;
    StringId position = 0;
    for (const py::handle input : inputs) {
      ++position;
      if (THPVariable_Check(input.ptr())) {
        reads.push_back({position, THPVariable_Unpack(input.ptr())});
      }
    }
    const StringId arguments_id = interner->intern(StringKind::Arguments, arguments);
    if (!listener->enter_graph(std::move(reads), arguments_id)) {
      return call();
    }
    py::object result;
    try {
      result = call();
    } catch (...) {
      listener->leave_graph({}, /*raised=*/true);
      throw;
    }
    std::vector<c10::IValue> values;
    if (PyList_Check(result.ptr()) || PyTuple_Check(result.ptr())) {
      values = values_of(py::list(result));
    }
    listener->leave_graph(Results(values.data(), values.size()), /*raised=*/false);
    return result;
  }

  py::dict unfingerprinted() {
    const auto counts = recorder->unfingerprinted();
    py::dict found;
    for (std::size_t index = 1; index < kReasons; ++index) {
      if (counts[index] != 0) {
        found[kReasonNames[index]] = counts[index];
      }
    }
    return found;
  }
};

void bind_block(py::module_& module) {
  py::class_<Block>(module, "Block")
      .def_property_readonly("first_event", [](const Block& block) { return block.first_event; })
      .def_property_readonly("event_count", &Block::events)
      .def("events", [](const py::object& self) { return events_of(self.cast<Block&>(), self); })
      .def("records", [](const py::object& self) { return records_of(self.cast<Block&>(), self); })
      .def("producers",
           [](const py::object& self) { return column(self.cast<Block&>().producers, self); })
      .def("region_records",
           [](const py::object& self) { return column(self.cast<Block&>().region_records, self); })
      .def("region_values",
           [](const py::object& self) { return column(self.cast<Block&>().region_values, self); })
      .def("strings", [](const Block& block) { return tuples_of(block.strings); });
}

void bind_program(py::class_<NativeRecorder>& recorder) {
  recorder.def("has_frames", [](NativeRecorder& self) { self.recorder->program.has_frames(); })
      .def("enter_module", &NativeRecorder::enter_module, py::arg("path"))
      .def("leave_modules", &NativeRecorder::leave_modules, py::arg("depth"))
      .def("set_optimizers",
           [](NativeRecorder& self, std::size_t count) { self.here().optimizers = count; },
           py::arg("count"))
      .def("begin_step",
           [](NativeRecorder& self, std::int32_t step) {
             self.recorder->program.begin_step(step);
           },
           py::arg("step"))
      .def("name_parameter",
           [](NativeRecorder& self, const at::Tensor& parameter, StringId path) {
             self.recorder->program.name_parameter(parameter, path);
           },
           py::arg("parameter"), py::arg("path"));
}

void bind_state(py::class_<NativeRecorder>& recorder) {
  recorder
      .def("emit_tensors",
           [](NativeRecorder& self, StringId module,
              const std::vector<std::pair<std::string, at::Tensor>>& parts) {
             self.recorder->emit_tensors(module, parts);
           },
           py::arg("module"), py::arg("parts"))
      .def("emit_bytes",
           [](NativeRecorder& self, StringId module, std::uint8_t dtype, const py::bytes& data) {
             self.recorder->emit_bytes(module, dtype, data);
           },
           py::arg("module"), py::arg("dtype"), py::arg("data"))
      .def("emit_missing",
           [](NativeRecorder& self, StringId module, const at::Tensor& tensor,
              std::uint8_t reason) {
             self.recorder->emit_missing(module, tensor, static_cast<Reason>(reason));
           },
           py::arg("module"), py::arg("tensor"), py::arg("reason"))
      .def("begin_pass", [](NativeRecorder& self) { self.recorder->begin_pass(); })
      .def("forget_values", [](NativeRecorder& self) { self.recorder->forget_values(); })
      .def("storage_resized",
           [](NativeRecorder& self, const py::object& storage) {
             self.recorder->storage_resized(torch::createStorage(storage.ptr()));
           },
           py::arg("storage"))
      .def("exported",
           [](NativeRecorder& self, const at::Tensor& tensor) { self.recorder->exported(tensor); },
           py::arg("tensor"))
      .def("work_waits",
           [](NativeRecorder& self, const py::object& work) {
             self.recorder->work_waits(work_from(work));
           },
           py::arg("work"))
      .def("work_waited",
           [](NativeRecorder& self, const py::object& work, bool arrived) {
             self.recorder->work_waited(work_from(work), arrived);
           },
           py::arg("work"), py::arg("arrived"))
      .def("finish_collectives", [](NativeRecorder& self) { self.recorder->finish_collectives(); });
}

void bind_capture(py::class_<NativeRecorder>& recorder) {
  recorder.def("start", [](NativeRecorder& self) { self.listener->start(); })
      .def("stop", [](NativeRecorder& self) { self.listener->stop(); })
      .def("stop_after_fork", [](NativeRecorder& self) { self.listener->stop_after_fork(); })
      .def("select", [](NativeRecorder& self, bool on) { self.recorder->select(on); },
           py::arg("on"))
      .def("set_limit",
           [](NativeRecorder& self, std::int64_t events) { self.recorder->limit.store(events); },
           py::arg("events"))
      .def("take",
           [](NativeRecorder& self, double seconds) { return self.recorder->rows.take(seconds); },
           py::arg("seconds"), py::call_guard<py::gil_scoped_release>())
      .def("cut", [](NativeRecorder& self) { self.recorder->cut(); },
           py::call_guard<py::gil_scoped_release>())
      .def("close_rows", [](NativeRecorder& self) { self.recorder->rows.close(); })
      .def_property_readonly("rows_closed",
                             [](NativeRecorder& self) { return self.recorder->rows.closed(); })
      .def("close", [](NativeRecorder& self) { self.recorder->close(); })
      .def("call_graph", &NativeRecorder::call_graph, py::arg("call"), py::arg("inputs"),
           py::arg("arguments"))
      .def_property_readonly("events",
                             [](NativeRecorder& self) { return self.recorder->events(); })
      .def_property_readonly("stopped",
                             [](NativeRecorder& self) { return self.recorder->stopped.load(); })
      .def_property_readonly("failure",
                             [](NativeRecorder& self) { return self.recorder->failure(); })
      .def_property_readonly("foreign_values",
                             [](NativeRecorder& self) { return self.recorder->foreign_values(); })
      .def("unfingerprinted", &NativeRecorder::unfingerprinted);
}

/// The numbers that both languages use, for a test that compares them.
py::dict codes() {
  py::dict codes;
  codes["dtypes"] = py::dict(
      py::arg("python_bool") = kPythonBool, py::arg("python_int") = kPythonInt,
      py::arg("python_float") = kPythonFloat, py::arg("python_complex") = kPythonComplex,
      py::arg("bytes") = kBytes);
  codes["event_flags"] = py::dict(py::arg("RAISED") = kRaised, py::arg("STATE") = kState);
  codes["record_flags"] = py::dict(py::arg("OUTPUT") = kOutput, py::arg("FRESH") = kFresh,
                                   py::arg("VIA") = kVia, py::arg("VOID") = kVoid);
  codes["reason_shift"] = kReasonShift;
  codes["reasons"] = py::cast(kReasonNames);
  codes["phases"] = py::cast(kPhaseNames);
  codes["events_a_block"] = kEventsABlock;
  return codes;
}

}  // namespace

void bind_recorder(py::module_& module) {
  module.attr("CODES") = codes();
  bind_block(module);
  py::class_<NativeRecorder> recorder(module, "Recorder");
  recorder.def(py::init<std::shared_ptr<Interner>, const py::dict&, const py::dict&,
                        const std::string&, const py::object&>(),
               py::arg("interner"), py::arg("sites"), py::arg("tables"), py::arg("mode"),
               py::arg("stop"));
  bind_program(recorder);
  bind_state(recorder);
  bind_capture(recorder);
  module.def("makes_room", &Rows::makes_room);
  module.def("begin_unseen", &Listener::begin_unseen);
  module.def("end_unseen", &Listener::end_unseen);
}

}  // namespace opguard::bind
