// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/thread_pool.hpp"
#include "support/catch.hpp"

#include <atomic>
#include <cstdint>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

using llama3::thread_pool;

TEST_CASE("thread_pool: each index runs exactly once, whatever the counts", "[llama3]")
{
  for (int const num_threads : {1, 2, 3, 8}) {
    thread_pool pool{num_threads};
    CHECK(pool.num_threads() == num_threads);
    for (int const count : {0, 1, 2, 3, 7, 8, 31, 32, 33, 1000}) {
      CAPTURE(num_threads, count);
      std::vector<std::atomic<int>> runs(static_cast<std::size_t>(count));
      pool.parallel_for(count, [&](std::int64_t i) { ++runs[static_cast<std::size_t>(i)]; });
      bool once = true;
      for (auto const& n : runs) { once = once && n == 1; }
      CHECK(once);
    }
    pool.parallel_for(-1, [](std::int64_t) { FAIL("a negative count has no index"); });
  }
}

TEST_CASE("thread_pool: slices are disjoint and cover the range", "[llama3]")
{
  thread_pool pool{3};
  std::mutex mutex;
  std::set<std::int64_t> seen;
  bool disjoint = true;
  pool.parallel_for(101, [&](std::int64_t begin, std::int64_t end) {
    std::lock_guard<std::mutex> const lock{mutex};
    for (std::int64_t i = begin; i < end; ++i) { disjoint = seen.insert(i).second && disjoint; }
  });
  CHECK(disjoint);
  CHECK(seen.size() == 101);
  CHECK(*seen.begin() == 0);
  CHECK(*seen.rbegin() == 100);
}

TEST_CASE("thread_pool: many short loops follow each other", "[llama3]")
{
  thread_pool pool{4};
  std::atomic<std::int64_t> sum{0};
  for (int loop = 0; loop < 20000; ++loop) {
    pool.parallel_for(5, [&](std::int64_t i) { sum += i; });
  }
  CHECK(sum == std::int64_t{20000} * 10);
}

TEST_CASE("thread_pool: two indices that wait for each other meet", "[llama3]")
{
  thread_pool pool{2};
  std::atomic<int> arrived{0};
  pool.parallel_for(2, [&](std::int64_t) {
    ++arrived;
    while (arrived < 2) { std::this_thread::yield(); }  // would hang if one thread ran both
  });
  CHECK(arrived == 2);
}

TEST_CASE("thread_pool: an exception reaches the caller and the pool goes on", "[llama3]")
{
  for (int const num_threads : {1, 2, 4}) {
    CAPTURE(num_threads);
    thread_pool pool{num_threads};
    for (int round = 0; round < 100; ++round) {
      auto const fails = [](std::int64_t i) {
        if (i == 17) { throw std::runtime_error("index 17"); }
      };
      CHECK_THROWS_AS(pool.parallel_for(64, fails), std::runtime_error);
      std::atomic<int> runs{0};
      pool.parallel_for(64, [&](std::int64_t) { ++runs; });
      CHECK(runs == 64);
    }
  }
}

TEST_CASE("thread_pool: a loop inside a loop runs", "[llama3]")
{
  thread_pool pool{2};
  std::atomic<int> runs{0};
  pool.parallel_for(6, [&](std::int64_t) { pool.parallel_for(5, [&](std::int64_t) { ++runs; }); });
  CHECK(runs == 30);
}

TEST_CASE("thread_pool: callers in several threads take turns", "[llama3]")
{
  thread_pool pool{2};
  std::atomic<int> runs{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 3; ++c) {
    callers.emplace_back([&] {
      for (int loop = 0; loop < 200; ++loop) {
        pool.parallel_for(4, [&](std::int64_t) { ++runs; });
      }
    });
  }
  for (auto& caller : callers) { caller.join(); }
  CHECK(runs == 3 * 200 * 4);
}

TEST_CASE("thread_pool: no threads at all are refused", "[llama3]")
{
  CHECK_THROWS_AS(thread_pool{0}, std::invalid_argument);
  CHECK_THROWS_AS(thread_pool{-1}, std::invalid_argument);
  CHECK(thread_pool::default_threads() >= 1);
}
