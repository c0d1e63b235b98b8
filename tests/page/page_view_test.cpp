// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "page/formats.hpp"
#include "support/catch.hpp"

#include <diffkv/page/page_size.hpp>
#include <diffkv/pool/page_pool.hpp>
#include <diffkv/quant/vector_codec.hpp>

#include <cstring>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace {

using diffkv::affine;
using diffkv::code_spec;
using diffkv::format_spec;
using diffkv::page_geometry;
using diffkv::page_view;
using diffkv::test::describe;

// What slot `token` holds: codes that differ from lane to lane, slot to slot and side to side.
std::uint32_t some_code(int token, int dim, int bits, int side)
{
  auto const mixed =
    static_cast<std::uint32_t>(token * 7919 + dim * 31 + side * 17 + 5) * 2654435761u;
  return (mixed >> 9) & ((1u << bits) - 1u);
}
affine some_affine(int token, int group, int side)
{
  auto const bits = static_cast<std::uint16_t>(token * 64 + group * 8 + side * 2);
  return {diffkv::f16_bits{bits}, diffkv::f16_bits{static_cast<std::uint16_t>(bits + 1)}};
}
bool operator==(affine a, affine b) { return a.scale == b.scale && a.zero == b.zero; }

void fill_slot(page_view const& page, int slot, int content)
{
  auto const& g = *page.geometry;
  for (int dim = 0; dim < g.head_dim; ++dim) {
    page.set_code(g.key_code(slot, dim), g.format.key.bits,
                  some_code(content, dim, g.format.key.bits, 0));
    page.set_code(g.value_code(slot, dim), g.format.value.bits,
                  some_code(content, dim, g.format.value.bits, 1));
  }
  for (int n = 0; n < g.format.key.metadata_bytes() / 4; ++n) {
    page.set_key_affine(slot, n, some_affine(content, n, 0));
  }
  for (int n = 0; n < g.format.value.metadata_bytes() / 4; ++n) {
    page.set_value_affine(slot, n, some_affine(content, n, 1));
  }
  page.set_score(slot, 0.25f * static_cast<float>(content));
  page.set_position(slot, 1000 + content);
}

bool slot_holds(page_view const& page, int slot, int content)
{
  auto const& g = *page.geometry;
  bool right    = page.score(slot) == 0.25f * static_cast<float>(content) &&
               page.position(slot) == 1000 + content;
  for (int dim = 0; dim < g.head_dim; ++dim) {
    right = right && page.code(g.key_code(slot, dim), g.format.key.bits) ==
                       some_code(content, dim, g.format.key.bits, 0);
    right = right && page.code(g.value_code(slot, dim), g.format.value.bits) ==
                       some_code(content, dim, g.format.value.bits, 1);
  }
  for (int n = 0; n < g.format.key.metadata_bytes() / 4; ++n) {
    right = right && page.key_affine(slot, n) == some_affine(content, n, 0);
  }
  for (int n = 0; n < g.format.value.metadata_bytes() / 4; ++n) {
    right = right && page.value_affine(slot, n) == some_affine(content, n, 1);
  }
  return right;
}

}  // namespace

TEST_CASE("page_view: a full page returns every slot, overwriting one leaves the others", "[page]")
{
  for (int const head_dim : {64, 80, 96, 128, 256}) {
    for (format_spec const& format : diffkv::test::formats(head_dim)) {
      diffkv::test::page_bytes page{
        diffkv::make_page_geometry(format, head_dim, diffkv::best_page_bytes(head_dim, format))};
      auto const view  = page.view();
      int const tokens = page.geometry.tokens_per_page;
      for (int t = 0; t < tokens; ++t) { fill_slot(view, t, t); }
      int wrong = 0;
      for (int t = 0; t < tokens; ++t) { wrong += slot_holds(view, t, t) ? 0 : 1; }
      for (int const slot : {3, 0, tokens - 1}) {
        fill_slot(view, slot, 400 + slot);
        for (int t = 0; t < tokens; ++t) {
          wrong += slot_holds(view, t, t == slot ? 400 + slot : t) ? 0 : 1;
        }
        fill_slot(view, slot, slot);
      }
      // What lies behind the last segment was never touched.
      for (std::size_t b = page.geometry.end; b < page.bytes.size(); ++b) {
        wrong += page.bytes[b] == std::byte{0xA5} ? 0 : 1;
      }
      if (wrong != 0) { FAIL_CHECK(describe(format, head_dim) << ": " << wrong << " differ"); }
    }
  }
  SUCCEED();
}

TEST_CASE("page_view: filling one page completely leaves its neighbours alone", "[page]")
{
  for (int const head_dim : {64, 96, 128}) {
    for (format_spec const& format : {diffkv::k8v4::spec, diffkv::k4v2::spec, diffkv::k4v1::spec,
                                      diffkv::k16v16::spec, format_spec{{8, 2}, {2, 2}}}) {
      auto const page =
        diffkv::make_page_geometry(format, head_dim, diffkv::best_page_bytes(head_dim, format));
      std::vector<std::byte> pool(4 * std::size_t{page.page_bytes}, std::byte{0xA5});
      page_view const view{pool.data() + page.page_bytes, &page};
      for (int t = 0; t < page.tokens_per_page; ++t) { fill_slot(view, t, t); }
      int touched = 0;
      for (std::size_t b = 0; b < pool.size(); ++b) {
        if (b / page.page_bytes != 1) { touched += pool[b] == std::byte{0xA5} ? 0 : 1; }
      }
      CAPTURE(describe(format, head_dim));
      CHECK(touched == 0);
    }
  }
}

TEST_CASE("page_view: set_code keeps a code to its own bits", "[page]")
{
  page_geometry const page = diffkv::make_page_geometry(diffkv::k4v2::spec, 64, 7168);
  diffkv::test::page_bytes bytes{page, std::byte{0}};
  auto const view = bytes.view();
  for (int const token : {0, 8}) {                    // low and high bits of one byte
    view.set_code(page.key_code(token, 0), 4, 0x1F);  // one bit too many
    CHECK(view.code(page.key_code(token, 0), 4) == 0xF);
    CHECK(view.code(page.key_code(8 - token, 0), 4) == 0);
    int set = 0;
    for (std::byte const b : bytes.bytes) { set += b == std::byte{0} ? 0 : 1; }
    CHECK(set == 1);
    view.set_code(page.key_code(token, 0), 4, 0);
  }
  CHECK(bytes.bytes == std::vector<std::byte>(page.page_bytes, std::byte{0}));
}

#if defined(__linux__)
TEST_CASE("page_view: pages behind 2 and 4 GiB are pages of their own", "[page]")
{
  auto const page = diffkv::make_page_geometry(diffkv::k8v4::spec, 128, 7168);
  std::size_t const num_pages =
    (std::size_t{4700} * 1024 * 1024 + page.page_bytes - 1) / page.page_bytes;
  std::size_t const bytes = num_pages * page.page_bytes;
  // Address space only: a page of memory appears where something is written.
  void* const base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) { DIFFKV_SKIP("no 4.7 GB of address space here"); }
  diffkv::page_pool_ref pool{};
  pool.base                 = static_cast<std::byte*>(base);
  pool.num_pages            = static_cast<std::uint32_t>(num_pages);
  pool.page_bytes           = page.page_bytes;
  std::size_t const a       = (std::size_t{1} << 31) / page.page_bytes;
  std::size_t const b       = (std::size_t{1} << 32) / page.page_bytes;
  std::size_t const pages[] = {0, a - 1, a, a + 1, b - 1, b, b + 1, num_pages - 1};
  for (int i = 0; i < 8; ++i) {
    auto* const bytes_of = pool.page(diffkv::page_id{static_cast<std::uint32_t>(pages[i])});
    CHECK(bytes_of == pool.base + pages[i] * page.page_bytes);
    page_view const view{bytes_of, &page};
    for (int t = 0; t < page.tokens_per_page; ++t) { fill_slot(view, t, 40 * i + t); }
  }
  for (int i = 0; i < 8; ++i) {
    page_view const view{pool.page(diffkv::page_id{static_cast<std::uint32_t>(pages[i])}), &page};
    for (int t = 0; t < page.tokens_per_page; ++t) {
      CAPTURE(i, t);
      CHECK(slot_holds(view, t, 40 * i + t));
    }
  }
  munmap(base, bytes);
}
#endif
