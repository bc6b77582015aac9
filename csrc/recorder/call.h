// One operator call on its way to an event: what its start found, kept until it has returned.
#pragma once

#include <cstdint>
#include <vector>

#include "recorder/operators.h"
#include "recorder/program.h"
#include "recorder/rows.h"
#include "recorder/values.h"

namespace opguard {

/// A tensor argument and the slot under which it is recorded.
struct Slotted {
  StringId slot;
  at::Tensor tensor;
};

/// What an operator returned.
using Results = c10::ArrayRef<const c10::IValue>;

struct Call {
  Operator* op = nullptr;
  Place place;
  EventRow event;
  std::vector<Slotted> reads;   ///< in argument order
  std::vector<Slotted> writes;  ///< slots end in `!`
  std::vector<RecordRow> inputs;
  std::vector<std::uint8_t> generator;  ///< state before the call, of random operators
  /// Storages that were read. No reference is held: compared as addresses while the call runs.
  c10::SmallVector<const c10::StorageImpl*, 4> storages;
  /// Storages that no event wrote, and which input read them. Valid until the call has ended.
  struct Unproduced {
    const c10::StorageImpl* storage;
    std::size_t input;
  };
  std::vector<Unproduced> unproduced;
  bool is_root = false;  ///< this process is the root of the collective
  /// It reads a tensor without data: an event only if it returns one with data.
  bool dataless = false;
  /// Storages whose addresses stay theirs though their tensors may be freed while the call runs.
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> kept;
  std::vector<c10::IValue> stack;  ///< all arguments, of calls that are sorted once they returned

  /// Empty, with the memory of its parts kept. Lets go of tensors: not under the capture's lock.
  void clear() {
    op = nullptr;
    reads.clear();
    writes.clear();
    inputs.clear();
    generator.clear();
    storages.clear();
    unproduced.clear();
    is_root = false;
    dataless = false;
    kept.clear();
    stack.clear();
  }
};

class Reader;

/// What has to be known of a call before the capture's lock is taken: the rank of a process group
/// may be asked of Python.
void prepare(Call& call, c10::ArrayRef<const c10::IValue> stack);

/// Fill `reads` and `writes` from all arguments of a prepared call, as the operator's facts say.
void sort(Call& call, c10::ArrayRef<const c10::IValue> stack, Reader& reader);

/// Append every tensor in a value or in nested lists of them.
void tensors_in(const c10::IValue& value, std::vector<at::Tensor>& tensors);

}  // namespace opguard
