#include "recorder/strings.h"

#include <utility>

namespace opguard {

namespace {

/// Appends `\u` and the four hexadecimal digits of a UTF-16 unit.
void append_unit(std::string& json, std::uint32_t unit) {
  constexpr char kDigits[] = "0123456789abcdef";
  json += "\\u";
  for (int shift = 12; shift >= 0; shift -= 4) {
    json += kDigits[(unit >> shift) & 15u];
  }
}

void append_escaped(std::string& json, std::uint32_t point) {
  if (point > 0xFFFFu) {
    point -= 0x10000u;
    append_unit(json, 0xD800u + (point >> 10));
    append_unit(json, 0xDC00u + (point & 0x3FFu));
    return;
  }
  switch (point) {
    case '"': json += "\\\""; return;
    case '\\': json += "\\\\"; return;
    case '\n': json += "\\n"; return;
    case '\r': json += "\\r"; return;
    case '\t': json += "\\t"; return;
    case '\f': json += "\\f"; return;
    case '\b': json += "\\b"; return;
    default: append_unit(json, point);
  }
}

/// Reads one code point and moves `at` behind it. Surrogates count as code points, as in Python's
/// `surrogatepass`; a byte that is no UTF-8 becomes U+DC80…U+DCFF, as in `surrogateescape`.
std::uint32_t next_point(std::string_view text, std::size_t& at) {
  const auto byte = [&](std::size_t offset) {
    return static_cast<std::uint32_t>(static_cast<unsigned char>(text[at + offset]));
  };
  const std::uint32_t lead = byte(0);
  std::size_t length = 1;
  std::uint32_t point = 0, least = 0;
  if (lead < 0x80u) {
    point = lead;
  } else if (lead >= 0xC2u && lead < 0xE0u) {
    length = 2, point = lead & 0x1Fu, least = 0x80u;
  } else if (lead >= 0xE0u && lead < 0xF0u) {
    length = 3, point = lead & 0x0Fu, least = 0x800u;
  } else if (lead >= 0xF0u && lead < 0xF5u) {
    length = 4, point = lead & 0x07u, least = 0x10000u;
  }
  bool valid = (length > 1 || lead < 0x80u) && text.size() - at >= length;
  for (std::size_t offset = 1; valid && offset < length; ++offset) {
    valid = (byte(offset) & 0xC0u) == 0x80u;
    point = point << 6 | (byte(offset) & 0x3Fu);
  }
  if (!valid || point < least || point > 0x10FFFFu) {
    ++at;
    return 0xDC00u + lead;
  }
  at += length;
  return point;
}

}  // namespace

void Interner::Table::forget() {
  first += static_cast<StringId>(texts.size());
  ids.clear();
  texts.clear();
  bytes = 0;
}

StringId Interner::intern(StringKind kind, std::string_view value) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Table& table = tables_[static_cast<std::size_t>(kind)];
  const auto found = table.ids.find(value);
  if (found != table.ids.end()) {
    return found->second;
  }
  const bool is_open = kind == StringKind::Arguments || kind == StringKind::Shape ||
                       kind == StringKind::Strides;
  table.bytes += value.size() + kStringCost;
  if (is_open && table.bytes > kMostStringBytes) {
    table.forget();
  }
  const auto id = table.first + static_cast<StringId>(table.texts.size());
  table.texts.emplace_back(value);
  table.ids.emplace(table.texts.back(), id);
  new_.push_back({kind, id, table.texts.back()});
  return id;
}

std::string Interner::text(StringKind kind, StringId id) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Table& table = tables_[static_cast<std::size_t>(kind)];
  return table.texts.at(std::size_t{id} - table.first);
}

std::vector<Interner::NewString> Interner::drain() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(new_, {});
}

std::string json_string(std::string_view text) {
  std::string json;
  json.reserve(text.size() + 2);
  json += '"';
  for (std::size_t at = 0; at < text.size();) {
    const std::uint32_t point = next_point(text, at);
    if (point >= ' ' && point <= '~' && point != '"' && point != '\\') {
      json += static_cast<char>(point);
    } else {
      append_escaped(json, point);
    }
  }
  json += '"';
  return json;
}

std::string json_array(std::initializer_list<std::string> items) {
  std::string text;
  text.push_back('[');
  for (const std::string& item : items) {
    if (text.size() > 1) {
      text.push_back(',');
    }
    text.append(item);
  }
  text.push_back(']');
  return text;
}

std::string json_list(c10::IntArrayRef values) {
  std::string json = "[";
  for (const std::int64_t value : values) {
    if (json.size() > 1) {
      json += ',';
    }
    json += std::to_string(value);
  }
  json += ']';
  return json;
}

}  // namespace opguard
