#include "recorder/recorder.h"

#include <algorithm>
#include <ctime>
#include <utility>

#include "common/check.h"
#include "recorder/arguments.h"
#include "recorder/locked.h"

namespace opguard {

namespace {

/// A plain tensor of the storage, or a list of such.
bool views(const c10::IValue& value, const c10::StorageImpl* storage) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    return tensor.defined() && traits(tensor).plain && storage_key(tensor) == storage;
  }
  if (!value.isTensorList() || value.toListRef().empty()) {
    return false;
  }
  const auto items = value.toListRef();
  return std::all_of(items.begin(), items.end(),
                     [storage](const c10::IValue& item) { return views(item, storage); });
}

/// A declared view that is one: of its first argument, or several of it. Nothing is read: a view of
/// what a collective has in flight does not touch it.
bool is_plain_view(const Call& call, Results result) {
  if (result.size() != 1 || call.stack.empty() || !call.stack[0].isTensor()) {
    return false;
  }
  const at::Tensor& source = call.stack[0].toTensor();
  return source.defined() && traits(source).plain && views(result[0], storage_key(source));
}

bool has_data(Results result) {
  std::vector<at::Tensor> tensors;
  for (const c10::IValue& value : result) {
    tensors_in(value, tensors);
  }
  return std::any_of(tensors.begin(), tensors.end(),
                     [](const at::Tensor& tensor) { return !traits(tensor).dataless; });
}

}  // namespace

std::uint64_t time_ns() {
  std::timespec now{};
  std::timespec_get(&now, TIME_UTC);
  return static_cast<std::uint64_t>(now.tv_sec) * 1000000000u +
         static_cast<std::uint64_t>(now.tv_nsec);
}

bool is_number(const c10::IValue& value) {
  return value.isBool() || value.isInt() || value.isDouble() || value.isComplexDouble();
}

Recorder::Recorder(std::shared_ptr<Interner> interner, std::unique_ptr<CallSites> sites,
                   Tables tables, Mode mode)
    : operators(std::move(tables), *interner),
      program(*sites, interner->intern(StringKind::Module, ""),
              interner->intern(StringKind::Stack, "[]")),
      rows(*interner),
      compiled_graph(operators.without_schema("compiled.inductor")),
      mode(mode),
      interner_(std::move(interner)),
      sites_(std::move(sites)),
      reader_(*interner_, mode),
      collectives_([this](PendingCollective& pending, bool ready) {
        finish(*pending.call, Results(pending.result.data(), pending.result.size()), ready);
      }),
      state_(operators.without_schema("opguard.state")),
      rng_slot_(interner_->intern(StringKind::Slot, "rng")),
      graph_slot_(interner_->intern(StringKind::Slot, "args")),
      no_arguments_(interner_->intern(StringKind::Arguments, "")) {
  for (std::size_t index = 0; index < returns_.size(); ++index) {
    returns_[index] = interner_->intern(StringKind::Slot, std::to_string(index));
  }
}

// One call

void Recorder::begin(Call& call) {
  ThreadPlace& here = program.here();
  call.place = program.locate(here);
  call.event.thread = here.ordinal;
  call.event.step = program.step();
  call.event.host_ns = time_ns();
}

bool Recorder::before(Call& call, c10::ArrayRef<const c10::IValue> stack) {
  begin(call);
  if (call.op->random) {
    read_generator(call, stack);
  }
  prepare(call, stack);
  Locked locked(*this);
  locked.poll_collectives();
  sort(call, stack, reader_);
  if (!call.writes.empty() && traits(call.writes.front().tensor).dataless) {
    return false;
  }
  call.event.arguments = arguments_id(*call.op, stack, *interner_);
  if (call.op->waits) {  // what it waits for is not read before
    for (const Slotted& read : call.reads) {
      call.storages.push_back(storage_key(read.tensor));
    }
    return true;
  }
  if (collectives_.any()) {
    collectives_.touch(call);
  }
  read_inputs(call);
  return true;
}

void Recorder::read_inputs(Call& call) {
  reader_.tidy();
  for (const Slotted& read : call.reads) {
    reader_.input(call, read.slot, read.tensor);
  }
  reader_.generator(call, rng_slot_);
}

void Recorder::read_generator(Call& call, c10::ArrayRef<const c10::IValue> stack) {
  const Operator& op = *call.op;
  at::Generator generator;
  if (op.generator_argument >= 0) {
    const c10::IValue& given = stack[static_cast<std::size_t>(op.generator_argument)];
    if (given.isGenerator()) {  // other libraries may call anything by that name
      generator = given.toGenerator();
    }
  }
  if (!generator.defined()) {
    std::vector<at::Tensor> tensors;
    for (const c10::IValue& value : stack) {
      tensors_in(value, tensors);
      if (!tensors.empty()) {
        break;
      }
    }
    c10::Device device = tensors.empty() ? c10::Device(c10::kCPU) : tensors.front().device();
    if (tensors.empty() && op.device_argument >= 0) {
      const c10::IValue& given = stack[static_cast<std::size_t>(op.device_argument)];
      device = given.isDevice() ? given.toDevice() : device;
    }
    if (!device.is_cpu()) {
      return;
    }
    generator = at::detail::getDefaultCPUGenerator();
  }
  if (!generator.device().is_cpu()) {
    return;
  }
  const std::lock_guard<std::mutex> guard(generator.mutex());
  const at::Tensor state = generator.get_state();
  const auto* data = state.const_data_ptr<std::uint8_t>();
  call.generator.assign(data, data + state.nbytes());
}

void Recorder::after(std::unique_ptr<Call>& call, Results result) {
  ThreadPlace& here = program.here();
  if (Program::made_nodes(here)) {
    program.note_nodes(here, call->place);
  }
  if (call->dataless && !has_data(result)) {
    return;
  }
  Locked locked(*this);
  if (call->op->waits) {
    arrived(*call);
  } else if (call->op->collective) {
    collectives_.called(call, result);
  } else if (!call->writes.empty() || !is_view(*call, result)) {
    finish(*call, result, true);
  }
}

void Recorder::arrived(const Call& call) {
  for (const c10::StorageImpl* storage : call.storages) {
    if (Storage* known = reader_.values.find(storage)) {
      known->reread();
    }
  }
  collectives_.arrived(call);
}

void Recorder::after_maybe_view(std::unique_ptr<Call>& call,
                                Results result, bool raised) {
  if (!raised && is_plain_view(*call, result)) {
    ThreadPlace& here = program.here();
    if (Program::made_nodes(here)) {
      program.note_nodes(here, program.locate(here));
    }
    return;
  }
  // It wrote nothing, so that its inputs may still be read.
  const c10::ArrayRef<const c10::IValue> stack(call->stack.data(), call->stack.size());
  if (only_touches(*call->op)) {
    touch(*call, stack);
    return;
  }
  if (!before(*call, stack)) {
    return;
  }
  if (raised) {
    this->raised(*call);
  } else {
    after(call, result);
  }
}

void Recorder::raised(Call& call) {
  Locked locked(*this);
  for (const Slotted& write : call.writes) {
    reader_.forget(write.tensor, true);
  }
  note_silent_writes(call);
  if (!call.dataless) {
    emit(call, {}, kRaised);
  }
}

void Recorder::touch(Call& call, c10::ArrayRef<const c10::IValue> stack) {
  Locked locked(*this);
  locked.poll_collectives();
  sort(call, stack, reader_);
  collectives_.touch(call);
}

void Recorder::rebuilds(c10::ArrayRef<const c10::IValue> stack) {
  if (stack.size() > 1 && stack[0].isTensor() && stack[1].isStorage()) {
    Locked locked(*this);
    reader_.values.rebuilt(stack[0].toTensor(), stack[1].toStorage());
  }
}

void Recorder::passed(const at::Tensor& tensor) {
  Locked locked(*this);
  reader_.explain(tensor);
}

bool Recorder::before_graph(Call& call, std::vector<Slotted> reads, StringId arguments) {
  call.op = compiled_graph;
  call.event.arguments = arguments;
  call.reads = std::move(reads);
  const bool makes_event = !only_touches(*call.op);
  if (makes_event) {
    begin(call);
  }
  {
    Locked locked(*this);
    locked.poll_collectives();
    if (collectives_.any()) {
      collectives_.touch(call);
    }
    if (makes_event) {
      for (Slotted& read : call.reads) {
        read.slot = reader_.element_slot(graph_slot_, read.slot);
      }
      read_inputs(call);
    }
  }
  if (!makes_event) {
    return false;
  }
  for (const Slotted& read : call.reads) {
    if (traits(read.tensor).plain) {
      call.kept.push_back(read.tensor.storage().getWeakStorageImpl());
    }
  }
  call.reads.clear();  // the graph frees its inputs where it has no more use for them
  return true;
}

void Recorder::after_graph(Call& call, Results result) {
  ThreadPlace& here = program.here();
  if (Program::made_nodes(here)) {
    program.note_nodes(here, call.place);
  }
  if (call.dataless && !has_data(result)) {
    return;
  }
  Locked locked(*this);
  finish(call, result, true);
}

bool Recorder::is_view(const Call& call, Results result) {
  if (!call.op->written_returns.empty()) {
    return false;
  }
  std::vector<at::Tensor> tensors;
  for (const c10::IValue& value : result) {
    if (is_number(value)) {
      return false;
    }
    tensors_in(value, tensors);
  }
  return !tensors.empty() &&
         std::all_of(tensors.begin(), tensors.end(),
                     [&](const at::Tensor& tensor) { return aliases(call, tensor); });
}

bool Recorder::aliases(const Call& call, const at::Tensor& tensor) {
  const auto read = [&call](const at::Tensor& plain) {
    return std::find(call.storages.begin(), call.storages.end(), storage_key(plain)) !=
           call.storages.end();
  };
  const Traits kind = traits(tensor);
  if (kind.plain || kind.dataless) {
    return kind.dataless || read(tensor);
  }
  std::vector<Part> parts;
  return parts_of(tensor, parts) == Reason::Present &&
         std::all_of(parts.begin(), parts.end(),
                     [&read](const Part& part) { return read(part.tensor); });
}

// Rows

StringId Recorder::boundary(StringId op, const Place& place) {
  const std::array<StringId, 4> ids = {op, place.module, static_cast<StringId>(place.phase),
                                       place.stack};
  const auto found = boundaries_.find(ids);
  if (found != boundaries_.end()) {
    return found->second;
  }
  const std::string text =
      json_array({std::to_string(ids[0]), std::to_string(ids[1]), std::to_string(ids[2]),
                  ids[3] == kNoString ? "-1" : std::to_string(ids[3])});
  return boundaries_[ids] = interner_->intern(StringKind::Boundary, text);
}

void Recorder::emit(Call& call, const std::vector<RecordRow>& outputs, std::uint8_t flags) {
  call.event.boundary = boundary(call.op->operator_id, call.place);
  call.event.flags = flags;
  const Record start = rows.next_record();
  for (const Call::Unproduced& read : call.unproduced) {
    Storage* storage = reader_.values.find(read.storage);
    if (storage != nullptr && storage->first_reader == kNoRecord) {
      storage->first_reader = start + static_cast<Record>(read.input);
    }
    if (call.event.step != 0 && (call.inputs[read.input].flags & kFresh) != 0) {
      ++foreign_values_;
    }
  }
  const bool full = rows.append(call.event, call.inputs, outputs);
  const std::int64_t events = rows.events();
  events_.store(events, std::memory_order_relaxed);  // `begin` publishes it with its lock
  if (events == 1) {
    rows.begin();
  }
  if (full) {
    rows.cut();
  }
}

}  // namespace opguard
