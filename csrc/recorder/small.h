// The bytes of small tensors, which are stored themselves.
#pragma once

#include <cstdint>

#include "recorder/geometry.h"
#include "recorder/torch_headers.h"

namespace opguard {

/// Copy the logical bytes of a strided CPU tensor of at most `fingerprint::kSmallBytes` bytes to
/// `out`: row-major, conj and neg bits resolved.
void copy_small(const at::Tensor& tensor, const Geometry& geometry, std::uint8_t* out);

}  // namespace opguard
