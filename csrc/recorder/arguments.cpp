#include "recorder/arguments.h"

#include <Python.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <utility>

namespace opguard {

namespace {

using c10::IValue;

/// What the numbers of an argument stand for: the stack holds dtypes and their like as numbers.
enum class Named : std::uint8_t { Nothing, Dtype, Layout, MemoryFormat };

// In the order of c10::ScalarType; a test compares them with torch's Python names.
constexpr std::array kDtypes = {
    "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex32",
    "complex64", "complex128", "bool", "qint8", "quint8", "qint32", "bfloat16", "quint4x2",
    "quint2x4", "bits1x8", "bits2x4", "bits4x2", "bits8", "bits16", "float8_e5m2",
    "float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3fnuz", "uint16", "uint32", "uint64", "uint1",
    "uint2", "uint3", "uint4", "uint5", "uint6", "uint7", "int1", "int2", "int3", "int4", "int5",
    "int6", "int7", "float8_e8m0fnu", "float4_e2m1fn_x2"};
// In the order of c10::Layout, c10::MemoryFormat and c10d::ReduceOp::RedOpType.
constexpr std::array kLayouts = {"strided", "sparse_coo", "sparse_csr", "_mkldnn",
                                 "sparse_csc", "sparse_bsr", "sparse_bsc", "jagged"};
constexpr std::array kMemoryFormats = {"contiguous_format", "preserve_format", "channels_last",
                                       "channels_last_3d"};
constexpr std::array kReductions = {"SUM", "AVG", "PRODUCT", "MIN", "MAX",
                                    "BAND", "BOR", "BXOR", "PREMUL_SUM"};

template <std::size_t size>
void append_name(std::string& text, const std::array<const char*, size>& names,
                 std::int64_t number) {
  if (number >= 0 && number < static_cast<std::int64_t>(size)) {
    text += names[static_cast<std::size_t>(number)];
  } else {
    text += std::to_string(number);  // of a newer torch
  }
}

/// Torch gives Python names only where the argument's type, or the one inside an optional or a list
/// (torch 2.13), is an enumeration; numbers where it lies deeper.
Named named(const c10::Argument& argument) {
  c10::TypePtr type = argument.real_type();
  if (type->kind() == c10::TypeKind::OptionalType || type->kind() == c10::TypeKind::ListType) {
    type = type->containedType(0);
  }
  switch (type->kind()) {
    case c10::TypeKind::ScalarTypeType: return Named::Dtype;
    case c10::TypeKind::LayoutType: return Named::Layout;
    case c10::TypeKind::MemoryFormatType: return Named::MemoryFormat;
    default: return Named::Nothing;
  }
}

/// As Python's `repr`, but a NaN by its bits. (`PyOS_double_to_string` needs the GIL.)
void append_float(std::string& text, double value) {
  std::array<char, 48> room;
  if (std::isnan(value)) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    std::snprintf(room.data(), room.size(), "nan:%016llx", static_cast<unsigned long long>(bits));
    text += room.data();
    return;
  }
  if (std::isinf(value)) {
    text += value < 0 ? "-inf" : "inf";
    return;
  }
  char* const end = room.data() + room.size();
  const auto written = [&](std::chars_format format) {
    const auto result = std::to_chars(room.data(), end, value, format);
    return std::string_view(room.data(), static_cast<std::size_t>(result.ptr - room.data()));
  };
  const double size = std::fabs(value);
  if (size != 0 && (size < 1e-4 || size >= 1e16)) {
    text += written(std::chars_format::scientific);
    return;
  }
  const std::string_view digits = written(std::chars_format::fixed);
  text += digits;
  if (digits.find('.') == std::string_view::npos) {
    text += ".0";
  }
}

/// `ReduceOp` tells its kind by a method: no header of c10d is needed, which torch may lack.
std::string reduction(const IValue& value) {
  torch::jit::Function* const method = value.toObjectRef().type()->findMethod("op");
  if (method == nullptr) {
    return "<ReduceOp>";
  }
  torch::jit::Stack stack{value};
  method->run(stack);
  std::string name;
  append_name(name, kReductions, stack.back().toInt());
  return name;
}

std::string class_name(const IValue& value) {
  const auto name = value.toObjectRef().type()->name();
  return name.has_value() ? name->name() : "Object";
}

/// Name of the Python type that the value has there.
std::string type_name(const IValue& value) {
  if (value.isObject()) {
    return class_name(value);
  }
  if (value.isPyObject()) {  // the value holds the object, and the object its type
    const char* const name = Py_TYPE(value.toPyObject())->tp_name;
    const char* const dot = std::strrchr(name, '.');
    return dot == nullptr ? name : dot + 1;
  }
  if (value.isGenericDict()) {
    return "dict";
  }
  return value.isStorage() ? "UntypedStorage" : value.tagKind();
}

void append_object(std::string& text, const IValue& value) {
  const std::string name = type_name(value);
  if (value.isObject() && name == "ProcessGroup") {
    return;
  }
  text += value.isObject() && name == "ReduceOp" ? reduction(value) : "<" + name + ">";
}

c10::ArrayRef<IValue> items(const IValue& value) {
  return value.isList() ? value.toListRef() : c10::ArrayRef<IValue>(value.toTupleRef().elements());
}

void append_int(std::string& text, std::int64_t value, Named named) {
  switch (named) {
    case Named::Dtype: append_name(text, kDtypes, value); return;
    case Named::Layout: append_name(text, kLayouts, value); return;
    case Named::MemoryFormat: append_name(text, kMemoryFormats, value); return;
    case Named::Nothing: text += std::to_string(value); return;
  }
}

/// The part that is compared.
void append_text(std::string& text, const IValue& value, Named named) {
  if (value.isNone()) {
    text += "None";
  } else if (value.isBool()) {
    text += value.toBool() ? "True" : "False";
  } else if (value.isInt()) {
    append_int(text, value.toInt(), named);
  } else if (value.isDouble()) {
    append_float(text, value.toDouble());
  } else if (value.isComplexDouble()) {
    const c10::complex<double> number = value.toComplexDouble();
    text += '(';
    append_float(text, number.real());
    text += ',';
    append_float(text, number.imag());
    text += ')';
  } else if (value.isString()) {
    text += json_string(value.toStringRef());
  } else if (value.isDevice()) {
    text += c10::DeviceTypeName(value.toDevice().type(), /*lower_case=*/true);
  } else if (value.isList() || value.isTuple()) {
    text += '[';
    const char* comma = "";
    for (const IValue& item : items(value)) {
      text += std::exchange(comma, ",");
      append_text(text, item, named);
    }
    text += ']';
  } else if (value.isTensor()) {
    if (const auto number = wrapped_number(value.toTensor())) {
      append_text(text, *number, named);
    } else {
      text += "<Tensor>";
    }
  } else if (const auto number = unsigned_number(value, 0)) {
    text += std::to_string(*number);
  } else {
    append_object(text, value);
  }
}

/// The part that is only shown.
std::string shown_text(const IValue& value) {
  if (value.isDevice()) {
    return value.toDevice().has_index() ? value.toDevice().str() : "";
  }
  return value.isObject() && class_name(value) == "ProcessGroup" ? "<ProcessGroup>" : "";
}

/// False for what holds tensors: they are inputs or outputs.
bool is_argument(const Parameter& parameter, const IValue& value) {
  if (value.isTensor()) {
    return wrapped_number(value.toTensor()).has_value();
  }
  return !parameter.holds_tensors || !(value.isNone() || value.isList() || value.isTuple());
}

/// Appends `name=value`.
void add(std::string& list, const std::string& name, std::string_view value) {
  if (!value.empty()) {
    list += list.empty() ? "" : ", ";
    list.append(name).append("=").append(value);
  }
}

template <typename Number>
void append_bytes(std::string& key, const Number& number) {
  std::array<char, sizeof number> bytes;
  std::memcpy(bytes.data(), &number, sizeof number);
  key.append(bytes.data(), bytes.size());
}

void append_sized(std::string& key, char mark, std::string_view text) {
  key += mark;
  append_bytes(key, text.size());
  key += text;
}

}  // namespace

std::optional<IValue> wrapped_number(const at::Tensor& tensor) {
  const c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  if (!impl->is_wrapped_number() || !impl->has_storage() || !impl->is_cpu() ||
      impl->key_set().has(c10::DispatchKey::Python)) {  // wrappers keep no bytes of their own
    return std::nullopt;
  }
  switch (tensor.scalar_type()) {  // those that torch unwraps for Python
    case c10::ScalarType::Bool: return IValue(*tensor.const_data_ptr<bool>());
    case c10::ScalarType::Long: return IValue(*tensor.const_data_ptr<std::int64_t>());
    case c10::ScalarType::Double: return IValue(*tensor.const_data_ptr<double>());
    case c10::ScalarType::ComplexDouble:
      return IValue(*tensor.const_data_ptr<c10::complex<double>>());
    case c10::ScalarType::UInt64:
      return IValue(c10::Scalar(*tensor.const_data_ptr<std::uint64_t>()));
    default: return std::nullopt;
  }
}

void append_key(std::string& key, const IValue& value) {
  if (value.isNone()) {
    key += 'N';
  } else if (value.isBool()) {
    key += value.toBool() ? 't' : 'f';
  } else if (value.isInt()) {
    key += 'i';
    append_bytes(key, value.toInt());
  } else if (value.isDouble()) {
    key += 'd';
    append_bytes(key, value.toDouble());
  } else if (value.isComplexDouble()) {
    const c10::complex<double> number = value.toComplexDouble();
    key += 'c';
    append_bytes(key, number.real());
    append_bytes(key, number.imag());
  } else if (value.isString()) {
    append_sized(key, 's', value.toStringRef());
  } else if (value.isDevice()) {
    const c10::Device device = value.toDevice();
    key += 'D';
    append_bytes(key, device.type());
    append_bytes(key, device.index());
  } else if (value.isList() || value.isTuple()) {
    const c10::ArrayRef<IValue> all = items(value);
    key += 'l';
    append_bytes(key, all.size());
    for (const IValue& item : all) {
      append_key(key, item);
    }
  } else if (value.isTensor()) {
    if (const auto number = wrapped_number(value.toTensor())) {
      append_key(key, *number);
    } else {
      key += 'T';
    }
  } else {  // rare: what tells it apart is its text
    std::string text;
    append_text(text, value, Named::Nothing);
    append_sized(key, 'o', text);
    append_sized(key, 'o', shown_text(value));
  }
}

std::string canonical(const Operator& op, c10::ArrayRef<const IValue> stack) {
  std::string compared, shown;
  const std::size_t count = std::min(op.parameters.size(), stack.size());
  for (std::size_t i = 0; i < count; ++i) {
    const Parameter& parameter = op.parameters[i];
    const c10::Argument& argument = op.schema->arguments()[i];
    IValue value = stack[i];
    if (!is_argument(parameter, value)) {
      if (parameter.holds_tensors) {
        continue;
      }
      // A tensor for an argument of any type is an input; what stands here is the default.
      value = argument.default_value().value_or(IValue());
    }
    std::string text;
    append_text(text, value, named(argument));
    add(compared, parameter.name, text);
    add(shown, parameter.name, shown_text(value));
  }
  return shown.empty() ? compared : compared + "\t" + shown;
}

/// Keys of one operator's arguments; a program may pass ever other ones.
constexpr std::size_t kMostKeyBytes = std::size_t{1} << 20;

StringId arguments_id(Operator& op, c10::ArrayRef<const IValue> stack, Interner& interner) {
  std::string& key = op.arguments_key;
  key.clear();
  const std::size_t count = std::min(op.parameters.size(), stack.size());
  for (std::size_t i = 0; i < count; ++i) {
    if (op.parameters[i].holds_tensors && (stack[i].isList() || stack[i].isTuple())) {
      key += 'T';
    } else {
      append_key(key, stack[i]);
    }
  }
  const auto known = op.arguments.find(key);
  if (known != op.arguments.end()) {
    return known->second;
  }
  const StringId id = interner.intern(StringKind::Arguments, canonical(op, stack));
  op.arguments_bytes += key.size() + kStringCost;
  if (op.arguments_bytes > kMostKeyBytes) {
    op.arguments.clear();
    op.arguments_bytes = key.size() + kStringCost;
  }
  op.arguments.emplace(key, id);
  return id;
}

}  // namespace opguard
