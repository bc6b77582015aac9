// One macro for each kind of status that must not be ignored.
#pragma once

#include <stdexcept>
#include <string>

namespace opguard {

/// A defect of ours, or a broken contract with torch. Python sees `opguard.errors.NativeError`.
class NativeError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace opguard

/// Throws NativeError with the condition's text and place where it does not hold.
#define OPGUARD_CHECK(condition, message)                                              \
  do {                                                                                 \
    if (!(condition)) {                                                                \
      throw ::opguard::NativeError(std::string(__FILE__) + ":" + std::to_string(__LINE__) + \
                                   ": " + (message) + " (" #condition ")");            \
    }                                                                                  \
  } while (false)
