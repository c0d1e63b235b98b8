// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "support/catch.hpp"

#include <diffkv/core/memory.hpp>

#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

namespace diffkv::test::memory_cases {

struct record {
  int allocations   = 0;
  int deallocations = 0;
  std::size_t bytes = 0;  // held now
};

// Counts what passes through it; memory arrives filled with 0xFF.
template <bool HostAccessible>
struct counting_resource {
  static constexpr bool is_host_accessible = HostAccessible;
  record* log                              = nullptr;

  void* allocate(std::size_t bytes, std::size_t alignment)
  {
    void* const p = ::operator new (bytes, std::align_val_t{alignment});
    std::memset(p, 0xFF, bytes);
    ++log->allocations;
    log->bytes += bytes;
    return p;
  }
  void deallocate(void* p, std::size_t bytes, std::size_t alignment) noexcept
  {
    ::operator delete (p, std::align_val_t{alignment});
    ++log->deallocations;
    log->bytes -= bytes;
  }
};

struct no_deallocate {
  static constexpr bool is_host_accessible = true;
  void* allocate(std::size_t, std::size_t);
};
struct no_constant {
  void* allocate(std::size_t, std::size_t);
  void deallocate(void*, std::size_t, std::size_t) noexcept;
};

}  // namespace diffkv::test::memory_cases

namespace {
using diffkv::test::memory_cases::counting_resource;
using diffkv::test::memory_cases::no_constant;
using diffkv::test::memory_cases::no_deallocate;
using diffkv::test::memory_cases::record;
}  // namespace

TEST_CASE("memory: buffer gives back exactly what it took, once", "[core]")
{
  record log{};
  {
    diffkv::buffer<std::uint32_t, counting_resource<true>> a{10, {&log}};
    CHECK(log.bytes == 40);
    diffkv::buffer<std::uint32_t, counting_resource<true>> b{std::move(a)};
    CHECK(log.allocations == 1);
    CHECK(b.size() == 10);
    diffkv::buffer<std::uint32_t, counting_resource<true>> c{3, {&log}};
    c = std::move(b);
    CHECK(c.size() == 10);
    auto& same = c;
    c          = std::move(same);
    CHECK(c.size() == 10);
    CHECK(c.data() != nullptr);
  }
  CHECK(log.allocations == 2);
  CHECK(log.deallocations == 2);
  CHECK(log.bytes == 0);
}

TEST_CASE("memory: host memory starts as zeros, other memory is not touched", "[core]")
{
  record log{};
  diffkv::buffer<std::uint32_t, counting_resource<true>> const host{100, {&log}};
  diffkv::buffer<std::uint32_t, counting_resource<false>> const device{100, {&log}};
  for (std::size_t i = 0; i < 100; ++i) {
    CHECK(host[i] == 0);
    CHECK(device[i] == 0xFFFF'FFFFu);
  }
}

TEST_CASE("memory: buffers are aligned to 256 bytes", "[core]")
{
  for (std::size_t size : {1u, 3u, 255u, 257u, 4096u}) {
    diffkv::buffer<unsigned char> const bytes{size};
    CHECK(reinterpret_cast<std::uintptr_t>(bytes.data()) % 256 == 0);
  }
}

TEST_CASE("memory: an empty buffer allocates nothing", "[core]")
{
  record log{};
  {
    diffkv::buffer<double, counting_resource<true>> const empty{0, {&log}};
    CHECK(empty.data() == nullptr);
    CHECK(empty.size() == 0);
  }
  diffkv::buffer<double> const unmade{};
  CHECK(unmade.size() == 0);
  CHECK(log.allocations == 0);
  CHECK(log.deallocations == 0);
}

TEST_CASE("memory: a size whose bytes do not fit the address space is refused", "[core]")
{
  record log{};
  std::size_t const most = std::numeric_limits<std::size_t>::max();
  using doubles          = diffkv::buffer<double, counting_resource<true>>;
  CHECK_THROWS_AS(doubles(most / 8 + 1, {&log}), diffkv::invalid_argument);
  CHECK_THROWS_AS(doubles(most, {&log}), diffkv::invalid_argument);
  CHECK(log.allocations == 0);
}

TEST_CASE("memory: the contract of a memory resource is checked", "[core]")
{
  STATIC_REQUIRE(diffkv::is_memory_resource_v<diffkv::host_resource>);
  STATIC_REQUIRE(diffkv::is_memory_resource_v<counting_resource<false>>);
  STATIC_REQUIRE_FALSE(diffkv::is_memory_resource_v<no_deallocate>);
  STATIC_REQUIRE_FALSE(diffkv::is_memory_resource_v<no_constant>);
  STATIC_REQUIRE_FALSE(diffkv::is_memory_resource_v<int>);
}
