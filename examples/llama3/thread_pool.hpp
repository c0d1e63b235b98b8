// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! A few threads that share the indices of one loop: for the matrices, and for the rows of a cache.
//! Read next: llama3/linear.hpp, llama3/exact_backend.hpp.

#include <algorithm>           // max, min
#include <atomic>              // atomic
#include <condition_variable>  // condition_variable
#include <cstdint>             // int64_t
#include <exception>           // exception_ptr
#include <memory>              // addressof
#include <mutex>               // mutex
#include <stdexcept>           // invalid_argument
#include <thread>              // thread
#include <type_traits>         // is_invocable
#include <vector>              // vector

namespace llama3 {

//! `num_threads - 1` threads that wait for loops; the caller of a loop is the last of them.
//! Loops of several callers run one after the other; a loop inside a loop runs in its own thread.
class thread_pool {
 public:
  //! @throws std::invalid_argument if num_threads < 1
  explicit thread_pool(int num_threads = default_threads())
  {
    if (num_threads < 1) {
      throw std::invalid_argument("thread_pool: at least one thread is needed");
    }
    workers_.reserve(static_cast<std::size_t>(num_threads - 1));
    for (int i = 1; i < num_threads; ++i) {
      workers_.emplace_back([this] { work(); });
    }
  }

  thread_pool(thread_pool const&)            = delete;
  thread_pool& operator=(thread_pool const&) = delete;

  ~thread_pool()
  {
    {
      std::lock_guard<std::mutex> const lock{mutex_};
      stop_ = true;
      generation_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    for (auto& worker : workers_) { worker.join(); }
  }

  [[nodiscard]] static int default_threads() noexcept
  {
    return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  }

  [[nodiscard]] int num_threads() const noexcept { return static_cast<int>(workers_.size()) + 1; }

  //! Runs `body(index)`, or `body(begin, end)` for whole slices, over 0 <= index < count and waits.
  //! Which thread gets which index is not fixed. The first exception of `body` is thrown here;
  //! slices that had not begun by then are left out.
  template <class F>
  void parallel_for(std::int64_t count, F&& body)
  {
    using body_type     = std::remove_reference_t<F>;
    auto const run_body = [](void* context, std::int64_t begin, std::int64_t end) {
      auto& f = *static_cast<body_type*>(context);
      if constexpr (std::is_invocable_v<body_type&, std::int64_t, std::int64_t>) {
        f(begin, end);
      } else {
        for (std::int64_t i = begin; i < end; ++i) { f(i); }
      }
    };
    void* const context = const_cast<void*>(static_cast<void const*>(std::addressof(body)));
    if (count <= 0) { return; }
    if (workers_.empty() || count == 1 || inside_loop()) {
      run_body(context, 0, count);
      return;
    }
    loop this_loop;
    this_loop.run     = run_body;
    this_loop.context = context;
    this_loop.count   = count;
    // A few slices per thread, so that a thread that is held up does not hold up the others.
    this_loop.slice = std::max<std::int64_t>(1, count / (std::int64_t{4} * num_threads()));
    run_shared(this_loop);
  }

 private:
  struct loop {
    void (*run)(void*, std::int64_t, std::int64_t) = nullptr;
    void* context                                  = nullptr;
    std::int64_t count                             = 0;
    std::int64_t slice                             = 1;
    std::atomic<std::int64_t> next{0};
    std::atomic<int> threads_inside{0};
    std::mutex error_mutex;
    std::exception_ptr error;

    void take_slices()
    {
      for (;;) {
        auto const begin = next.fetch_add(slice, std::memory_order_relaxed);
        if (begin >= count) { return; }
        try {
          run(context, begin, std::min(begin + slice, count));
        } catch (...) {
          next.store(count, std::memory_order_relaxed);
          std::lock_guard<std::mutex> const lock{error_mutex};
          if (!error) { error = std::current_exception(); }
        }
      }
    }
  };

  static bool& inside_loop() noexcept
  {
    thread_local bool inside = false;
    return inside;
  }

  void run_shared(loop& shared)
  {
    std::lock_guard<std::mutex> const one_loop_at_a_time{callers_};
    {
      std::lock_guard<std::mutex> const lock{mutex_};
      current_ = &shared;
      generation_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    inside_loop() = true;
    shared.take_slices();
    inside_loop() = false;
    {
      // A worker enters a loop only under this lock, so from here on nobody new comes in.
      std::lock_guard<std::mutex> const lock{mutex_};
      current_ = nullptr;
    }
    for (int spins = 0; shared.threads_inside.load(std::memory_order_acquire) != 0; ++spins) {
      if (spins > spins_before_sleep) { std::this_thread::yield(); }
    }
    if (shared.error) { std::rethrow_exception(shared.error); }
  }

  void work()
  {
    inside_loop()      = true;
    std::uint64_t seen = 0;
    for (;;) {
      // The loops of one token follow each other within microseconds: look before going to sleep.
      for (int spins = 0; spins < spins_before_sleep; ++spins) {
        if (generation_.load(std::memory_order_acquire) != seen) { break; }
      }
      loop* entered = nullptr;
      {
        std::unique_lock<std::mutex> lock{mutex_};
        wake_.wait(lock, [&] { return generation_.load(std::memory_order_relaxed) != seen; });
        if (stop_) { return; }
        seen    = generation_.load(std::memory_order_relaxed);
        entered = current_;
        if (entered != nullptr) { entered->threads_inside.fetch_add(1, std::memory_order_relaxed); }
      }
      if (entered != nullptr) {
        entered->take_slices();
        entered->threads_inside.fetch_sub(1, std::memory_order_release);
      }
    }
  }

  static constexpr int spins_before_sleep = 20000;  // about ten microseconds

  std::mutex callers_;
  std::mutex mutex_;  // current_, stop_, and changes of generation_
  std::condition_variable wake_;
  loop* current_ = nullptr;
  bool stop_     = false;
  std::atomic<std::uint64_t> generation_{0};
  std::vector<std::thread> workers_;  // last: its threads use everything above
};

}  // namespace llama3
