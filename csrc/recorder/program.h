// Module path, phase and call site of the operator that is being called on a thread.
//
// The Python hooks of `opguard.capture.modules` follow modules, optimizers and steps, and tell
// what they see to the calling thread's `ThreadPlace`, which only that thread touches.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "recorder/callsite.h"
#include "recorder/strings.h"
#include "recorder/torch_headers.h"

namespace opguard {

/// Position in `PHASES` of `opguard.model`.
enum class Phase : std::uint8_t { Other, Forward, Recompute, Backward, Optimizer };
constexpr std::array<const char*, 5> kPhaseNames = {"other", "forward", "recompute", "backward",
                                                    "optimizer"};

/// Where an operator call stands.
struct Place {
  StringId module = 0;
  Phase phase = Phase::Other;
  StringId stack = kNoString;
};

/// One thread's place in the program.
struct ThreadPlace {
  struct Module {
    StringId path;
    std::int64_t graph_task;  ///< active at entry, -1 without one
  };
  std::uint16_t ordinal = 0;
  /// Python runs on it: its frames may be walked. Never true for autograd's own threads.
  bool has_frames = false;
  bool is_known = false;  ///< whether it has frames is certain
  std::vector<Module> modules;  ///< outermost first
  std::size_t optimizers = 0;   ///< steps that are running
  std::uint64_t next_node = 0;  ///< sequence number that the next autograd node had when last seen
};

/// Forward sites kept for the backward pass of a program that never steps an optimizer.
constexpr std::size_t kMostSites = 1 << 18;
/// Parameters named between two sweeps for those that are gone.
constexpr std::size_t kSweepParameters = 4096;

/// The places of all threads, and the sites of forward calls for the backward pass.
class Program {
 public:
  Program(CallSites& sites, StringId no_module, StringId no_stack);

  /// This thread's place.
  ThreadPlace& here();
  /// This thread runs Python.
  void has_frames() {
    ThreadPlace& place = here();
    place.has_frames = place.is_known = true;
  }
  /// Place of the call that is about to be made on this thread. May take the GIL: never called
  /// under the capture's lock.
  Place locate(ThreadPlace& here);
  /// Autograd nodes were made since the last call: they belong to the call at `place`, unless they
  /// belong to an earlier one.
  void note_nodes(ThreadPlace& here, const Place& place);
  /// True if autograd nodes were made since `note_nodes`.
  static bool made_nodes(const ThreadPlace& here);

  void name_parameter(const at::Tensor& parameter, StringId path);
  void begin_step(std::int32_t step);
  std::int32_t step() const { return step_.load(std::memory_order_relaxed); }
  /// No two captures of a process have the same.
  std::uint64_t number() const { return number_; }

 private:
  struct ForwardSite {
    StringId module;
    StringId stack;
  };
  using Sites = std::unordered_map<std::uint64_t, ForwardSite>;

  Place in_backward(ThreadPlace& here, std::int64_t graph_task);
  std::optional<ForwardSite> forward_site(std::uint64_t thread, std::uint64_t node);
  StringId accumulation(const autograd::Node* node);
  static void look_for_frames(ThreadPlace& here);

  CallSites& sites_;
  const StringId no_module_;
  const StringId no_stack_;
  const std::uint64_t number_;  // tells captures apart in thread-local memory
  std::atomic<std::int32_t> step_{0};
  std::mutex mutex_;  // a leaf, for all below
  std::vector<std::unique_ptr<ThreadPlace>> threads_;
  std::unordered_map<std::uint64_t, Sites> forward_;  // by thread as autograd numbers them
  std::size_t forward_sites_ = 0;  // of all threads: a program may start a new one for each call
  struct Named {
    c10::weak_intrusive_ptr<c10::TensorImpl> parameter;
    StringId path;
  };
  std::unordered_map<const c10::TensorImpl*, Named> parameters_;
  std::size_t sweep_at_ = kSweepParameters;
};

}  // namespace opguard
