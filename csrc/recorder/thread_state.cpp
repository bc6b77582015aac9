#include "recorder/thread_state.h"

#include <pthread.h>

#include <string_view>

namespace opguard {

std::atomic<Recorder*> listening{nullptr};
std::atomic<std::uint64_t> current{0};
std::atomic<int> inside{0};

bool is_of_gloo() {
  char name[16] = "";  // Linux keeps 15 characters
  return pthread_getname_np(pthread_self(), name, sizeof name) == 0 &&
         std::string_view(name) == "pt_gloo_runloop";
}

}  // namespace opguard
