// Turns operator calls into events: what one capture knows, under one lock.
//
// Order of locks: the GIL first, then the capture's. Under the capture's lock nothing may take the
// GIL, and so no tensor, work or weak reference is let go of, since it may be a Python object's.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "recorder/call.h"
#include "recorder/callsite.h"
#include "recorder/collectives.h"
#include "recorder/operators.h"
#include "recorder/program.h"
#include "recorder/reader.h"
#include "recorder/rows.h"

namespace opguard {

/// Nanoseconds since 1970.
std::uint64_t time_ns();
/// A returned Python number, which is recorded by its bits.
bool is_number(const c10::IValue& value);

class Recorder {
 public:
  /// Takes the GIL's holder's references to code objects; see CallSites.
  Recorder(std::shared_ptr<Interner> interner, std::unique_ptr<CallSites> sites, Tables tables,
           Mode mode);

  // One call. None of these throws: a defect ends the capture.

  /// Read the inputs. False: the call makes no event.
  bool before(Call& call, c10::ArrayRef<const c10::IValue> stack);
  /// Read the outputs and write the event, unless the call was a pure view.
  void after(std::unique_ptr<Call>& call, Results result);
  /// A declared view has returned, or raised: if it copied, it is an event.
  void after_maybe_view(std::unique_ptr<Call>& call, Results result,
                        bool raised);
  /// The operator raised: the event has inputs only, and what it may have written is new.
  void raised(Call& call);
  /// A call that leaves no event of its own: it may touch what a collective has in flight.
  bool only_touches(const Operator& op) const {
    return mode == Mode::Collectives && !op.collective;
  }
  /// There are collectives in flight.
  bool touches() const { return collectives_.any(); }
  /// A call that is not captured may still touch what a collective has in flight.
  void touch(Call& call, c10::ArrayRef<const c10::IValue> stack);
  /// `set_` is about to be called.
  void rebuilds(c10::ArrayRef<const c10::IValue> stack);
  /// A call that makes no event changed a tensor's metadata.
  void passed(const at::Tensor& tensor);
  /// A compiled graph is about to run, with these values, which have positions for slots; the
  /// tensors of `result` are what it returned, in order. False: the call makes no event.
  bool before_graph(Call& call, std::vector<Slotted> reads, StringId arguments);
  void after_graph(Call& call, Results result);

  // From Python, with the GIL.

  void emit_tensors(StringId module, const std::vector<std::pair<std::string, at::Tensor>>& parts);
  void emit_bytes(StringId module, std::uint8_t dtype, const std::string& data);
  void emit_missing(StringId module, const at::Tensor& tensor, Reason reason);
  void begin_pass();
  void forget_values();
  void storage_resized(const c10::Storage& storage);
  void exported(const at::Tensor& tensor);
  void work_waits(const WorkPtr& work);
  void work_waited(const WorkPtr& work, bool arrived);
  void finish_collectives();
  /// Hand over what is waiting.
  void cut();
  /// Gives back what is held of the program's storages.
  void close();
  /// Whether calls are captured; nothing happens once the capture has failed or is over.
  void select(bool selected) {
    on.store(selected);
    if (!armed.load()) {
      on.store(false);
    }
  }
  /// Nothing is captured any more.
  void disarm() {
    armed.store(false);
    on.store(false);
  }
  /// The capture cannot go on.
  void fail(const std::string& why);
  std::string failure() const;

  std::int64_t events() const { return events_.load(std::memory_order_relaxed); }
  std::int64_t foreign_values();
  std::array<std::uint64_t, kReasons> unfingerprinted();

  Operators operators;
  Program program;
  Rows rows;
  Operator* const compiled_graph;
  std::atomic<bool> on{true};        ///< false outside the selected steps
  std::atomic<bool> armed{true};     ///< false for good once capture ends
  std::atomic<bool> stopped{false};  ///< the program is being ended
  std::atomic<std::int64_t> limit{INT64_MAX};
  const Mode mode;

 private:
  class Locked;
  void read_inputs(Call& call);
  void read_generator(Call& call, c10::ArrayRef<const c10::IValue> stack);
  bool is_view(const Call& call, Results result);
  bool aliases(const Call& call, const at::Tensor& tensor);
  void finish(Call& call, Results result, bool ready);
  /// A compiled graph may write its inputs silently.
  void note_silent_writes(const Call& call);
  void write_result(Call& call, std::vector<RecordRow>& outputs,
                    Results result, bool ready);
  void write_value(Call& call, std::vector<RecordRow>& outputs, StringId slot,
                   const c10::IValue& value, std::size_t index, bool ready);
  void write_tensor(Call& call, std::vector<RecordRow>& outputs, StringId slot,
                    const at::Tensor& tensor, Reader::Written written, bool ready);
  void emit(Call& call, const std::vector<RecordRow>& outputs, std::uint8_t flags);
  void emit_state(StringId module, std::vector<RecordRow>& rows);
  void write_number(std::vector<RecordRow>& outputs, StringId slot, const c10::IValue& value);
  void begin(Call& call);
  void arrived(const Call& call);
  StringId boundary(StringId op, const Place& place);

  std::shared_ptr<Interner> interner_;
  std::unique_ptr<CallSites> sites_;
  std::mutex mutex_;  // the capture's lock, for all below
  Reader reader_;
  Collectives collectives_;
  std::vector<RecordRow> outputs_;  // reused
  using BoundaryIds = std::array<StringId, 4>;  // operator, module, phase, stack
  struct BoundaryHash {
    std::size_t operator()(const BoundaryIds& ids) const {
      std::uint64_t sum = 0;
      for (const StringId id : ids) {
        sum = (sum ^ id) * fingerprint::kM;
        sum ^= sum >> 32;
      }
      return static_cast<std::size_t>(sum);
    }
  };
  std::unordered_map<BoundaryIds, StringId, BoundaryHash> boundaries_;
  Operator* const state_;
  const StringId rng_slot_, graph_slot_, no_arguments_;
  std::array<StringId, 64> returns_{};  // values past this many share the last one's slot
  std::int64_t foreign_values_ = 0;
  std::atomic<std::int64_t> events_{0};
  mutable std::mutex failure_mutex_;
  std::string failure_;
};

}  // namespace opguard
