#include "recorder/callsite.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "common/check.h"

#if PY_VERSION_HEX < 0x030B0000
#include <frameobject.h>
#endif

namespace opguard {

namespace {

/// An operator may be called while an exception is set: it is put aside and given back.
class ErrorAside {
 public:
#if PY_VERSION_HEX >= 0x030C0000
  ErrorAside() : error_(PyErr_GetRaisedException()) {}
  ~ErrorAside() { PyErr_SetRaisedException(error_); }
#else
  ErrorAside() { PyErr_Fetch(&type_, &error_, &traceback_); }
  ~ErrorAside() { PyErr_Restore(type_, error_, traceback_); }
#endif
  ErrorAside(const ErrorAside&) = delete;
  ErrorAside& operator=(const ErrorAside&) = delete;

 private:
  PyObject* error_;
#if PY_VERSION_HEX < 0x030C0000
  PyObject* type_;
  PyObject* traceback_;
#endif
};

/// Python makes frame objects while it is asked for them, and before 3.12 an allocation may collect
/// garbage, which runs finalizers. Nobody sees the switch: the lock is held all the while.
class NoCollection {
 public:
#if PY_VERSION_HEX < 0x030C0000
  NoCollection() : enabled_(PyGC_Disable() != 0) {}
  ~NoCollection() {
    if (enabled_) {
      PyGC_Enable();
    }
  }
#else
  NoCollection() {}
#endif
  NoCollection(const NoCollection&) = delete;
  NoCollection& operator=(const NoCollection&) = delete;

#if PY_VERSION_HEX < 0x030C0000
 private:
  bool enabled_;
#endif
};

/// The code of a running frame, which keeps it.
PyObject* code_of(PyFrameObject* frame) {
  auto* code = reinterpret_cast<PyObject*>(PyFrame_GetCode(frame));
  Py_DECREF(code);
  return code;
}

std::intptr_t instruction_of(PyFrameObject* frame) {
#if PY_VERSION_HEX >= 0x030B0000
  return PyFrame_GetLasti(frame);
#else
  return static_cast<std::intptr_t>(frame->f_lasti) *
         static_cast<std::intptr_t>(sizeof(_Py_CODEUNIT));
#endif
}

/// Moves one call outwards. No frame is held for longer than that.
PyFrameObject* caller_of(PyFrameObject* frame) {
  PyFrameObject* caller = PyFrame_GetBack(frame);
  Py_DECREF(frame);
  return caller;
}

std::size_t mixed_with(std::size_t mixed, std::uintptr_t code, std::intptr_t instruction) {
  // An odd constant with well-spread bits: 2^64 / golden ratio.
  constexpr std::uint64_t kOdd = 0x9E3779B97F4A7C15u;
  const std::uint64_t word = code ^ (static_cast<std::uint64_t>(instruction) << 48);
  const std::uint64_t product = (mixed ^ word) * kOdd;
  return static_cast<std::size_t>(product ^ (product >> 32));
}

/// UTF-8 of a Python string; none after an error.
std::optional<std::string> utf8_of(PyObject* text) {
  PyObject* bytes = PyUnicode_AsEncodedString(text, "utf-8", "surrogatepass");
  if (bytes == nullptr) {
    PyErr_Clear();
    return std::nullopt;
  }
  std::string utf8(PyBytes_AS_STRING(bytes), static_cast<std::size_t>(PyBytes_GET_SIZE(bytes)));
  Py_DECREF(bytes);
  return utf8;
}

bool starts_with(std::string_view text, std::string_view start) {
  return text.substr(0, start.size()) == start;
}

}  // namespace

bool CallSites::StackKey::operator==(const StackKey& other) const {
  return mixed == other.mixed && size == other.size &&
         std::equal(frames, frames + size, other.frames);
}

std::size_t CallSites::KeyHash::operator()(const FrameKey& key) const {
  return mixed_with(0, key.code, key.instruction);
}

CallSites::CallSites(Interner& interner, std::string package, std::string home, PyObject* engine,
                     PyObject* step, const std::string& checkpoint)
    : interner_(interner),
      package_(std::move(package)),
      home_(std::move(home)),
      engine_(engine),
      step_(step),
      checkpoint_(PyUnicode_DecodeUTF8(checkpoint.data(),
                                       static_cast<Py_ssize_t>(checkpoint.size()), nullptr)) {
  if (checkpoint_ == nullptr) {
    PyErr_Clear();
    throw NativeError("the name of checkpoint's file is no text");
  }
  home_.push_back('/');
  Py_XINCREF(engine_);
  Py_XINCREF(step_);
}

CallSites::~CallSites() {
  for (const auto& [key, id] : frames_) {
    Py_DECREF(reinterpret_cast<PyObject*>(key.code));
  }
  Py_XDECREF(engine_);
  Py_XDECREF(step_);
  Py_DECREF(checkpoint_);
}

Site CallSites::here(Ask ask) { return walk(/*stop_at_engine=*/true, ask); }

Site CallSites::whole(Ask ask) { return walk(/*stop_at_engine=*/false, ask); }

Site CallSites::walk(bool stop_at_engine, Ask ask) {
  const ErrorAside error;
  const NoCollection collection;
  FrameKey frames[kMostFrames];
  StackKey key{frames, 0, 0};
  PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
  while (frame != nullptr) {
    PyObject* code = code_of(frame);
    if (stop_at_engine && key.size == 0 && code == engine_) {
      Py_DECREF(frame);
      Site site;
      site.in_engine = true;
      return site;
    }
    FrameKey& added = frames[key.size];
    added = {reinterpret_cast<std::uintptr_t>(code), instruction_of(frame)};
    key.mixed = mixed_with(key.mixed, added.code, added.instruction);
    if (++key.size == kMostFrames) {
      break;
    }
    frame = caller_of(frame);
  }
  const auto found = stacks_.find(key);
  const Stack& stack = found != stacks_.end() ? found->second : enter(key);
  return frame == nullptr ? stack.site : look_further(stack, ask, frame);
}

/// Takes the reference to `outermost`, the last frame of the key.
Site CallSites::look_further(const Stack& stack, Ask ask, PyFrameObject* outermost) const {
  Site site = stack.site;
  bool step = (ask == Ask::Step || ask == Ask::Everything) && !site.in_step;
  bool recomputation = (ask == Ask::Recomputation || ask == Ask::Everything) &&
                       !site.recomputes && !stack.meets_engine;
  PyFrameObject* frame = outermost;
  while (step || recomputation) {
    frame = caller_of(frame);
    if (frame == nullptr) {
      break;
    }
    PyObject* code = code_of(frame);
    if (step && code == step_) {
      site.in_step = true;
      step = false;
    }
    if (recomputation) {
      site.recomputes = code != engine_ && in_checkpoint(code);
      recomputation = code != engine_ && !site.recomputes;
    }
  }
  Py_XDECREF(frame);
  return site;
}

const CallSites::Stack& CallSites::enter(const StackKey& key) {
  Stack stack;
  Site& site = stack.site;
  std::string list = "[";
  site.in_step = step_ == nullptr;
  for (std::size_t depth = 0; depth < key.size; ++depth) {
    const Frame& frame = enter(key.frames[depth]);
    if (frame.id != kNoString) {
      if (list.size() > 1) {
        list.push_back(',');
      }
      list.append(std::to_string(frame.id));
    }
    auto* code = reinterpret_cast<PyObject*>(key.frames[depth].code);
    site.in_step = site.in_step || code == step_;
    stack.meets_engine = stack.meets_engine || code == engine_;
    site.recomputes = site.recomputes || (frame.in_checkpoint && !stack.meets_engine);
    site.in_engine = site.in_engine || (depth == 0 && code == engine_);
  }
  site.in_engine = site.in_engine || key.size == 0;
  site.stack = interner_.intern(StringKind::Stack, list + "]");
  stack_keys_.emplace_back(key.frames, key.frames + key.size);
  const StackKey kept{stack_keys_.back().data(), key.size, key.mixed};
  return stacks_.emplace(kept, stack).first->second;
}

const CallSites::Frame& CallSites::enter(const FrameKey& key) {
  const auto found = frames_.find(key);
  if (found != frames_.end()) {
    return found->second;
  }
  auto* code = reinterpret_cast<PyObject*>(key.code);
  Frame frame;
  frame.id = describe(key);
  frame.in_checkpoint = in_checkpoint(code);
  const Frame& entered = frames_.emplace(key, frame).first->second;
  Py_INCREF(code);
  return entered;
}

bool CallSites::in_checkpoint(PyObject* code) const {
  PyObject* file = reinterpret_cast<PyCodeObject*>(code)->co_filename;
  const Py_ssize_t matches = PyUnicode_Tailmatch(file, checkpoint_, 0, PY_SSIZE_T_MAX, 1);
  if (matches < 0) {
    PyErr_Clear();
  }
  return matches > 0;
}

StringId CallSites::describe(const FrameKey& key) {
  auto* code = reinterpret_cast<PyCodeObject*>(key.code);
#if PY_VERSION_HEX >= 0x030B0000
  const std::optional<std::string> name = utf8_of(code->co_qualname);
#else
  const std::optional<std::string> name = utf8_of(code->co_name);
#endif
  std::optional<std::string> file = utf8_of(code->co_filename);
  if (!file || !name || starts_with(*file, package_)) {
    return kNoString;
  }
  if (starts_with(*file, home_)) {
    std::string shown(1, '~');
    shown.append(*file, home_.size() - 1);
    file = std::move(shown);
  }
  const int line = PyCode_Addr2Line(code, static_cast<int>(key.instruction));
  return interner_.intern(
      StringKind::Frame,
      json_array({json_string(*file), std::to_string(std::max(line, 0)), json_string(*name)}));
}

}  // namespace opguard
