#include "recorder/transparent.h"

namespace opguard {

namespace {

/// Keys under which a call is not yet the one that computes: subclasses and modes in Python, and
/// functorch's layers. The inner calls on plain tensors are the events.
const c10::DispatchKeySet kWrappers({
    c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot,
    c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
    c10::DispatchKey::FuncTorchDynamicLayerBackMode, c10::DispatchKey::FuncTorchGradWrapper,
    c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::FuncTorchVmapMode,
    c10::DispatchKey::BatchedNestedTensor, c10::DispatchKey::Functionalize,
    c10::DispatchKey::Batched,  // of `is_grads_batched`
});

/// Of these the tensor itself tells: a layer that is being left is excluded, its tensors are not.
const c10::DispatchKeySet kLayers({
    c10::DispatchKey::FuncTorchGradWrapper, c10::DispatchKey::FuncTorchBatched,
    c10::DispatchKey::BatchedNestedTensor, c10::DispatchKey::Batched,
});

void add_keys(const c10::IValue& value, c10::DispatchKeySet& keys) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) {
      keys = keys | value.toTensor().key_set();
    }
  } else if (value.isTensorList() || value.isList()) {
    for (const c10::IValue& item : value.toListRef()) {
      add_keys(item, keys);
    }
  }
}

}  // namespace

bool is_transparent(const Operator& op, c10::ArrayRef<const c10::IValue> stack) {
  if (op.kind == Kind::Composite) {
    return true;
  }
  c10::DispatchKeySet keys;
  for (std::size_t index = 0; index < stack.size() && index < op.parameters.size(); ++index) {
    if (op.parameters[index].holds_tensors || stack[index].isTensor()) {
      add_keys(stack[index], keys);
    }
  }
  if (keys.has_any(kLayers)) {
    return true;
  }
  const auto local = c10::impl::tls_local_dispatch_key_set();
  keys = (keys | local.included_) - local.excluded_;
  return keys.has_any(kWrappers) ||
         (op.autocast_cpu && keys.has(c10::DispatchKey::AutocastCPU)) ||
         (op.autocast_cuda && keys.has(c10::DispatchKey::AutocastCUDA));
}

// Where the key of Python modes is excluded, torch keeps house: the `empty` behind `torch.tensor`.
// In a parallel region a kernel of an open call does, on threads of its own.
bool is_housekeeping() {
  return c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::Python) ||
         at::in_parallel_region();
}

}  // namespace opguard
