// What Python asks of the recorder: the final state, what happens outside of operators, the end.
#include "recorder/locked.h"
#include "recorder/recorder.h"

namespace opguard {

void Recorder::emit_tensors(StringId module,
                            const std::vector<std::pair<std::string, at::Tensor>>& parts) {
  Locked locked(*this, /*waits=*/false);
  std::vector<RecordRow> rows;
  for (const auto& [suffix, tensor] : parts) {
    const StringId slot = suffix.empty() ? returns_[0] : reader_.sub_slot(returns_[0], suffix);
    reader_.final(rows, slot, tensor);
  }
  emit_state(module, rows);
}

void Recorder::emit_bytes(StringId module, std::uint8_t dtype, const std::string& data) {
  Locked locked(*this, /*waits=*/false);
  std::vector<RecordRow> rows;
  reader_.bytes(rows, returns_[0], dtype, data.data(), data.size(), kOutput);
  emit_state(module, rows);
}

void Recorder::emit_missing(StringId module, const at::Tensor& tensor, Reason reason) {
  Locked locked(*this, /*waits=*/false);
  std::vector<RecordRow> rows;
  reader_.missing(rows, returns_[0], tensor, kOutput, reason);
  emit_state(module, rows);
}

void Recorder::emit_state(StringId module, std::vector<RecordRow>& outputs) {
  if (outputs.empty()) {
    return;
  }
  Call call;
  call.op = state_;
  call.place = {module, Phase::Other, kNoString};
  call.event.thread = program.here().ordinal;
  call.event.step = program.step();
  call.event.host_ns = time_ns();
  call.event.arguments = no_arguments_;
  emit(call, outputs, kState);
}

void Recorder::begin_pass() {
  Locked locked(*this, /*waits=*/false);
  reader_.begin_pass();
}

void Recorder::forget_values() {
  Locked locked(*this, /*waits=*/false);
  reader_.values.forget_all();
}

void Recorder::storage_resized(const c10::Storage& storage) {
  Locked locked(*this, /*waits=*/false);
  reader_.values.resized(storage);
}

void Recorder::exported(const at::Tensor& tensor) {
  Locked locked(*this, /*waits=*/false);
  reader_.make_external(tensor);
}

void Recorder::work_waits(const WorkPtr& work) {
  Locked locked(*this, /*waits=*/false);
  collectives_.waiting(work);
}

void Recorder::work_waited(const WorkPtr& work, bool arrived) {
  Locked locked(*this, /*waits=*/false);
  collectives_.waited(work, arrived);
}

void Recorder::finish_collectives() {
  Locked locked(*this, /*waits=*/false);
  locked.poll_collectives();
  collectives_.finish_all();
}

void Recorder::cut() {
  Locked locked(*this, /*waits=*/false);
  rows.cut();
}

void Recorder::close() {
  rows.close();
  Locked locked(*this, /*waits=*/false);
  collectives_.abandon();
  reader_.values.forget_all();
}

void Recorder::fail(const std::string& why) {
  disarm();
  const std::lock_guard<std::mutex> guard(failure_mutex_);
  if (failure_.empty()) {
    failure_ = why;
  }
}

std::string Recorder::failure() const {
  const std::lock_guard<std::mutex> guard(failure_mutex_);
  return failure_;
}

std::int64_t Recorder::foreign_values() {
  Locked locked(*this, /*waits=*/false);
  return foreign_values_;
}

std::array<std::uint64_t, kReasons> Recorder::unfingerprinted() {
  Locked locked(*this, /*waits=*/false);
  return reader_.unfingerprinted;
}

}  // namespace opguard
