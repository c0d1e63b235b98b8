// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The other way to manage pages: on the CPU. Demand comes up from the device, all cores serve the
//! claim, offsets and ids go down. It answers what host::claim answers, bit by bit.
//!
//! It is meant to be fair: threads stay and spin between claims instead of being woken, what they share
//! lies in pinned memory, and the transfers are the fewest possible: one up, and down only what the
//! device needs.
#include <diffkv/core/device_memory.hpp>
#include <diffkv/host/claim.hpp>

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

namespace bench {

//! Threads that wait for work by spinning; the caller is one of them.
class spinning_threads {
 public:
  explicit spinning_threads(unsigned count) : count_{count}
  {
    for (unsigned t = 1; t < count; ++t) {
      threads_.emplace_back([this, t] { serve(t); });
    }
  }
  spinning_threads(spinning_threads const&)            = delete;
  spinning_threads& operator=(spinning_threads const&) = delete;
  ~spinning_threads()
  {
    stop_ = true;
    round_.fetch_add(1, std::memory_order_release);
    for (auto& t : threads_) { t.join(); }
  }
  [[nodiscard]] unsigned count() const noexcept { return count_; }
  //! work(thread) on every thread; returns when all are done.
  void run(std::function<void(unsigned)> const& work)
  {
    work_ = &work;
    busy_.store(count_ - 1, std::memory_order_relaxed);
    round_.fetch_add(1, std::memory_order_release);
    work(0);
    while (busy_.load(std::memory_order_acquire) != 0) {}
  }

 private:
  void serve(unsigned thread)
  {
    for (unsigned seen = 0;;) {
      unsigned now = 0;
      while ((now = round_.load(std::memory_order_acquire)) == seen) {}
      seen = now;
      if (stop_) { return; }
      (*work_)(thread);
      busy_.fetch_sub(1, std::memory_order_release);
    }
  }

  unsigned count_;
  std::atomic<unsigned> round_{0};
  std::atomic<unsigned> busy_{0};
  std::atomic<bool> stop_{false};
  std::function<void(unsigned)> const* work_ = nullptr;
  std::vector<std::thread> threads_;
};

//! Claims on all cores: totals per sequence, first fit over the totals, then ids of all sequences.
class cpu_manager {
 public:
  explicit cpu_manager(unsigned threads = std::thread::hardware_concurrency())
    : threads_{threads > 0 ? threads : 1}
  {}
  [[nodiscard]] unsigned num_threads() const noexcept { return threads_.count(); }

  //! Equals host::claim. No answer of `request` may be null, but refusals.
  void claim(diffkv::free_ring_ref const& ring, diffkv::claim_request const& request)
  {
    std::uint32_t const sequences = request.num_sequences;
    std::size_t const rows        = request.rows_per_sequence;
    totals_.resize(sequences);
    begins_.resize(sequences);
    auto const share = [&](unsigned thread, auto&& of_sequence) {
      auto const n    = std::uint64_t{sequences};
      auto const last = static_cast<std::uint32_t>(n * (thread + 1) / threads_.count());
      for (auto s = static_cast<std::uint32_t>(n * thread / threads_.count()); s < last; ++s) {
        of_sequence(s);
      }
    };
    threads_.run([&](unsigned thread) {
      share(thread, [&](std::uint32_t s) {
        std::uint64_t total = 0;
        for (std::size_t r = 0; r < rows; ++r) { total += request.demand[s * rows + r]; }
        totals_[s] = total;
      });
    });
    std::uint64_t const head = *ring.head;
    std::uint64_t left       = ring.num_free();
    std::uint64_t taken      = 0;
    std::uint32_t refused    = 0;
    for (std::uint32_t s = 0; s < sequences; ++s) {
      bool const fits    = totals_[s] <= left;
      begins_[s]         = taken;
      request.granted[s] = fits ? 1 : 0;
      if (!fits) {
        if (request.refusals.sequences != nullptr) { request.refusals.sequences[refused] = s; }
        ++refused;
        continue;
      }
      left -= totals_[s];
      taken += totals_[s];
    }
    threads_.run([&](unsigned thread) {
      share(thread, [&](std::uint32_t s) {
        bool const granted   = request.granted[s] != 0;
        std::uint64_t offset = begins_[s];
        std::uint64_t cell   = (head + offset) % ring.capacity;
        for (std::size_t r = s * rows; r < (s + 1) * rows; ++r) {
          request.offsets[r] = offset;
          for (std::uint32_t i = 0; granted && i < request.demand[r]; ++i) {
            request.ids[offset++] = ring.ids[cell];
            cell                  = cell + 1 < ring.capacity ? cell + 1 : 0;
          }
        }
      });
    });
    *ring.head = head + taken;
    if (request.refusals.count != nullptr) { *request.refusals.count = refused; }
  }

 private:
  spinning_threads threads_;
  std::vector<std::uint64_t> totals_;
  std::vector<std::uint64_t> begins_;
};

}  // namespace bench
