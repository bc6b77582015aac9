// The plain tensors that sparse, nested and quantized ones are made of.
#include "recorder/reader.h"

namespace opguard {

namespace {

/// Operators called while it lives are seen by nobody and reach the backend at once.
class Unseen {
  at::RecordFunctionGuard no_callbacks_{false};
  c10::impl::ExcludeDispatchKeyGuard no_wrappers_{
      c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}) |
      c10::autocast_dispatch_keyset};
  at::AutoDispatchBelowADInplaceOrView no_autograd_;
};

bool freed(const at::Tensor& tensor) {
  return tensor.numel() != 0 && (tensor.storage().nbytes() == 0 || !tensor.storage().data());
}

Reason nested_parts(const at::Tensor& tensor, std::vector<Part>& parts) {
  if (freed(tensor)) {
    return Reason::Freed;
  }
  std::vector<at::Tensor> values;
  for (const at::Tensor& part : tensor.unbind()) {
    values.push_back(part.reshape(-1));
  }
  if (values.empty()) {
    values.push_back(at::empty({0}, tensor.options().layout(c10::kStrided)));
  }
  parts.push_back({".values", at::cat(values)});
  parts.push_back({".sizes", tensor._nested_tensor_size()});
  return Reason::Present;
}

Reason quantized_parts(const at::Tensor& tensor, std::vector<Part>& parts) {
  if (freed(tensor)) {
    return Reason::Freed;
  }
  parts.push_back({".int_repr", tensor.int_repr()});
  const auto scheme = tensor.qscheme();
  if (scheme == c10::kPerTensorAffine || scheme == c10::kPerTensorSymmetric) {
    parts.push_back({".scale", at::scalar_tensor(tensor.q_scale(), at::kDouble)});
    parts.push_back({".zero_point", at::scalar_tensor(tensor.q_zero_point(), at::kLong)});
  } else {
    parts.push_back({".scale", tensor.q_per_channel_scales()});
    parts.push_back({".zero_point", tensor.q_per_channel_zero_points()});
  }
  return Reason::Present;
}

Reason compressed_parts(const at::Tensor& tensor, bool by_row, std::vector<Part>& parts) {
  if (by_row) {
    parts.push_back({".crow_indices", tensor.crow_indices()});
    parts.push_back({".col_indices", tensor.col_indices()});
  } else {
    parts.push_back({".ccol_indices", tensor.ccol_indices()});
    parts.push_back({".row_indices", tensor.row_indices()});
  }
  parts.push_back({".values", tensor.values()});
  return Reason::Present;
}

}  // namespace

Reason parts_of(const at::Tensor& tensor, std::vector<Part>& parts) {
  if (traits(tensor).wrapper) {
    return Reason::Freed;
  }
  const Unseen unseen;
  switch (tensor.layout()) {
    case c10::Layout::Sparse:
      parts.push_back({".indices", tensor._indices()});
      parts.push_back({".values", tensor._values()});
      return Reason::Present;
    case c10::Layout::SparseCsr:
    case c10::Layout::SparseBsr:
      return compressed_parts(tensor, true, parts);
    case c10::Layout::SparseCsc:
    case c10::Layout::SparseBsc:
      return compressed_parts(tensor, false, parts);
    case c10::Layout::Strided:
      if (tensor.is_nested()) {
        return nested_parts(tensor, parts);
      }
      return tensor.is_quantized() ? quantized_parts(tensor, parts) : Reason::Unsupported;
    default:
      return Reason::Unsupported;
  }
}

}  // namespace opguard
