#include "recorder/dense.h"

#include <cstdint>
#include <functional>

namespace opguard {
namespace {

constexpr Bits kConj = 1, kNeg = 2;

fingerprint::Digest digest_strided(const at::Tensor& tensor, const std::uint8_t* data,
                                   const Geometry& geometry, fingerprint::Regions* regions) {
  c10::DimVector strides = geometry.strides;
  for (std::size_t number = 0; number < strides.size(); ++number) {
    // A stride along which there is no step may be so large that its bytes overflow.
    strides[number] = geometry.shape[number] > 1 ? strides[number] * geometry.itemsize : 0;
  }
  fingerprint::Strided strided;
  strided.data = data;
  strided.itemsize = static_cast<std::size_t>(geometry.itemsize);
  strided.dimensions = static_cast<int>(strides.size());
  strided.shape = geometry.shape.data();
  strided.strides = strides.data();
  // The neg bit negates both parts, the conj bit the imaginary one. Only floats have the neg bit,
  // unless a program calls `torch._neg_view` itself; then the highest bit is flipped as well, as
  // `opguard.fingerprint.tensor` does.
  strided.flip_real = (geometry.bits & kNeg) != 0;
  strided.flip_imaginary = strided.flip_real != ((geometry.bits & kConj) != 0);
  strided.part = tensor.is_complex() ? strided.itemsize / 2 : strided.itemsize;
  return fingerprint::digest_strided(strided, regions);
}

}  // namespace

const fingerprint::RunParts& intra_op_threads() {
  static const fingerprint::RunParts run = [](int parts, const std::function<void(int)>& part) {
    at::parallel_for(0, parts, 1, [&part](std::int64_t begin, std::int64_t end) {
      for (std::int64_t number = begin; number < end; ++number) {
        part(static_cast<int>(number));
      }
    });
  };
  return run;
}

fingerprint::Digest digest_tensor(const at::Tensor& tensor, const Geometry& geometry,
                                  fingerprint::Regions* regions) {
  const auto nbytes = static_cast<std::size_t>(geometry.nbytes);
  if (nbytes == 0) {
    return fingerprint::digest(nullptr, 0, regions);
  }
  const at::Storage& storage = tensor.storage();
  const auto* data = static_cast<const std::uint8_t*>(storage.data()) + geometry.start;
  if (!geometry.contiguous || geometry.bits != 0) {
    return digest_strided(tensor, data, geometry, regions);
  }
  if (geometry.nbytes >= kSplitBytes && !at::in_parallel_region()) {
    const int threads = at::get_num_threads();
    if (threads > 1) {
      // Always over all of them: libgomp ends the threads that a smaller team has no use for.
      return fingerprint::digest(data, nbytes, regions, &intra_op_threads(), threads);
    }
  }
  return fingerprint::digest(data, nbytes, regions);
}

}  // namespace opguard
