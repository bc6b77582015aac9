#include "bind/tables.h"

#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include <array>
#include <exception>
#include <optional>
#include <tuple>

#include "bind/bind.h"
#include "common/check.h"
#include "recorder/arguments.h"

namespace py = pybind11;

namespace opguard::bind {

Tables tables_from(const py::dict& tables) {
  using Write = std::tuple<std::vector<std::string>, std::string, std::optional<std::string>>;
  Tables result;
  result.overwrites = tables["overwrites"].cast<std::set<std::string>>();
  result.copies = tables["copies"].cast<std::set<std::string>>();
  result.partial_writers = tables["partial_writers"].cast<std::set<std::string>>();
  result.not_events = tables["not_events"].cast<std::set<std::string>>();
  const auto writes = tables["undeclared_writes"].cast<std::map<std::string, Write>>();
  for (const auto& [name, write] : writes) {
    const auto& [arguments, how, switch_] = write;
    result.undeclared_writes[name] = {arguments, how, switch_.value_or("")};
  }
  result.c10d_writes = tables["c10d_writes"].cast<decltype(result.c10d_writes)>();
  result.c10d_no_inputs = tables["c10d_no_inputs"].cast<std::set<std::string>>();
  result.unset_outputs = tables["unset_outputs"].cast<decltype(result.unset_outputs)>();
  result.written_returns = tables["written_returns"].cast<decltype(result.written_returns)>();
  return result;
}

namespace {

py::dict parameter_dict(const Parameter& parameter, const Interner& interner) {
  py::dict result;
  result["name"] = parameter.name;
  result["holds_tensors"] = parameter.holds_tensors;
  result["read"] = parameter.read;
  result["written"] = parameter.written;
  result["declared"] = parameter.declared;
  result["input_slot"] = interner.text(StringKind::Slot, parameter.input_slot);
  result["output_slot"] = interner.text(StringKind::Slot, parameter.output_slot);
  return result;
}

/// Canonical arguments of a call that passes nothing but tensors.
std::string defaults(const Operator& op) {
  std::vector<c10::IValue> stack;
  for (const c10::Argument& argument : op.schema->arguments()) {
    stack.push_back(argument.default_value().value_or(c10::IValue()));
  }
  return canonical(op, c10::ArrayRef<const c10::IValue>(stack.data(), stack.size()));
}

py::dict describe_as_dict(const std::string& name, const std::string& overload,
                          const py::dict& tables) {
  const auto handle = c10::Dispatcher::singleton().findSchema({name, overload});
  OPGUARD_CHECK(handle.has_value(), "no operator with a schema: " + name + "." + overload);
  Interner interner;
  const auto op = describe(*handle, tables_from(tables), interner);
  constexpr std::array kKinds = {"event", "pass", "composite"};
  py::list parameters;
  for (const Parameter& parameter : op->parameters) {
    parameters.append(parameter_dict(parameter, interner));
  }
  py::dict result;
  result["name"] = op->name;
  result["schema_name"] = op->schema_name;
  result["kind"] = kKinds[static_cast<std::size_t>(op->kind)];
  result["parameters"] = parameters;
  result["random"] = op->random;
  result["void"] = op->is_void;
  result["partial"] = op->partial;
  result["copies"] = op->copies;
  result["declares_writes"] = op->declares_writes;
  result["collective"] = op->collective;
  result["unset_outputs"] = op->unset_outputs;
  result["written_returns"] = op->written_returns;
  result["returned_writes"] = op->returned_writes;
  result["switch_argument"] = op->switch_argument;
  result["from_root"] = op->from_root;
  result["may_view"] = op->may_view;
  result["generator_argument"] = op->generator_argument;
  result["device_argument"] = op->device_argument;
  result["group_argument"] = op->group_argument;
  result["root_argument"] = op->root_argument;
  result["sets_storage"] = op->sets_storage;
  result["waits"] = op->waits;
  result["autocast_cpu"] = op->autocast_cpu;
  result["autocast_cuda"] = op->autocast_cuda;
  result["operator"] = interner.text(StringKind::Operator, op->operator_id);
  result["defaults"] = defaults(*op);
  return result;
}

/// Calls that one thread made while a callback listened.
struct Heard {
  Heard(Tables tables) : operators(std::move(tables), interner) {}

  Interner interner;
  Operators operators;
  std::vector<std::pair<Operator*, StringId>> calls;
  int inside = 0;  ///< depth of calls within an event, which are none
  std::exception_ptr error;
};
thread_local Heard* heard = nullptr;

struct Inside : at::ObserverContext {};

std::unique_ptr<at::ObserverContext> call_begins(const at::RecordFunction& function) {
  if (heard == nullptr || heard->error != nullptr) {
    return nullptr;
  }
  try {
    Operator* const op = heard->operators.of(function);
    if (op == nullptr || op->kind != Kind::Event) {
      return nullptr;
    }
    if (heard->inside == 0) {
      const StringId id = arguments_id(*op, function.inputs(), heard->interner);
      // What is known of earlier calls must not change what a call is told.
      OPGUARD_CHECK(heard->interner.text(StringKind::Arguments, id) ==
                        canonical(*op, function.inputs()),
                    "two calls of " + op->name + " with one key");
      heard->calls.emplace_back(op, id);
    }
  } catch (...) {
    heard->error = std::current_exception();
    return nullptr;
  }
  ++heard->inside;
  return std::make_unique<Inside>();
}

void call_ends(const at::RecordFunction&, at::ObserverContext* context) {
  if (heard != nullptr && context != nullptr) {
    --heard->inside;
  }
}

std::vector<std::pair<std::string, std::string>> capture_arguments(const py::function& call,
                                                                   const py::dict& tables) {
  Heard mine(tables_from(tables));
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback(call_begins, call_ends).needsInputs(true));
  Heard* const outer = std::exchange(heard, &mine);
  try {
    call();
  } catch (...) {
    mine.error = std::current_exception();
  }
  heard = outer;
  at::removeCallback(handle);
  if (mine.error != nullptr) {
    std::rethrow_exception(mine.error);
  }
  std::vector<std::pair<std::string, std::string>> result;
  for (const auto& [op, id] : mine.calls) {
    result.emplace_back(op->name, mine.interner.text(StringKind::Arguments, id));
  }
  return result;
}

}  // namespace

void bind_operators(py::module_& module) {
  module.def("describe", &describe_as_dict, py::arg("name"), py::arg("overload"),
             py::arg("tables"), "Facts about an operator of the dispatcher. For tests.");
  module.def("capture_arguments", &capture_arguments, py::arg("call"), py::arg("tables"),
             "Outermost events that `call()` makes on this thread: operator and canonical "
             "arguments. For tests.");
}

}  // namespace opguard::bind
