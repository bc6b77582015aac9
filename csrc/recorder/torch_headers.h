// The only file that includes torch's headers or asks for its version: what differs between
// releases (2.4 and newer) ends here.
#pragma once

#ifndef NDEBUG
#error "torch's releases are built with NDEBUG, which changes the layout of at::RecordFunction"
#endif

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/MapAllocator.h>
#include <ATen/Parallel.h>
#include <ATen/SequenceNumber.h>
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/class_type.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/DimVector.h>
#include <c10/util/SmallVector.h>
#include <libshm.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/version.h>

#include <optional>

namespace opguard {

namespace autograd = torch::autograd;

/// Id of the autograd graph task active on this thread, -1 without one.
inline std::int64_t graph_task_id() { return autograd::get_current_graph_task_id(); }

/// The autograd node being evaluated on this thread, or null; keeps it alive.
inline auto current_node() { return autograd::get_current_node(); }

/// The variable into whose gradient an AccumulateGrad node adds, or null for any other node.
inline const c10::TensorImpl* accumulated_variable(const autograd::Node* node) {
  const auto* accumulate = dynamic_cast<const autograd::AccumulateGrad*>(node);
  return accumulate == nullptr ? nullptr : accumulate->variable.unsafeGetTensorImpl();
}

/// A whole number of 2^63 and more; nothing in releases whose IValue holds none. Pass 0 for `int`.
template <typename Value>
auto unsigned_number(const Value& value, int) -> std::optional<decltype(value.toUInt())> {
  return value.isUnsigned() ? std::optional(value.toUInt()) : std::nullopt;
}
template <typename Value>
std::optional<std::uint64_t> unsigned_number(const Value&, long) {
  return std::nullopt;
}

}  // namespace opguard
