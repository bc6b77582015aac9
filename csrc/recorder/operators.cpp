#include "recorder/operators.h"

#include <array>
#include <cstring>
#include <string_view>
#include <utility>

namespace opguard {

namespace {

constexpr const char* kReceives = "w";
constexpr const char* kFromRoot = "root";

struct Names {
  std::string schema;  // aten::addmm
  std::string space;   // aten
  std::string base;    // addmm
};

Names split(const c10::FunctionSchema& schema) {
  const std::string& name = schema.name();
  const std::size_t colons = name.find("::");
  if (colons == std::string::npos) {
    return {name, name, ""};
  }
  return {name, name.substr(0, colons), name.substr(colons + 2)};
}

/// Writes that the schema does not declare.
struct Undeclared {
  std::map<std::string, std::string> how;  // by argument
  std::string switch_;
};

Undeclared undeclared(const Names& names, const Tables& tables) {
  Undeclared writes;
  if (names.space == "c10d") {
    const auto found = tables.c10d_writes.find(names.base);
    if (found != tables.c10d_writes.end()) {
      writes.how.insert(found->second.begin(), found->second.end());
    }
    return writes;
  }
  const auto found = tables.undeclared_writes.find(names.schema);
  if (found != tables.undeclared_writes.end()) {
    for (const std::string& argument : found->second.arguments) {
      writes.how.emplace(argument, found->second.how);
    }
    writes.switch_ = found->second.switch_;
  }
  return writes;
}

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

Parameter parameter(const c10::Argument& argument, const Undeclared& writes, bool overwrites,
                    bool no_inputs, Interner& interner) {
  const bool declared = is_written(argument);
  const auto found = writes.how.find(argument.name());
  const bool listed = found != writes.how.end();
  const bool replaced = declared && (overwrites || argument.kwarg_only());
  Parameter result;
  result.name = argument.name();
  result.holds_tensors = argument.type()->annotation_str().find("Tensor") != std::string::npos;
  result.read = !(replaced || (listed && found->second == kReceives) || no_inputs);
  result.written = declared || listed;
  result.declared = declared && !listed;
  result.input_slot = interner.intern(StringKind::Slot, result.name);
  result.output_slot = interner.intern(StringKind::Slot, result.name + "!");
  return result;
}

Kind kind(const c10::OperatorHandle& handle, const Names& names, const Tables& tables) {
  const bool symbolic = (names.space == "aten" || names.space == "prim") &&
                        names.base.rfind("sym_", 0) == 0;
  if (tables.not_events.count(names.schema) != 0 || names.space == "profiler" || symbolic ||
      handle.hasTag(at::Tag::inplace_view)) {
    return Kind::Pass;
  }
  const bool own = handle.hasKernelForDispatchKey(c10::DispatchKey::CPU) ||
                   handle.hasKernelForDispatchKey(c10::DispatchKey::CUDA);
  const bool composite =
      handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
  return composite && !own ? Kind::Composite : Kind::Event;
}

/// True for `empty…` and `new_empty…`.
bool is_void(const Names& names) {
  const std::size_t start = names.base.find_first_not_of('_');
  if (names.space != "aten" || start == std::string::npos) {
    return false;
  }
  return names.base.compare(start, 5, "empty") == 0 ||
         names.base.compare(start, 9, "new_empty") == 0;
}

bool wrapped_by(const c10::OperatorHandle& handle, c10::DispatchKey autocast) {
  return handle.hasKernelForDispatchKey(autocast) && !handle.isKernelFallthroughKernel(autocast);
}

std::vector<int> listed(const std::map<std::string, std::vector<int>>& table,
                        const std::string& name) {
  const auto found = table.find(name);
  return found == table.end() ? std::vector<int>() : found->second;
}

int position(const Operator& op, const std::string& name) {
  for (std::size_t i = 0; i < op.parameters.size(); ++i) {
    if (op.parameters[i].name == name) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

void describe_arguments(Operator& op, const Names& names, const Tables& tables,
                        Interner& interner) {
  const bool aten = names.space == "aten";
  const bool c10d = names.space == "c10d";
  const Undeclared writes = undeclared(names, tables);
  const bool overwrites = aten && tables.overwrites.count(names.base) != 0;
  const bool no_inputs = c10d && tables.c10d_no_inputs.count(names.base) != 0;
  bool any_written = false;
  for (const c10::Argument& argument : op.schema->arguments()) {
    op.parameters.push_back(parameter(argument, writes, overwrites, no_inputs, interner));
    op.declares_writes |= op.parameters.back().declared;
    any_written |= op.parameters.back().written;
  }
  bool any_alias = false;
  for (const c10::Argument& value : op.schema->returns()) {
    op.returned_writes.push_back(is_written(value));
    any_alias |= value.alias_info() != nullptr;
  }
  op.may_view = any_alias && !any_written;
  for (const auto& write : writes.how) {
    op.from_root |= c10d && write.second == kFromRoot;
  }
  op.switch_argument = position(op, writes.switch_);
  op.generator_argument = position(op, "generator");
  op.device_argument = position(op, "device");
  op.group_argument = position(op, "process_group");
  op.root_argument = position(op, "root_rank");
}

}  // namespace

std::unique_ptr<Operator> describe(const c10::OperatorHandle& handle, const Tables& tables,
                                   Interner& interner) {
  auto op = std::make_unique<Operator>();
  op->schema = std::make_unique<const c10::FunctionSchema>(handle.schema());
  const Names names = split(*op->schema);
  const std::string& overload = op->schema->overload_name();
  const bool aten = names.space == "aten";
  op->name = names.space + "." + names.base + "." + (overload.empty() ? "default" : overload);
  op->operator_id = interner.intern(StringKind::Operator, op->name);
  op->schema_name = names.schema;
  op->kind = kind(handle, names, tables);
  describe_arguments(*op, names, tables, interner);
  op->random = handle.hasTag(at::Tag::nondeterministic_seeded);
  op->is_void = is_void(names);
  op->partial = aten && tables.partial_writers.count(names.base) != 0;
  op->copies = aten && tables.copies.count(names.base) != 0;
  op->collective = names.space == "c10d" || names.space == "_c10d_functional" ||
                   names.space == "_c10d_functional_autograd";
  op->unset_outputs = listed(tables.unset_outputs, names.schema);
  op->written_returns = listed(tables.written_returns, names.schema);
  op->sets_storage = names.schema == "aten::set_";
  op->waits = names.schema == "_c10d_functional::wait_tensor";
  op->autocast_cpu = wrapped_by(handle, c10::DispatchKey::AutocastCPU);
  op->autocast_cuda = wrapped_by(handle, c10::DispatchKey::AutocastCUDA);
  return op;
}

namespace {

/// What a thread remembers of an operator: the address of the schema's own name, and when that was
/// so. A generation belongs to one `Operators`, and ends before a schema is freed.
struct Remembered {
  const char* name;
  std::uint64_t generation;
  Operator* found;
};

// A training step calls some hundred operators. Trivial, so that operators called while a thread
// ends find it too.
constexpr std::size_t kPlaces = 1024;
constexpr std::size_t kTries = 4;
thread_local std::array<Remembered, kPlaces> remembered;

std::atomic<std::uint64_t> last_generation{0};

std::uint64_t next_generation() { return last_generation.fetch_add(1) + 1; }

std::size_t place(const char* name, std::size_t attempt) {
  const auto address = reinterpret_cast<std::uintptr_t>(name);
  // Allocations are aligned to 16; the multiplier is the golden ratio's, for the upper bits.
  const std::uint64_t spread = (std::uint64_t{address} >> 4) * 0x9E3779B97F4A7C15u;
  return ((spread >> 40) + attempt) % kPlaces;
}

void remember(const Remembered& known) {
  for (std::size_t attempt = 0; attempt < kTries; ++attempt) {
    Remembered& other = remembered[place(known.name, attempt)];
    if (other.generation != known.generation) {
      other = known;
      return;
    }
  }
  remembered[place(known.name, 0)] = known;
}

}  // namespace

/// What the dispatcher told since an operator was last looked for.
struct Operators::Registrations {
  void dropped(const c10::OperatorHandle& handle) {
    const std::lock_guard<std::mutex> lock(mutex);
    gone.push_back(c10::toString(handle.operator_name()));
    generation.store(next_generation(), std::memory_order_release);
  }
  std::vector<std::string> take() {
    const std::lock_guard<std::mutex> lock(mutex);
    return std::exchange(gone, {});
  }

  std::atomic<std::uint64_t> generation{next_generation()};
  std::mutex mutex;  // a leaf: it is taken under the dispatcher's
  std::vector<std::string> gone;
};

/// Called under the dispatcher's lock, before the schema is freed.
struct Operators::Listener : c10::OpRegistrationListener {
  explicit Listener(std::shared_ptr<Registrations> registrations)
      : registrations(std::move(registrations)) {}

  void onOperatorRegistered(const c10::OperatorHandle&) override {}
  void onOperatorDeregistered(const c10::OperatorHandle& handle) override {
    registrations->dropped(handle);
  }

  std::shared_ptr<Registrations> registrations;
};

Operators::Operators(Tables tables, Interner& interner)
    : tables_(std::move(tables)),
      interner_(interner),
      registrations_(std::make_shared<Registrations>()),
      listening_(c10::Dispatcher::singleton().addRegistrationListener(
          std::make_unique<Listener>(registrations_))) {}

Operators::~Operators() = default;

Operator* Operators::of(const at::RecordFunction& function) {
  const char* name = function.name();
  const std::uint64_t generation = registrations_->generation.load(std::memory_order_acquire);
  for (std::size_t attempt = 0; attempt < kTries; ++attempt) {
    const Remembered& known = remembered[place(name, attempt)];
    if (known.name == name && known.generation == generation) {
      // A string that is no operator's lies elsewhere than a live schema's; its text proves it.
      if (known.found->schema_name == name) {
        return known.found;
      }
      break;
    }
  }
  const auto operator_name = function.operator_name();
  if (!operator_name.has_value()) {
    return nullptr;
  }
  const auto handle = c10::Dispatcher::singleton().findSchema(*operator_name);
  if (!handle.has_value()) {
    return nullptr;
  }
  Operator* found = find(*handle);
  if (name == handle->schema().name().c_str()) {  // other schemas may be freed at any time
    remember({name, generation, found});
  }
  return found;
}

Operator* Operators::find(const c10::OperatorHandle& handle) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const std::string& gone : registrations_->take()) {
    const auto known = known_.find(gone);
    if (known != known_.end()) {
      kept_.push_back(std::move(known->second));
      known_.erase(known);
    }
  }
  std::unique_ptr<Operator>& known = known_[c10::toString(handle.operator_name())];
  if (known == nullptr) {
    known = describe(handle, tables_, interner_);
  }
  return known.get();
}

Operator* Operators::without_schema(const std::string& name) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::unique_ptr<Operator>& known = named_[name];
  if (known == nullptr) {
    known = std::make_unique<Operator>();
    known->name = known->schema_name = name;
    known->operator_id = interner_.intern(StringKind::Operator, name);
  }
  return known.get();
}

}  // namespace opguard
