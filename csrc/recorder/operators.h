// What an operator writes, overwrites, leaves unset or ignores, cached per schema.
//
// The tables are those of `opguard.capture.operators` and come from there; a test holds
// `describe` of both languages to the same answers for every operator that torch has.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "recorder/strings.h"
#include "recorder/torch_headers.h"

namespace opguard {

enum class Kind : std::uint8_t {
  Event,
  Pass,       ///< runs, leaves no event
  Composite,  ///< the inner calls are the events
};

/// The Python tables, by their names there.
struct Tables {
  struct UndeclaredWrite {
    std::vector<std::string> arguments;
    std::string how;     ///< "rw", "w" or "root"
    std::string switch_; ///< argument that switches the write, or empty
  };
  std::set<std::string> overwrites, copies, partial_writers, not_events;
  std::map<std::string, UndeclaredWrite> undeclared_writes;                       // by schema name
  std::map<std::string, std::vector<std::pair<std::string, std::string>>> c10d_writes;
  std::set<std::string> c10d_no_inputs;
  std::map<std::string, std::vector<int>> unset_outputs, written_returns;         // by schema name
};

/// One argument of an operator's schema.
struct Parameter {
  std::string name;
  bool holds_tensors = false;
  bool read = false;      ///< its bytes before the call are an input
  bool written = false;
  bool declared = false;  ///< the schema alone says that it is written
  StringId input_slot = kNoString;
  StringId output_slot = kNoString;  ///< that of `name!`
};

/// Facts about one overload, looked up once per call.
struct Operator {
  std::string name;         ///< `aten.addmm.default`
  std::string schema_name;  ///< `aten::addmm`
  Kind kind = Kind::Event;
  std::vector<Parameter> parameters;  ///< in schema order; empty for those without schema
  bool random = false;      ///< tagged `nondeterministic_seeded`
  bool is_void = false;     ///< its outputs are memory that nothing wrote
  bool partial = false;     ///< its writes may leave elements unwritten
  bool copies = false;
  bool declares_writes = false;
  bool collective = false;
  std::vector<int> unset_outputs;
  std::vector<int> written_returns;   ///< views of an argument, which it has written
  std::vector<bool> returned_writes;  ///< per return: it is the written argument itself
  int switch_argument = -1;           ///< argument that switches undeclared writes on
  bool from_root = false;
  bool may_view = false;    ///< may return a view, writes nothing
  int generator_argument = -1;
  int device_argument = -1;
  int group_argument = -1;      ///< `process_group`
  int root_argument = -1;       ///< `root_rank`
  bool sets_storage = false;    ///< `aten::set_`
  bool waits = false;           ///< `_c10d_functional::wait_tensor`
  /// Backends whose autocast kernel wraps it: its nested casts and the nested call are the events.
  bool autocast_cpu = false, autocast_cuda = false;
  StringId operator_id = kNoString;
  /// A copy: the dispatcher drops its own when the operator is deregistered. Null: without schema.
  std::unique_ptr<const c10::FunctionSchema> schema;
  /// Canonical arguments already seen: raw values, see arguments.h, to string id.
  std::unordered_map<std::string, StringId> arguments;
  std::size_t arguments_bytes = 0;  ///< of the keys in it
  std::string arguments_key;        ///< room in which the key of a call is made
};

/// Facts about an overload that the dispatcher has. Slots and name are interned.
std::unique_ptr<Operator> describe(const c10::OperatorHandle& handle, const Tables& tables,
                                   Interner& interner);

/// The operators met so far. `of` may be called by any thread; almost always it takes no lock.
class Operators {
 public:
  Operators(Tables tables, Interner& interner);
  ~Operators();
  Operators(const Operators&) = delete;
  Operators& operator=(const Operators&) = delete;

  /// Facts about the operator of a record-function call; null if it is none (`autograd::…`). They
  /// stay where they are until this object is destroyed.
  Operator* of(const at::RecordFunction& function);
  /// One without schema: final state, compiled graphs.
  Operator* without_schema(const std::string& name);

 private:
  struct Registrations;
  struct Listener;
  Operator* find(const c10::OperatorHandle& handle);

  const Tables tables_;
  Interner& interner_;
  std::mutex mutex_;  // a leaf, but for the interner's and that of registrations_
  std::unordered_map<std::string, std::unique_ptr<Operator>> known_;  // by name with overload
  std::unordered_map<std::string, std::unique_ptr<Operator>> named_;
  std::vector<std::unique_ptr<Operator>> kept_;  // deregistered ones: others may still hold them
  std::shared_ptr<Registrations> registrations_;
  c10::RegistrationHandleRAII listening_;
};

}  // namespace opguard
