#include "recorder/call.h"

#include <algorithm>

#include "recorder/arguments.h"
#include "recorder/reader.h"
#include "recorder/torch_c10d.h"

namespace opguard {

namespace {

/// Calls `visit(tensor, path)` for each defined tensor of a value; `path` holds list positions.
template <typename Visit>
void visit_tensors(const c10::IValue& value, c10::SmallVectorImpl<std::size_t>& path,
                   const Visit& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) {
      visit(value.toTensor(), path);
    }
    return;
  }
  if (!value.isList() && !value.isTuple()) {
    return;
  }
  const c10::ArrayRef<c10::IValue> items =
      value.isList() ? value.toListRef() : value.toTupleRef().elements().asArrayRef();
  path.push_back(0);
  for (std::size_t index = 0; index < items.size(); ++index) {
    path.back() = index;
    visit_tensors(items[index], path, visit);
  }
  path.pop_back();
}

void add(Call& call, const Parameter& parameter, const c10::IValue& value, Reader& reader) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (!tensor.defined() || wrapped_number(tensor)) {
      return;
    }
    if (parameter.read) {
      call.reads.push_back({parameter.input_slot, tensor});
    }
    if (parameter.written) {
      call.writes.push_back({parameter.output_slot, tensor});
    }
    return;
  }
  c10::SmallVector<std::size_t, 2> path;
  visit_tensors(value, path, [&](const at::Tensor& tensor, const auto& place) {
    if (wrapped_number(tensor)) {
      return;
    }
    const auto slot_of = [&](StringId slot) {
      for (const std::size_t index : place) {
        slot = reader.element_slot(slot, index);
      }
      return slot;
    };
    if (parameter.read) {
      call.reads.push_back({slot_of(parameter.input_slot), tensor});
    }
    if (parameter.written) {
      call.writes.push_back({slot_of(parameter.output_slot), tensor});
    }
  });
}

bool is_true(const c10::IValue& value) { return value.isBool() && value.toBool(); }

/// Drop writes that this call does not make.
void apply_switches(Call& call, c10::ArrayRef<const c10::IValue> stack) {
  const Operator& op = *call.op;
  if (op.switch_argument >= 0) {
    if (!is_true(stack[static_cast<std::size_t>(op.switch_argument)])) {
      const auto undeclared = [&op](const Slotted& write) {
        return std::none_of(op.parameters.begin(), op.parameters.end(), [&](const Parameter& p) {
          return p.declared && p.output_slot == write.slot;
        });
      };
      call.writes.erase(std::remove_if(call.writes.begin(), call.writes.end(), undeclared),
                        call.writes.end());
    }
  } else if (op.from_root) {
    if (call.is_root) {
      call.writes.clear();
    } else {
      call.reads.clear();
    }
  }
}

}  // namespace

void prepare(Call& call, c10::ArrayRef<const c10::IValue> stack) {
  const Operator& op = *call.op;
  if (op.from_root) {
    const auto root = stack[static_cast<std::size_t>(op.root_argument)].toInt();
    call.is_root = rank_of_group(stack[static_cast<std::size_t>(op.group_argument)]) == root;
  }
}

void sort(Call& call, c10::ArrayRef<const c10::IValue> stack, Reader& reader) {
  const std::vector<Parameter>& parameters = call.op->parameters;
  const std::size_t count = std::min(parameters.size(), stack.size());
  for (std::size_t index = 0; index < count; ++index) {
    if (parameters[index].holds_tensors || stack[index].isTensor()) {
      add(call, parameters[index], stack[index], reader);
    }
  }
  apply_switches(call, stack);
}

void tensors_in(const c10::IValue& value, std::vector<at::Tensor>& tensors) {
  c10::SmallVector<std::size_t, 2> path;
  visit_tensors(value, path,
                [&](const at::Tensor& tensor, const auto&) { tensors.push_back(tensor); });
}

}  // namespace opguard
