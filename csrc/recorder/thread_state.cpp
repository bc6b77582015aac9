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

ThreadState& this_thread() {
  thread_local ThreadState state;
  return state;
}

int& Inside::here() {
  thread_local int count = 0;
  return count;
}

void forked() {
  listening.store(nullptr);
  current.store(0);
  inside.store(Inside::here());
}

bool is_left_over(const ThreadState& thread) {
  const std::uint64_t now = current.load(std::memory_order_relaxed);
  return now != 0 && now != thread.capture;
}

}  // namespace opguard
