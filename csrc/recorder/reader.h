// From a tensor at an operator's edge to its record: identity, fingerprint, producers. Everything
// here is called under the capture's lock.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "recorder/call.h"
#include "recorder/geometry.h"
#include "recorder/rows.h"
#include "recorder/values.h"

namespace opguard {

/// `Mode` of `opguard.model`.
enum class Mode : std::uint8_t { Trusted, Full, Collectives };

/// What makes a tensor an output.
enum class Output : std::uint8_t {
  Returned,    ///< a value of its own, unless its storage is an input's
  Declared,    ///< written as the schema says: its version counter moves
  Undeclared,
};

/// How a tensor can be read.
struct Traits {
  bool plain = false;     ///< strided, with a storage whose bytes are its elements
  bool dataless = false;  ///< meta and fake tensors: no record is made of them
  bool wrapper = false;   ///< asks Python of its shape and layout, which needs the GIL: never asked
  Bits bits = 0;
};
Traits traits(const at::Tensor& tensor);

/// The address that stands for a tensor's storage.
const c10::StorageImpl* storage_key(const at::Tensor& tensor);

/// A component of a sparse, nested or quantized tensor; see `fingerprint.tensor.components`.
struct Part {
  const char* suffix;
  at::Tensor tensor;
};
/// Its components, or why there are none. Calls operators, which no callback sees.
Reason parts_of(const at::Tensor& tensor, std::vector<Part>& parts);

/// Makes record rows; knows every storage.
class Reader {
 public:
  Reader(Interner& interner, Mode mode);

  /// Between two calls: forgets geometries, and with them what is known by them, where there are
  /// too many.
  void tidy();
  /// Append the records of a tensor that is about to be read.
  void input(Call& call, StringId slot, const at::Tensor& tensor);
  /// Append the record of a random generator's state that is about to be used.
  void generator(Call& call, StringId slot);

  struct Written {
    Output how = Output::Returned;
    bool is_void = false;       ///< memory that nothing wrote
    bool partial = false;       ///< the operator may have left elements unwritten
    const Unset* unset = nullptr;  ///< elements that the operator left as void as their source
  };
  /// Append the records of a tensor that `call` has just written. `first`: index that the event's
  /// first record will have.
  void output(std::vector<RecordRow>& rows, StringId slot, const at::Tensor& tensor,
              const Written& written, Record first, const Call& call);
  /// Append the record of plain bytes: returned numbers, a generator's state.
  void bytes(std::vector<RecordRow>& rows, StringId slot, std::uint8_t dtype, const void* data,
             std::size_t nbytes, std::uint8_t flags);
  /// Append the record of a tensor whose bytes cannot be read.
  void missing(std::vector<RecordRow>& rows, StringId slot, const at::Tensor& tensor,
               std::uint8_t flags, Reason reason);
  /// Append the record of a final-state tensor, read afresh; nothing if this pass read the view.
  void final(std::vector<RecordRow>& rows, StringId slot, const at::Tensor& tensor);
  void begin_pass() { ++pass_; }

  /// Which elements of a tensor hold memory that nothing wrote.
  Unset unset_elements(const at::Tensor& tensor);
  /// A call that writes no bytes moves the tensor's version counter (`unsqueeze_`).
  void explain(const at::Tensor& tensor);
  /// The tensor may have been changed by something that was not captured.
  void forget(const at::Tensor& tensor, bool keep_void);
  void make_external(const at::Tensor& tensor);
  /// Slot of a part: `tensors` and `[3]` give `tensors[3]`; `!` stays last.
  StringId sub_slot(StringId slot, const std::string& suffix);
  /// Slot of a list's element.
  StringId element_slot(StringId slot, std::size_t index);

  Values values;
  std::array<std::uint64_t, kReasons> unfingerprinted{};

 private:
  void plain_input(Call& call, StringId slot, const at::Tensor& tensor, Bits bits);
  void plain_output(std::vector<RecordRow>& rows, StringId slot, const at::Tensor& tensor,
                    Bits bits, const Written& written, Record first, const Call& call);
  RecordRow row(StringId slot, const Geometry& geometry, std::uint8_t flags) const;
  /// Read the tensor's bytes into the row, or note why not.
  bool read(RecordRow& row, const at::Tensor& tensor, const Geometry& geometry,
            const Storage& storage);

  Interner& interner_;
  Geometries geometries_;
  const bool full_;
  const bool tracks_;  // writers are known: without the other operators they are not
  const StringId no_shape_, no_strides_;
  std::uint32_t pass_ = 0;
  std::unordered_map<StringId, std::vector<StringId>> element_slots_;
  std::unordered_map<std::string, StringId> part_slots_;
  std::size_t slots_ = 0;
};

}  // namespace opguard
