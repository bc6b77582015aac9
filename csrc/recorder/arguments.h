// Arguments that are no tensors, in one canonical text a value (DESIGN section 3): the same text as
// `opguard.capture.arguments` makes.
#pragma once

#include <optional>
#include <string>

#include "recorder/operators.h"

namespace opguard {

/// The number behind a tensor that stands for one (`x + 2`): an argument then, and no tensor.
std::optional<c10::IValue> wrapped_number(const at::Tensor& tensor);

/// Appends what tells `value` apart from others, types and bits included (1, 1.0, True, -0.0), to a
/// dictionary key. Equal keys have equal canonical texts. Tensors in it are skipped.
void append_key(std::string& key, const c10::IValue& value);

/// `alpha=1, dim=[0,1]`; what is shown but never compared follows a tab. `stack`: all arguments.
std::string canonical(const Operator& op, c10::ArrayRef<const c10::IValue> stack);

/// Id of the canonical arguments of a call. Needs the capture's lock: it fills `op.arguments`.
StringId arguments_id(Operator& op, c10::ArrayRef<const c10::IValue> stack, Interner& interner);

}  // namespace opguard
