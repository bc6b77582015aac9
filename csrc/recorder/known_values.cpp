#include "recorder/known_values.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

namespace opguard {

namespace {

constexpr int kClasses = 63;

/// Spans of class c are shorter than `span_limit(c)` bytes.
int span_class(const Geometry& geometry) {
  int found = 0;
  for (std::int64_t left = geometry.end - geometry.start; left > 1; left >>= 1) {
    ++found;
  }
  return found;
}

std::int64_t span_limit(int span_class) {
  return std::int64_t{2} << span_class;
}

bool is_same(const Known& known, const Geometry& geometry) {
  return known.geometry->value_key == geometry.value_key;
}

bool covers(const Known& known, const Geometry& geometry) {
  const Geometry& base = *known.geometry;
  return base.dense && base.bits == 0 && base.start <= geometry.start && geometry.end <= base.end;
}

bool shares(const Known& known, std::int64_t start, std::int64_t end) {
  return known.geometry->start < end && start < known.geometry->end;
}

}  // namespace

/// Values by length class and first byte. What may meet a span is then a short stretch of each
/// class, unless many views of about one length overlap.
struct KnownValues::Many {
  struct Entry {
    Known known;
    std::uint64_t order;
  };
  using Places = std::multimap<std::pair<int, std::int64_t>, Entry>;

  Places places;
  std::uint64_t learnt = 0;
  std::array<std::size_t, kClasses> of_class{};

  void add(const Known& known) {
    const int of = span_class(*known.geometry);
    places.emplace(std::make_pair(of, known.geometry->start), Entry{known, learnt++});
    ++of_class[static_cast<std::size_t>(of)];
  }

  Places::iterator find(const Geometry& geometry) {
    auto [at, end] = places.equal_range({span_class(geometry), geometry.start});
    for (; at != end; ++at) {
      if (is_same(at->second.known, geometry)) {
        return at;
      }
    }
    return places.end();
  }
};

KnownValues::KnownValues() = default;
KnownValues::~KnownValues() = default;

const Known* KnownValues::find(const Geometry& geometry) const {
  for (const Known& known : few_) {
    if (is_same(known, geometry)) {
      return &known;
    }
  }
  if (many_ != nullptr) {
    const auto found = many_->find(geometry);
    return found != many_->places.end() ? &found->second.known : nullptr;
  }
  return nullptr;
}

const Known* KnownValues::covering(const Geometry& geometry) const {
  for (const Known& known : few_) {
    if (covers(known, geometry)) {
      return &known;
    }
  }
  if (many_ == nullptr) {
    return nullptr;
  }
  const Many::Entry* first = nullptr;
  for (int of = span_class(geometry); of < kClasses; ++of) {
    if (many_->of_class[static_cast<std::size_t>(of)] == 0) {
      continue;
    }
    auto at = many_->places.lower_bound({of, geometry.end - span_limit(of)});
    const auto last = many_->places.upper_bound({of, geometry.start});
    for (; at != last; ++at) {
      const Many::Entry& entry = at->second;
      if (covers(entry.known, geometry) && (first == nullptr || entry.order < first->order)) {
        first = &entry;
      }
    }
  }
  return first != nullptr ? &first->known : nullptr;
}

void KnownValues::learn(const Geometry& geometry, const fingerprint::Digest& digest) {
  const Known known{digest, &geometry};
  if (many_ != nullptr) {
    const auto found = many_->find(geometry);
    if (found != many_->places.end()) {
      found->second.known = known;
    } else {
      many_->add(known);
    }
    return;
  }
  const auto found = std::find_if(few_.begin(), few_.end(), [&](const Known& other) {
    return is_same(other, geometry);
  });
  if (found != few_.end()) {
    *found = known;
    return;
  }
  few_.push_back(known);
  if (few_.size() > kFewKnown) {
    many_ = std::make_unique<Many>();
    for (const Known& other : few_) {
      many_->add(other);
    }
    few_.clear();
  }
}

void KnownValues::drop(std::int64_t start, std::int64_t end) {
  few_.erase(std::remove_if(few_.begin(), few_.end(),
                            [&](const Known& known) { return shares(known, start, end); }),
             few_.end());
  if (many_ == nullptr) {
    return;
  }
  for (int of = 0; of < kClasses; ++of) {
    std::size_t& left = many_->of_class[static_cast<std::size_t>(of)];
    if (left == 0) {
      continue;
    }
    auto at = many_->places.lower_bound({of, start - span_limit(of)});
    const auto last = many_->places.lower_bound({of, end});
    while (at != last) {
      if (shares(at->second.known, start, end)) {
        at = many_->places.erase(at);
        --left;
      } else {
        ++at;
      }
    }
  }
  if (many_->places.empty()) {
    many_.reset();
  }
}

void KnownValues::clear() {
  few_.clear();
  many_.reset();
}

}  // namespace opguard
