// Splits one short piece of work over all cores, within a few microseconds.
//
// A layer's products take some tens of microseconds, which is what it takes to wake a
// thread that sleeps: the threads here stay awake for a moment after each piece of work,
// so that they are there when the next one comes.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

namespace native {

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

class Pool {
 public:
  // One for the process and never taken down: its threads may outlive main().
  static Pool& get() {
    static Pool* pool = new Pool(std::thread::hardware_concurrency());
    return *pool;
  }

  // Threads that a piece of work is shared by, the caller's included.
  int64_t size() const { return helpers_ + 1; }

  // Runs f(i) once for every i in [0, count). A second caller at the same time does
  // its work alone.
  template <class F>
  void run(uint32_t count, const F& f) {
    std::unique_lock<std::mutex> mine(callers_, std::try_to_lock);
    if (!mine.owns_lock() || helpers_ == 0 || count < 2) {
      for (uint32_t i = 0; i < count; ++i) f(i);
      return;
    }
    work_ = &f;
    call_ = [](const void* work, uint32_t i) { (*static_cast<const F*>(work))(i); };
    done_.store(0, std::memory_order_relaxed);
    ticket_.store((++epoch_ << 32) | count);
    if (asleep_.load() > 0) {
      std::lock_guard<std::mutex> lock(sleepers_);
      wake_.notify_all();
    }
    while (take()) {
    }
    for (int spins = 0; done_.load(std::memory_order_acquire) < count; ++spins) {
      if (spins < kSpins) relax();
      else std::this_thread::yield();
    }
  }

 private:
  static constexpr int kSpins = 4096;
  static constexpr auto kAwake = std::chrono::microseconds(200);

  explicit Pool(unsigned threads) : helpers_(threads > 1 ? threads - 1 : 0) {
    for (int64_t i = 0; i < helpers_; ++i) std::thread([this] { help(); }).detach();
  }

  // Does one task of the work at hand. A ticket is (which work, tasks not yet taken) in
  // one word: taking one fails if the work has changed, and until the one taken is done
  // its work can't change.
  bool take() {
    uint64_t ticket = ticket_.load();
    while (static_cast<uint32_t>(ticket) != 0) {
      if (ticket_.compare_exchange_weak(ticket, ticket - 1)) {
        call_(work_, static_cast<uint32_t>(ticket) - 1);
        done_.fetch_add(1, std::memory_order_release);
        return true;
      }
    }
    return false;
  }

  bool idle() const { return static_cast<uint32_t>(ticket_.load()) == 0; }

  void help() {
    for (;;) {
      const auto until = std::chrono::steady_clock::now() + kAwake;
      do {
        for (int i = 0; i < 64 && idle(); ++i) relax();
      } while (idle() && std::chrono::steady_clock::now() < until);
      if (idle()) {
        std::unique_lock<std::mutex> lock(sleepers_);
        ++asleep_;
        wake_.wait(lock, [this] { return !idle(); });
        --asleep_;
      }
      while (take()) {
      }
    }
  }

  const int64_t helpers_;
  std::mutex callers_, sleepers_;
  std::condition_variable wake_;
  std::atomic<uint64_t> ticket_{0};
  std::atomic<uint32_t> done_{0};
  std::atomic<int> asleep_{0};
  uint64_t epoch_ = 0;
  const void* work_ = nullptr;
  void (*call_)(const void*, uint32_t) = nullptr;
};

}  // namespace native
