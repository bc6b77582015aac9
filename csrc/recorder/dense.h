// Fingerprints of strided CPU tensors where they lie.
#pragma once

#include "fingerprint/mix64.h"
#include "recorder/geometry.h"
#include "recorder/torch_headers.h"

namespace opguard {

/// Contiguous tensors of at least this many bytes are split over torch's intra-op threads: reading
/// them takes one thread 20 to 100 microseconds, waking the others up to 10.
constexpr std::int64_t kSplitBytes = 1 << 20;

/// Fingerprint of the logical bytes of a strided CPU tensor whose memory is there: the caller has
/// compared `geometry.end` with the storage's size. `geometry`: the tensor's own. `regions`: filled
/// unless null. Reads through const pointers only: a lazily cloned storage stays unmaterialised.
fingerprint::Digest digest_tensor(const at::Tensor& tensor, const Geometry& geometry,
                                  fingerprint::Regions* regions);

/// Runs the parts of a fingerprint on torch's intra-op threads.
const fingerprint::RunParts& intra_op_threads();

}  // namespace opguard
