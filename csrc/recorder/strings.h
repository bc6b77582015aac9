// String tables of one rank: each kind is numbered from 0 in order of first use.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "recorder/torch_headers.h"

namespace opguard {

/// In the order of `STRING_KINDS` in `opguard.model`; a test compares them.
enum class StringKind : std::uint8_t {
  Operator, Module, Frame, Stack, Arguments, Shape, Strides, Slot, Boundary
};
constexpr std::size_t kStringKinds = 9;
constexpr std::array<const char*, kStringKinds> kStringKindNames = {
    "operator", "module", "frame", "stack", "arguments", "shape", "strides", "slot", "boundary"};

using StringId = std::uint32_t;
/// `NONE_ID` of `opguard.model`.
constexpr StringId kNoString = 0xFFFFFFFFu;

/// Bytes of a kind after which those met so far are forgotten, for kinds that a program may make
/// ever more of (a learning rate that changes each step, views at ever other places): one that
/// comes again is stored again, under another id.
constexpr std::size_t kMostStringBytes = std::size_t{8} << 20;
/// What remembering one takes beside its own bytes, about.
constexpr std::size_t kStringCost = 128;

/// Hands out ids; what is new since the last `drain` goes to the store with a chunk. Its lock is a
/// leaf: nothing is called under it. Values are UTF-8; unpaired surrogates, which file names in
/// Python may hold, are code points like others (`surrogatepass`).
class Interner {
 public:
  struct NewString {
    StringKind kind;
    StringId id;
    std::string value;
  };

  /// Id of `value`, new or not.
  StringId intern(StringKind kind, std::string_view value);
  /// The string behind an id. Throws `std::out_of_range` for an id that was not handed out, or is
  /// forgotten.
  std::string text(StringKind kind, StringId id) const;
  /// What was added since the last call, in order of first use.
  std::vector<NewString> drain();

 private:
  struct Table {
    std::unordered_map<std::string_view, StringId> ids;  // views into texts
    std::deque<std::string> texts;
    StringId first = 0;  ///< id of `texts[0]`
    std::size_t bytes = 0;
    void forget();
  };
  mutable std::mutex mutex_;
  std::array<Table, kStringKinds> tables_;
  std::vector<NewString> new_;
};

/// A JSON string of UTF-8 text, byte for byte what Python's `json.dumps` makes of it. Bytes that
/// are no UTF-8 are what `os.fsdecode` makes of them.
std::string json_string(std::string_view text);
/// A list of texts that are JSON already: `[1,"a"]`.
std::string json_array(std::initializer_list<std::string> items);
/// A list of numbers as it is stored: `[4,64]`.
std::string json_list(c10::IntArrayRef values);

}  // namespace opguard
