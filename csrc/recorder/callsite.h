// Where in the program an operator was called: the Python frames, interned.
//
// A stack is looked up by the identities of its code objects and instructions; only a new one is
// turned into file, line and function. Code objects are kept, so that an identity is never reused;
// frames are not, since they would keep the program's locals alive.
// Everything here needs the interpreter lock (GIL), and only the C API is used: no bytecode runs
// and nothing gives the lock away, so that a walk sees one state of the program.
#pragma once

#include <Python.h>

#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>
#include <vector>

#include "recorder/strings.h"

namespace opguard {

constexpr int kMostFrames = 24;

/// A Python stack, and what its frames tell of the phase.
struct Site {
  StringId stack = kNoString;
  bool in_step = false;      ///< a frame of `Optimizer.step`'s wrapper is on it, at any depth
  bool recomputes = false;   ///< a checkpoint's frame stands above the autograd engine's
  bool in_engine = false;    ///< its innermost frame is the autograd engine's, or it has none: no
                             ///< Python runs inside
};

/// Which of a site's flags is needed: `in_step`, `recomputes`. What only frames beyond the first
/// `kMostFrames` tell differs between calls that share those; it is not kept, and only looked for
/// when asked for.
enum class Ask : std::uint8_t { Stack, Step, Recomputation, Everything };

/// Interns Python stacks of this process. All methods need the GIL and throw nothing but
/// `std::bad_alloc`; an error of the interpreter is cleared and the frame left out.
class CallSites {
 public:
  /// `package`: folder of opguard, whose frames are left out. `home`: replaced by `~`. `engine`,
  /// `step`: code objects of the frame below the autograd engine and around `Optimizer.step`, or
  /// null. `checkpoint`: end of the file name of checkpoint's frames.
  CallSites(Interner& interner, std::string package, std::string home, PyObject* engine,
            PyObject* step, const std::string& checkpoint);
  ~CallSites();
  CallSites(const CallSites&) = delete;
  CallSites& operator=(const CallSites&) = delete;

  /// The stack of this thread. Of one whose innermost frame is the engine's only that is told.
  Site here(Ask ask = Ask::Everything);
  /// The same, in full also below the engine.
  Site whole(Ask ask = Ask::Everything);

 private:
  struct FrameKey {
    std::uintptr_t code;
    std::intptr_t instruction;  // offset of its last instruction in bytes
    bool operator==(const FrameKey& other) const {
      return code == other.code && instruction == other.instruction;
    }
  };
  /// Innermost first, at most `kMostFrames`.
  struct StackKey {
    const FrameKey* frames;
    std::size_t size;
    std::size_t mixed;  // of all frames
    bool operator==(const StackKey& other) const;
  };
  struct KeyHash {
    std::size_t operator()(const FrameKey& key) const;
    std::size_t operator()(const StackKey& key) const { return key.mixed; }
  };

  struct Frame {
    StringId id = kNoString;  // that of one which is no part of the program
    bool in_checkpoint = false;
  };
  struct Stack {
    Site site;
    bool meets_engine = false;  // what stands further out recomputes nothing
  };

  Site walk(bool stop_at_engine, Ask ask);
  const Stack& enter(const StackKey& key);
  const Frame& enter(const FrameKey& key);
  StringId describe(const FrameKey& key);
  bool in_checkpoint(PyObject* code) const;
  Site look_further(const Stack& stack, Ask ask, PyFrameObject* outermost) const;

  Interner& interner_;
  std::string package_, home_;
  PyObject* engine_;
  PyObject* step_;
  PyObject* checkpoint_;
  std::unordered_map<StackKey, Stack, KeyHash> stacks_;
  std::deque<std::vector<FrameKey>> stack_keys_;  // what keys of stacks_ point to
  std::unordered_map<FrameKey, Frame, KeyHash> frames_;  // each holds a reference to its code
};

}  // namespace opguard
