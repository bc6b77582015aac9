#include "recorder/rows.h"

#include <chrono>
#include <utility>

namespace opguard {

namespace {

std::unique_ptr<Block> new_block(std::int64_t first_event, std::int64_t first_record) {
  auto block = std::make_unique<Block>();
  block->first_event = first_event;
  block->first_record_of_all = first_record;
  return block;
}

thread_local bool makes_room_itself = false;

}  // namespace

void Rows::makes_room() { makes_room_itself = true; }

Rows::Rows(Interner& interner) : interner_(interner), block_(new_block(0, 0)) {}

Record Rows::next_record() const {
  return block_->first_record_of_all + static_cast<Record>(block_->records());
}

std::int64_t Rows::events() const {
  return block_->first_event + static_cast<std::int64_t>(block_->events());
}

bool Rows::append(const EventRow& event, const std::vector<RecordRow>& inputs,
                  const std::vector<RecordRow>& outputs) {
  Block& block = *block_;
  block.boundary.push_back(event.boundary);
  block.step.push_back(event.step);
  block.thread.push_back(event.thread);
  block.stream.push_back(0);
  block.host_ns.push_back(event.host_ns);
  block.arguments.push_back(event.arguments);
  block.flags.push_back(event.flags);
  block.first_record.push_back(static_cast<std::uint32_t>(block.records()));
  for (const RecordRow& row : inputs) {
    add_record(row);
  }
  for (const RecordRow& row : outputs) {
    add_record(row);
  }
  return block.events() >= kEventsABlock || block.records() >= kRecordsABlock;
}

void Rows::add_record(const RecordRow& row) {
  Block& block = *block_;
  if (row.has_regions) {
    block.region_records.push_back(static_cast<std::uint32_t>(block.records()));
    block.region_values.insert(block.region_values.end(), row.regions.begin(), row.regions.end());
  }
  block.slot.push_back(static_cast<std::uint16_t>(row.slot));
  block.dtype.push_back(row.dtype);
  block.record_flags.push_back(row.flags);
  block.shape.push_back(row.shape);
  block.strides.push_back(row.strides);
  block.mix64.push_back(row.digest.mix64);
  block.xor32.push_back(row.digest.xor32);
  block.first_producer.push_back(static_cast<std::uint32_t>(block.producers.size()));
  for (const Record producer : row.producers) {
    block.producers.push_back(static_cast<std::uint32_t>(producer));
  }
  block.small_offset.push_back(static_cast<std::uint32_t>(block.small.size()));
  block.small.insert(block.small.end(), row.small.begin(), row.small.begin() + row.small_bytes);
}

void Rows::begin() {
  const std::lock_guard<std::mutex> guard(mutex_);
  begun_ = true;
  filled_.notify_one();
}

void Rows::cut() {
  if (block_->events() == 0) {
    return;
  }
  auto full = std::exchange(block_, nullptr);
  block_ = new_block(full->first_event + static_cast<std::int64_t>(full->events()),
                     full->first_record_of_all + static_cast<std::int64_t>(full->records()));
  full->strings = interner_.drain();
  const std::lock_guard<std::mutex> guard(mutex_);
  queue_.push_back(std::move(full));
  filled_.notify_one();
}

std::unique_ptr<Block> Rows::take(double seconds) {
  std::unique_lock<std::mutex> guard(mutex_);
  filled_.wait_for(guard, std::chrono::duration<double>(seconds),
                   [this] { return !queue_.empty() || closed_ || begun_; });
  begun_ = false;
  if (queue_.empty()) {
    return nullptr;
  }
  auto block = std::move(queue_.front());
  queue_.pop_front();
  ++taken_;
  stuck_ = false;
  emptied_.notify_all();
  return block;
}

bool Rows::crowded() const {
  if (makes_room_itself) {
    return false;
  }
  const std::lock_guard<std::mutex> guard(mutex_);
  return queue_.size() > kMostBlocks && !closed_;
}

void Rows::wait_for_room() {
  std::unique_lock<std::mutex> guard(mutex_);
  std::uint64_t taken = taken_;
  while (queue_.size() > kMostBlocks && !closed_) {
    const auto patience = stuck_ ? kLittlePatience : kPatience;
    if (emptied_.wait_for(guard, patience) == std::cv_status::timeout && taken == taken_) {
      stuck_ = true;
      return;
    }
    taken = taken_;
  }
}

void Rows::close() {
  const std::lock_guard<std::mutex> guard(mutex_);
  closed_ = true;
  filled_.notify_all();
  emptied_.notify_all();
}

bool Rows::closed() const {
  const std::lock_guard<std::mutex> guard(mutex_);
  return closed_;
}

}  // namespace opguard
