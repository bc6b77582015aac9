#include "recorder/writers.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

namespace opguard {

/// The first dense write that ends after `start`.
const Writers::Write* Writers::first_dense(std::int64_t start) const {
  return std::partition_point(dense_.begin(), dense_.end(),
                              [start](const Write& write) { return write.end <= start; });
}

Producers Writers::over(std::int64_t start, std::int64_t end) const {
  if (last_ != nullptr && last_->start == start && last_->end == end) {
    return last_->producers;
  }
  Producers found;
  for (const Write* write = first_dense(start); write != dense_.end() && write->start < end;
       ++write) {
    found.push_back(write->record);
  }
  for (const Write& write : scattered_) {
    if (write.start < end && start < write.end) {
      found.push_back(write.record);
    }
  }
  if (found.size() > 1) {  // pieces of one write have its number
    std::sort(found.begin(), found.end(), std::greater<>());
    found.erase(std::unique(found.begin(), found.end()), found.end());
    found.resize(std::min(found.size(), kMostProducers));
  }
  if (found.size() >= kLongAnswer) {
    last_ = std::make_unique<const Answer>(Answer{start, end, found});
  }
  return found;
}

bool Writers::lists_all(std::int64_t start, std::int64_t end) const {
  const bool many = dense_.size() + scattered_.size() >= kMostProducers;
  return !merged_ && !(many && over(start, end).size() == kMostProducers);
}

void Writers::add(std::int64_t start, std::int64_t end, Record record, bool scattered) {
  last_.reset();
  if (scattered) {
    scattered_.push_back({start, end, record});
  } else {
    uncover(start, end);
    dense_.insert(dense_.begin() + (first_dense(start) - dense_.begin()), {start, end, record});
  }
  if (scattered_.size() > kMostScattered) {
    merge_scattered();
  }
}

void Writers::uncover(std::int64_t start, std::int64_t end) {
  const auto first = first_dense(start) - dense_.begin();
  auto last = first;
  c10::SmallVector<Write, 2> left;
  for (; last != static_cast<std::ptrdiff_t>(dense_.size()) && dense_[last].start < end; ++last) {
    const Write& write = dense_[last];
    if (write.start < start) {
      left.push_back({write.start, start, write.record});
    }
    if (end < write.end) {
      left.push_back({end, write.end, write.record});
    }
  }
  dense_.erase(dense_.begin() + first, dense_.begin() + last);
  dense_.insert(dense_.begin() + first, left.begin(), left.end());
  if (scattered_.empty()) {
    return;
  }
  std::vector<Write> others;
  for (const Write& write : scattered_) {
    if (write.start < start) {
      others.push_back({write.start, std::min(write.end, start), write.record});
    }
    if (end < write.end) {
      others.push_back({std::max(write.start, end), write.end, write.record});
    }
  }
  scattered_ = std::move(others);
  merged_ = merged_ && !scattered_.empty();
}

void Writers::merge_scattered() {
  const auto newest = scattered_.begin() + static_cast<std::ptrdiff_t>(scattered_.size() / 2) - 1;
  for (auto older = scattered_.begin(); older != newest; ++older) {
    newest->start = std::min(newest->start, older->start);
    newest->end = std::max(newest->end, older->end);
  }
  scattered_.erase(scattered_.begin(), newest);
  merged_ = true;
}

void Writers::cut(std::int64_t end) {
  last_.reset();
  uncover(end, std::numeric_limits<std::int64_t>::max());
}

void Writers::clear() {
  last_.reset();
  dense_.clear();
  scattered_.clear();
  merged_ = false;
}

}  // namespace opguard
