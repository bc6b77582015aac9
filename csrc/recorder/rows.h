// Rows of events and records in columns, handed to the writer thread in blocks.
//
// A block holds up to 4,096 events, in the columns of `opguard.model.EVENT_COLUMNS` and
// `RECORD_COLUMNS`; Python sees them as numpy arrays of the same memory.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "fingerprint/mix64.h"
#include "recorder/strings.h"
#include "recorder/values.h"

namespace opguard {

constexpr std::size_t kEventsABlock = 4096;
/// A block is also full with this many records: one call may have thousands of tensors.
constexpr std::size_t kRecordsABlock = 1 << 16;
/// Full blocks that may wait for the writer before recording waits: bounds memory.
constexpr std::size_t kMostBlocks = 4;
/// How long recording waits while the writer takes nothing, at first and from then on.
constexpr std::chrono::milliseconds kPatience{10000}, kLittlePatience{100};

/// Bits of the event column `flags`: `EventFlag`.
constexpr std::uint8_t kRaised = 1;
constexpr std::uint8_t kState = 2;
/// Bits of the record column `record_flags`: `RecordFlag`, and a reason from bit 4 on.
constexpr std::uint8_t kOutput = 1;
constexpr std::uint8_t kFresh = 2;
constexpr std::uint8_t kVia = 4;
constexpr std::uint8_t kVoid = 8;
constexpr int kReasonShift = 4;

/// Positions in `DTYPES` of `opguard.model` of what is no tensor; a test compares them.
constexpr std::uint8_t kPythonBool = 47;
constexpr std::uint8_t kPythonInt = 48;
constexpr std::uint8_t kPythonFloat = 49;
constexpr std::uint8_t kPythonComplex = 50;
constexpr std::uint8_t kBytes = 51;

/// Why a record has no fingerprint: `Reason`.
enum class Reason : std::uint8_t {
  Present, Freed, Capturing, InFlight, Unsupported, NotSelected
};
constexpr std::size_t kReasons = 6;
constexpr std::array<const char*, kReasons> kReasonNames = {
    "present", "freed", "capturing", "in_flight", "unsupported", "not_selected"};

/// One tensor record on its way into a block.
struct RecordRow {
  StringId slot = 0;
  StringId shape = 0;
  StringId strides = 0;
  std::uint8_t dtype = 0;
  std::uint8_t flags = 0;
  std::uint8_t small_bytes = 0;  ///< how many of `small` are kept
  bool has_regions = false;
  fingerprint::Digest digest;
  Producers producers;
  std::array<std::uint8_t, fingerprint::kSmallBytes> small;
  fingerprint::Regions regions;
};

struct EventRow {
  StringId boundary = 0;
  std::int32_t step = 0;
  std::uint16_t thread = 0;
  std::uint64_t host_ns = 0;
  StringId arguments = 0;
  std::uint8_t flags = 0;
};

/// The columns of consecutive events.
struct Block {
  std::int64_t first_event = 0;  ///< events before it
  std::int64_t first_record_of_all = 0;

  std::vector<std::uint32_t> boundary, arguments, first_record;
  std::vector<std::int32_t> step;
  std::vector<std::uint16_t> thread, stream;
  std::vector<std::uint64_t> host_ns;
  std::vector<std::uint8_t> flags;

  std::vector<std::uint16_t> slot;
  std::vector<std::uint8_t> dtype, record_flags, small;
  std::vector<std::uint32_t> shape, strides, xor32, first_producer, small_offset, producers;
  std::vector<std::uint64_t> mix64;

  std::vector<std::uint32_t> region_records;
  std::vector<std::uint64_t> region_values;  // 8 a region record

  std::vector<Interner::NewString> strings;

  std::size_t events() const { return boundary.size(); }
  std::size_t records() const { return slot.size(); }
};

/// Collects rows and hands blocks over. `append`, `next_record` and `cut` are called under the
/// capture's lock; the queue has its own, a leaf.
class Rows {
 public:
  explicit Rows(Interner& interner);

  /// Global index that the next record will have.
  Record next_record() const;
  std::int64_t events() const;
  /// Add an event. True: the block became full, call `cut`.
  bool append(const EventRow& event, const std::vector<RecordRow>& inputs,
              const std::vector<RecordRow>& outputs);
  /// The first event of all was added and is counted: `take` returns, so that the run is opened.
  void begin();
  /// Move what was collected to the queue, full or not.
  void cut();

  /// Oldest block of the queue; null after `seconds` without one, at the first event of all, and
  /// at once after `close`.
  std::unique_ptr<Block> take(double seconds);
  /// Wait until the queue has room again, or for as long as patience lasts: this thread may hold a
  /// lock of the program that a finalizer on the writer's thread asks for. Never under the
  /// capture's lock, nor with the GIL.
  void wait_for_room();
  /// True where this thread has to wait for room.
  bool crowded() const;
  /// This thread helps to make room. The garbage collector may run finalizers of the program on it,
  /// and these call operators: it would wait for itself.
  static void makes_room();
  /// No block will come any more: `take` gives what is there and then null, nobody waits.
  void close();
  bool closed() const;

 private:
  void add_record(const RecordRow& row);

  Interner& interner_;
  std::unique_ptr<Block> block_;
  mutable std::mutex mutex_;
  std::condition_variable filled_, emptied_;
  std::deque<std::unique_ptr<Block>> queue_;
  std::uint64_t taken_ = 0;  // blocks
  bool stuck_ = false;       // no block was taken since patience was lost
  bool begun_ = false;  // the first event was added, and `take` has not returned since
  bool closed_ = false;
};

}  // namespace opguard
