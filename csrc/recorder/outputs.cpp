// From what an operator returned and wrote to the records of its event.
#include <algorithm>

#include "recorder/recorder.h"

namespace opguard {

namespace {

bool is_listed(const std::vector<int>& positions, std::size_t index) {
  return std::find(positions.begin(), positions.end(), static_cast<int>(index)) != positions.end();
}

}  // namespace

void Recorder::finish(Call& call, Results result, bool ready) {
  std::vector<RecordRow>& outputs = outputs_;
  outputs.clear();
  Reader::Written written;
  written.how = call.op->declares_writes ? Output::Declared : Output::Undeclared;
  for (const Slotted& write : call.writes) {
    write_tensor(call, outputs, write.slot, write.tensor, written, ready);
  }
  write_result(call, outputs, result, ready);
  note_silent_writes(call);
  emit(call, outputs, 0);
}

void Recorder::note_silent_writes(const Call& call) {
  if (call.op != compiled_graph) {
    return;
  }
  for (const c10::StorageImpl* storage : call.storages) {
    if (Storage* known = reader_.values.find(storage)) {
      known->may_be_written();
    }
  }
}

void Recorder::write_result(Call& call, std::vector<RecordRow>& outputs,
                            Results result, bool ready) {
  const std::vector<bool>& returned_writes = call.op->returned_writes;
  for (std::size_t index = 0; index < result.size(); ++index) {
    if (index < returned_writes.size() && returned_writes[index]) {
      continue;
    }
    const StringId slot = returns_[std::min(index, returns_.size() - 1)];
    write_value(call, outputs, slot, result[index], index, ready);
  }
}

void Recorder::write_value(Call& call, std::vector<RecordRow>& outputs, StringId slot,
                           const c10::IValue& value, std::size_t index, bool ready) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (!tensor.defined()) {
      return;
    }
    Reader::Written written;
    written.is_void = call.op->is_void || is_listed(call.op->unset_outputs, index);
    if (is_listed(call.op->written_returns, index)) {
      written.how = Output::Undeclared;
    }
    write_tensor(call, outputs, slot, tensor, written, ready);
  } else if (value.isList()) {
    const c10::ArrayRef<c10::IValue> items = value.toListRef();
    for (std::size_t position = 0; position < items.size(); ++position) {
      write_value(call, outputs, reader_.element_slot(slot, position), items[position], index,
                  ready);
    }
  } else if (is_number(value)) {
    write_number(outputs, slot, value);
  }
}

void Recorder::write_number(std::vector<RecordRow>& outputs, StringId slot,
                            const c10::IValue& value) {
  if (value.isBool()) {
    const std::uint8_t data = value.toBool() ? 1 : 0;
    reader_.bytes(outputs, slot, kPythonBool, &data, sizeof data, kOutput);
  } else if (value.isInt()) {
    const std::int64_t data = value.toInt();
    reader_.bytes(outputs, slot, kPythonInt, &data, sizeof data, kOutput);
  } else if (value.isDouble()) {
    const double data = value.toDouble();
    reader_.bytes(outputs, slot, kPythonFloat, &data, sizeof data, kOutput);
  } else {
    const c10::complex<double> data = value.toComplexDouble();
    reader_.bytes(outputs, slot, kPythonComplex, &data, sizeof data, kOutput);
  }
}

void Recorder::write_tensor(Call& call, std::vector<RecordRow>& outputs, StringId slot,
                            const at::Tensor& tensor, Reader::Written written, bool ready) {
  if (!ready) {
    reader_.forget(tensor, false);
    reader_.missing(outputs, slot, tensor, kOutput, Reason::InFlight);
    return;
  }
  Unset unset;
  written.partial = call.op->partial;
  if (call.op->copies && !call.reads.empty()) {
    unset = reader_.unset_elements(call.reads.back().tensor);
    written.is_void = false;
    written.unset = &unset;
  }
  reader_.output(outputs, slot, tensor, written, rows.next_record(), call);
}

}  // namespace opguard
