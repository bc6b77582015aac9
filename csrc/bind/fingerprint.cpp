#include <cstdint>
#include <string>
#include <vector>

#include <torch/csrc/utils/pybind.h>

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bind/bind.h"
#include "common/check.h"
#include "fingerprint/mix64.h"
#include "recorder/dense.h"
#include "recorder/geometry.h"

namespace py = pybind11;

namespace opguard::bind {

namespace {

/// The bytes behind an object, held while this lives. Its end needs the interpreter lock.
class HeldBytes {
 public:
  explicit HeldBytes(const py::buffer& object) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) != 0) {
      throw py::error_already_set();
    }
  }
  ~HeldBytes() { PyBuffer_Release(&view_); }
  HeldBytes(const HeldBytes&) = delete;
  HeldBytes& operator=(const HeldBytes&) = delete;

  const void* data() const { return view_.buf; }
  std::size_t size() const { return static_cast<std::size_t>(view_.len); }

 private:
  Py_buffer view_{};
};

/// `(mix64, xor32, regions or None)`.
py::tuple tuple_of(const fingerprint::Digest& digest, const fingerprint::Regions* regions) {
  py::object values = py::none();
  if (regions != nullptr) {
    py::tuple list(regions->size());
    for (std::size_t region = 0; region < regions->size(); ++region) {
      list[region] = (*regions)[region];
    }
    values = std::move(list);
  }
  return py::make_tuple(digest.mix64, digest.xor32, values);
}

py::tuple fingerprint_bytes(const py::buffer& buffer, bool with_regions, int parts) {
  const HeldBytes bytes(buffer);
  fingerprint::Regions regions{};
  fingerprint::Regions* wanted = with_regions ? &regions : nullptr;
  fingerprint::Digest digest;
  {
    const py::gil_scoped_release unlocked;
    digest = fingerprint::digest(bytes.data(), bytes.size(), wanted, &intra_op_threads(), parts);
  }
  return tuple_of(digest, wanted);
}

/// The same checks as before the recorder reads a tensor.
void check_readable(const at::Tensor& tensor, const Geometry& geometry) {
  OPGUARD_CHECK(geometry.nbytes == 0 ||
                    (static_cast<std::int64_t>(tensor.storage().nbytes()) >= geometry.end &&
                     tensor.storage().data() != nullptr),
                "the memory of the tensor was freed");
}

py::tuple fingerprint_tensor(const at::Tensor& tensor, bool with_regions) {
  OPGUARD_CHECK(tensor.is_cpu() && tensor.layout() == at::kStrided && !tensor.is_quantized() &&
                    !tensor.is_nested() && tensor.has_storage(),
                "only strided CPU tensors have bytes of their own");
  const auto bits = static_cast<Bits>((tensor.is_conj() ? 1 : 0) | (tensor.is_neg() ? 2 : 0));
  Interner interner;
  Geometries geometries(interner);
  const Geometry& geometry = geometries.of(tensor, bits);
  check_readable(tensor, geometry);
  fingerprint::Regions regions{};
  fingerprint::Regions* wanted = with_regions ? &regions : nullptr;
  fingerprint::Digest digest;
  {
    const py::gil_scoped_release unlocked;
    digest = digest_tensor(tensor, geometry, wanted);
  }
  return tuple_of(digest, wanted);
}

std::vector<std::string> vector_codes() {
  std::vector<std::string> names;
  for (const char* const* name = fingerprint::vector_codes(); *name != nullptr; ++name) {
    names.emplace_back(*name);
  }
  return names;
}

void use_vector_code(const std::string& name) {
  if (!fingerprint::use_vector_code(name.c_str())) {
    throw py::value_error("no vector code of this processor: " + name);
  }
}

}  // namespace

void bind_fingerprint(py::module_& module) {
  // A test compares them with those of `opguard.fingerprint.spec`.
  module.attr("K") = fingerprint::kK;
  module.attr("M") = fingerprint::kM;
  module.attr("REGIONS") = fingerprint::kRegions;
  module.attr("REGION_BYTES") = fingerprint::kRegionBytes;
  module.attr("SMALL_BYTES") = fingerprint::kSmallBytes;
  module.def("fingerprint_bytes", &fingerprint_bytes, py::arg("buffer"),
             py::arg("regions") = false, py::arg("parts") = 1,
             "(mix64, xor32, regions or None) of contiguous bytes; `parts`: split over torch's "
             "intra-op threads.");
  module.def("fingerprint_tensor", &fingerprint_tensor, py::arg("tensor"),
             py::arg("regions") = false,
             "The same of a strided CPU tensor's logical bytes, read where they lie.");
  module.def("vector_codes", &vector_codes, "Vector codes of this processor, best first.");
  module.def("vector_code", &fingerprint::vector_code, "The one in use.");
  module.def("use_vector_code", &use_vector_code, py::arg("name"),
             "Use one of them from now on, in the whole process.");
}

}  // namespace opguard::bind
