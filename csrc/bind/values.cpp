#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/utils/pybind.h>

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bind/bind.h"
#include "common/check.h"
#include "recorder/values.h"

namespace py = pybind11;

namespace opguard::bind {

namespace {

/// Values of a process that records nothing: the specification test asks it what it asks
/// `opguard.capture.values`.
class ValuesProbe {
 public:
  ValuesProbe() : geometries_(interner_) {}

  void meet(const at::Tensor& tensor) { values_.meet(tensor); }
  void create(const at::Tensor& tensor) { values_.create(tensor); }
  bool met(const at::Tensor& tensor) { return values_.find(tensor) != nullptr; }
  void rebuilt(const at::Tensor& tensor, const at::Tensor& other) {
    values_.rebuilt(tensor, other.storage());
  }
  void resized(const at::Tensor& tensor) { values_.resized(tensor.storage()); }
  void forget_all() { values_.forget_all(); }
  /// How many entries wait to be destroyed; they are.
  std::size_t drop() { return values_.take_dropped().size(); }

  std::vector<Record> producers(const at::Tensor& tensor) {
    return list(entry(tensor).producers(geometry(tensor)));
  }
  std::vector<Record> wrote(const at::Tensor& tensor, Record record, bool partial) {
    return list(entry(tensor).wrote(geometry(tensor), record, partial));
  }
  void explain(const at::Tensor& tensor) { entry(tensor).explain(tensor); }
  void forget(const at::Tensor& tensor, bool keep_void) { entry(tensor).forget(keep_void); }
  void reread(const at::Tensor& tensor) { entry(tensor).reread(); }
  void make_external(const at::Tensor& tensor) { entry(tensor).make_external(); }

  void learn(const at::Tensor& tensor, std::uint64_t mix64, std::uint32_t xor32) {
    entry(tensor).learn(geometry(tensor), {mix64, xor32});
  }
  py::object known(const at::Tensor& tensor) {
    return digest_of(entry(tensor).known(geometry(tensor)));
  }
  py::object covering(const at::Tensor& tensor) {
    const Known* base = entry(tensor).covering(geometry(tensor));
    if (base == nullptr) {
      return py::none();
    }
    const StringId relative = geometries_.relative(geometry(tensor), *base->geometry);
    return py::make_tuple(digest_of(base), interner_.text(StringKind::Strides, relative));
  }

  bool is_void(const at::Tensor& tensor) { return entry(tensor).is_void(geometry(tensor)); }
  void leave_void(const at::Tensor& tensor, const std::optional<at::Tensor>& mask) {
    Unset unset;
    unset.how = mask.has_value() ? Unset::How::Some : Unset::How::All;
    if (mask.has_value()) {
      OPGUARD_CHECK(mask->scalar_type() == at::kBool && mask->is_contiguous(), "no plain mask");
      unset.shape.assign(mask->sizes().begin(), mask->sizes().end());
      const bool* first = mask->const_data_ptr<bool>();
      unset.mask.assign(first, first + mask->numel());
    }
    entry(tensor).leave_void(geometry(tensor), unset);
  }
  /// None: no element; else (shape, bytes of the mask).
  py::object unset_elements(const at::Tensor& tensor) {
    const Unset unset = entry(tensor).unset_elements(geometry(tensor));
    if (unset.how == Unset::How::None) {
      return py::none();
    }
    const auto* first = reinterpret_cast<const char*>(unset.mask.data());
    return py::make_tuple(std::vector<std::int64_t>(unset.shape.begin(), unset.shape.end()),
                          py::bytes(first, unset.mask.size()));
  }

  py::dict facts(const at::Tensor& tensor) {
    const Storage& storage = entry(tensor);
    py::dict facts;
    facts["nbytes"] = storage.nbytes();
    facts["external"] = storage.external();
    facts["has_void"] = storage.has_void();
    facts["first_reader"] = storage.first_reader;
    facts["creator"] = storage.creator;
    return facts;
  }
  void set_reader(const at::Tensor& tensor, Record record) { entry(tensor).first_reader = record; }
  void set_creator(const at::Tensor& tensor, Record record) { entry(tensor).creator = record; }

  py::dict geometry_facts(const at::Tensor& tensor) {
    const Geometry& found = geometry(tensor);
    py::dict facts;
    facts["start"] = found.start;
    facts["end"] = found.end;
    facts["nbytes"] = found.nbytes;
    facts["itemsize"] = found.itemsize;
    facts["contiguous"] = found.contiguous;
    facts["dense"] = found.dense;
    facts["bits"] = found.bits;
    facts["dtype_code"] = found.dtype_code;
    facts["shape"] = interner_.text(StringKind::Shape, found.shape_id);
    facts["strides"] = interner_.text(StringKind::Strides, found.strides_id);
    facts["layout"] = found.layout();
    return facts;
  }
  std::uint32_t value_key(const at::Tensor& tensor) { return geometry(tensor).value_key; }
  std::string relative(const at::Tensor& view, const at::Tensor& base) {
    const StringId found = geometries_.relative(geometry(view), geometry(base));
    return interner_.text(StringKind::Strides, found);
  }

 private:
  Storage& entry(const at::Tensor& tensor) {
    Storage* found = values_.find(tensor);
    OPGUARD_CHECK(found != nullptr, "the storage was not met");
    return *found;
  }
  const Geometry& geometry(const at::Tensor& tensor) {
    return geometries_.of(tensor, static_cast<Bits>((tensor.is_conj() ? 1 : 0) |
                                                    (tensor.is_neg() ? 2 : 0)));
  }
  static std::vector<Record> list(const Producers& records) {
    return {records.begin(), records.end()};
  }
  static py::object digest_of(const Known* known) {
    if (known == nullptr) {
      return py::none();
    }
    return py::make_tuple(known->digest.mix64, known->digest.xor32);
  }

  Interner interner_;
  Geometries geometries_;
  Values values_;
};

}  // namespace

void bind_values(py::module_& module) {
  py::class_<ValuesProbe>(module, "ValuesProbe", "What capture knows of values, for tests.")
      .def(py::init<>())
      .def("meet", &ValuesProbe::meet, py::arg("tensor"))
      .def("create", &ValuesProbe::create, py::arg("tensor"))
      .def("met", &ValuesProbe::met, py::arg("tensor"))
      .def("rebuilt", &ValuesProbe::rebuilt, py::arg("tensor"), py::arg("other"))
      .def("resized", &ValuesProbe::resized, py::arg("tensor"))
      .def("forget_all", &ValuesProbe::forget_all)
      .def("drop", &ValuesProbe::drop)
      .def("producers", &ValuesProbe::producers, py::arg("tensor"))
      .def("wrote", &ValuesProbe::wrote, py::arg("tensor"), py::arg("record"), py::arg("partial"))
      .def("explain", &ValuesProbe::explain, py::arg("tensor"))
      .def("forget", &ValuesProbe::forget, py::arg("tensor"), py::arg("keep_void"))
      .def("reread", &ValuesProbe::reread, py::arg("tensor"))
      .def("make_external", &ValuesProbe::make_external, py::arg("tensor"))
      .def("learn", &ValuesProbe::learn, py::arg("tensor"), py::arg("mix64"), py::arg("xor32"))
      .def("known", &ValuesProbe::known, py::arg("tensor"))
      .def("covering", &ValuesProbe::covering, py::arg("tensor"))
      .def("is_void", &ValuesProbe::is_void, py::arg("tensor"))
      .def("leave_void", &ValuesProbe::leave_void, py::arg("tensor"), py::arg("mask").none(true))
      .def("unset_elements", &ValuesProbe::unset_elements, py::arg("tensor"))
      .def("facts", &ValuesProbe::facts, py::arg("tensor"))
      .def("set_reader", &ValuesProbe::set_reader, py::arg("tensor"), py::arg("record"))
      .def("set_creator", &ValuesProbe::set_creator, py::arg("tensor"), py::arg("record"))
      .def("geometry", &ValuesProbe::geometry_facts, py::arg("tensor"))
      .def("value_key", &ValuesProbe::value_key, py::arg("tensor"))
      .def("relative", &ValuesProbe::relative, py::arg("view"), py::arg("base"));
}

}  // namespace opguard::bind
