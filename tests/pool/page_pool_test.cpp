// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include <diffkv/host/page_codec.hpp>
#include <diffkv/pool/page_pool.hpp>

#include <sys/mman.h>  // mmap

#include <cstring>
#include <new>

#include "support/catch.hpp"

namespace {
//! Address space without memory behind it: pages come into being when they are touched.
struct sparse_resource {
  static constexpr bool is_host_accessible = false;  // nobody shall touch all of it

  void* allocate(std::size_t bytes, std::size_t)
  {
    int const flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void* const p   = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (p == MAP_FAILED) { throw std::bad_alloc{}; }
    return p;
  }
  void deallocate(void* p, std::size_t bytes, std::size_t) noexcept { ::munmap(p, bytes); }
};

//! [head_dim] from `zero` upwards over every level of `bits` bits: scale 1, so it comes back exactly.
std::vector<float> exact_vector(int zero, int bits, int head_dim)
{
  std::vector<float> x(static_cast<std::size_t>(head_dim));
  int const levels = 1 << bits;
  for (int d = 0; d < head_dim; ++d) {
    x[static_cast<std::size_t>(d)] = static_cast<float>(zero + 7 * d % levels);
  }
  x[0] = static_cast<float>(zero);
  x[1] = static_cast<float>(zero + levels - 1);
  return x;
}
}  // namespace

TEST_CASE("page_pool: page ids across 2 GiB and 4 GiB do not alias", "[pool]")
{
  diffkv::page_geometry const g = diffkv::make_page_geometry(diffkv::k4v2::spec, 64, 7168);
  std::uint64_t const bytes     = g.page_bytes;
  auto const pages_to           = [&](std::uint64_t end) { return (end + bytes - 1) / bytes; };
  auto const num_pages          = static_cast<std::uint32_t>(pages_to(4'939'212'390u));  // 4.6 GiB
  diffkv::page_pool<sparse_resource> owner{num_pages, g.page_bytes};
  diffkv::page_pool_ref const pool = owner.ref();
  CHECK(owner.size_bytes() == bytes * num_pages);

  auto const a = static_cast<std::uint32_t>((std::uint64_t{1} << 31) / bytes);
  auto const b = static_cast<std::uint32_t>((std::uint64_t{1} << 32) / bytes);
  std::vector<std::uint32_t> const ids{0, a - 1, a, a + 1, b - 1, b, b + 1, num_pages - 1};
  diffkv::host::page_codec const codec{g};
  for (std::size_t i = 0; i < ids.size(); ++i) {
    std::byte* const page = pool.page(diffkv::page_id{ids[i]});
    codec.write_key(page, 0, exact_vector(static_cast<int>(i), 4, 64).data());
    codec.write_value(page, 0, exact_vector(static_cast<int>(i), 2, 64).data());
  }
  std::vector<float> x(64);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    CAPTURE(i, ids[i]);
    std::byte const* const page = pool.page(diffkv::page_id{ids[i]});
    codec.read_key(page, 0, x.data());
    CHECK(x == exact_vector(static_cast<int>(i), 4, 64));
    codec.read_value(page, 0, x.data());
    CHECK(x == exact_vector(static_cast<int>(i), 2, 64));
  }
}

TEST_CASE("page_pool: sizes that cannot be are refused by name", "[pool]")
{
  using pool = diffkv::page_pool<>;
  CHECK_THROWS_WITH(pool(1, 0), diffkv::test::contains("page_bytes"));
  CHECK_THROWS_WITH(pool(1, 100), diffkv::test::contains("128"));
  CHECK_THROWS_WITH(pool(1, 130), diffkv::test::contains("page_bytes"));
  CHECK_THROWS_WITH(pool(0xFFFF'FFFFu, 128), diffkv::test::contains("num_pages"));
  CHECK(pool(3, 256).size_bytes() == 768);
}
