#include "recorder/thread_state.h"

#include <pthread.h>

#include "common/check.h"

namespace opguard {

std::atomic<Recorder*> listening{nullptr};
std::atomic<std::uint64_t> current{0};
std::atomic<int> inside{0};

thread_local ThreadState* of_this_thread = nullptr;

namespace {

void end_thread(void* state) {
  of_this_thread = nullptr;
  delete static_cast<ThreadState*>(state);
}

/// Unlike what C++ destroys with a thread this is ended last, and made again where it is needed
/// even later.
pthread_key_t thread_key() {
  static const pthread_key_t made = [] {
    pthread_key_t key{};
    OPGUARD_CHECK(pthread_key_create(&key, &end_thread) == 0, "no key for the state of threads");
    return key;
  }();
  return made;
}

}  // namespace

ThreadState& begin_thread() {
  auto state = std::make_unique<ThreadState>();
  OPGUARD_CHECK(pthread_setspecific(thread_key(), state.get()) == 0, "no state for a thread");
  of_this_thread = state.release();
  return *of_this_thread;
}

}  // namespace opguard
