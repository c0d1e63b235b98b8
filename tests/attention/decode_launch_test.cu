// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! What the result of decode attention on the device must not depend on: how the launch is cut, where
//! pages lie, what runs beside it, whether it is replayed.
#include <diffkv/host/prompt.hpp>

#include <chrono>
#include <thread>

#include "attention/edges_case.cuh"
#include "support/device_memory.hpp"

namespace {

using namespace diffkv;
using test::check;
using mixed      = test::paper_config<k8v4, k4v2, 128>;
using mixed_case = test::decode_case<mixed, decode_variant<4>, __half, __half>;

constexpr std::uint32_t high_page = mixed::layouts::pages.tokens_per_page(tier::high);
constexpr std::uint32_t low_page  = mixed::layouts::pages.tokens_per_page(tier::low);

//! Sequences of all lengths up to `longest`, other ones for each head.
void fill_ragged(mixed_case& c, std::uint32_t longest)
{
  for (std::uint32_t slot = 0; slot < c.shape().num_slots; ++slot) {
    for (std::uint32_t layer = 0; layer < c.shape().num_layers; ++layer) {
      std::vector<tier_counts> tokens(c.shape().num_heads);
      for (tier_counts& t : tokens) {
        t.high = c.numbers().below(longest / 2);
        t.low  = c.numbers().below(longest / 2);
      }
      test::fill_rows(c.host().context(), slot, layer, tokens, c.numbers());
    }
  }
}

}  // namespace

TEST_CASE("decode_attention: the result does not depend on the number of splits", "[attention]")
{
  tier_counts const long_row{10 * high_page + 3, 3 * low_page + 1};
  for (std::uint32_t const sequences : {1u, 5u}) {
    mixed_case c{test::decode_parts<mixed>(sequences, 1, 4, 700)};
    for (std::uint32_t slot = 0; slot < sequences; ++slot) {
      test::fill_rows(c.host().context(), slot, 0,
                      {slot == 0 ? long_row : tier_counts{slot * 37, slot * 11}}, c.numbers());
    }
    auto const batch = test::some_slots(sequences, c.numbers());
    auto const query = c.queries(sequences, -2.0f, 2.0f);
    for (decode_grid const grid :
         {decode_grid{1, 1},  decode_grid{2, 1},  decode_grid{1, 2},  decode_grid{3, 1},
          decode_grid{1, 3},  decode_grid{4, 1},  decode_grid{5, 1},  decode_grid{1, 5},
          decode_grid{7, 1},  decode_grid{1, 8},  decode_grid{3, 3},  decode_grid{2, 8},
          decode_grid{16, 1}, decode_grid{5, 5},  decode_grid{32, 1}, decode_grid{8, 8},
          decode_grid{64, 1}, decode_grid{1, 12}, decode_grid{2, 9},  decode_grid{3, 12},
          decode_grid{}}) {
      CAPTURE(sequences, grid.ctas, grid.warps);
      test::decode_call call;
      call.capacity     = sequences;
      call.grid         = grid;
      auto attention    = c.attention(call);
      auto const answer = attention.run(batch, query);
      auto const errors = c.errors(answer, batch, query);
      CHECK(errors.out <= test::bounds_of_codes.out);
      CHECK(errors.lse <= test::bounds_of_codes.lse);
    }
  }
}

TEST_CASE("decode_attention: rows of equal cost, which leave CTAs without a share, equal f64",
          "[attention]")
{
  // Of 132 CTAs 128 share 8, 32, 64 and 256 rows; 20 rows are shared by all.
  for (std::uint32_t const sequences : {2u, 8u, 16u, 64u, 5u}) {
    for (tier_counts const& tokens :
         {tier_counts{700, 0}, tier_counts{300, 400}, tier_counts{1, 0}}) {
      CAPTURE(sequences, tokens.high, tokens.low);
      mixed_case c{test::decode_parts<mixed>(sequences, 4, 4, 700)};
      for (std::uint32_t slot = 0; slot < sequences; ++slot) {
        test::fill_rows(c.host().context(), slot, 0, std::vector<tier_counts>(4, tokens),
                        c.numbers());
      }
      auto const batch = test::some_slots(sequences, c.numbers());
      auto const query = c.queries(sequences, -2.0f, 2.0f);
      test::decode_call call;
      call.capacity     = sequences;
      call.grid         = {132, 12};
      auto attention    = c.attention(call);
      auto const answer = attention.run(batch, query);
      auto const errors = c.errors(answer, batch, query);
      CHECK(errors.out <= test::bounds_of_codes.out);
      CHECK(errors.lse <= test::bounds_of_codes.lse);
    }
  }
}

TEST_CASE("decode_attention: rows of 1 to 200 tokens equal f64, each alone in its sequence",
          "[attention]")
{
  mixed_case c{test::decode_parts<mixed>(200, 1, 4, 200)};
  for (std::uint32_t n = 1; n <= 200; ++n) {
    std::uint32_t const low = c.numbers().below(n);
    test::fill_rows(c.host().context(), n - 1, 0, {{n - low, low}}, c.numbers());
  }
  auto const batch = test::some_slots(200, c.numbers());
  auto const query = c.queries(200, -2.0f, 2.0f);
  test::decode_call call;
  call.capacity     = 200;
  auto attention    = c.attention(call);
  auto const answer = attention.run(batch, query);
  auto const errors = c.errors(answer, batch, query);
  CHECK(errors.out <= test::bounds_of_codes.out);
  CHECK(errors.lse <= test::bounds_of_codes.lse);
}

TEST_CASE("decode_attention: a hundred runs have the same bits", "[attention]")
{
  mixed_case c{test::decode_parts<mixed>(4, 8, 4, 3000)};
  std::uint32_t slot = 0;
  for (std::uint32_t const n : {3000u, 17u, 1u, 900u}) {
    std::vector<tier_counts> tokens(8, {n, 0});
    for (tier_counts& t : tokens) {
      t.low = c.numbers().below(n);
      t.high -= t.low;
    }
    test::fill_rows(c.host().context(), slot++, 0, tokens, c.numbers());
  }
  auto const query = c.queries(4, -2.0f, 2.0f);
  test::decode_call call;
  call.capacity    = 4;
  auto attention   = c.attention(call);
  auto const first = attention.run({0, 1, 2, 3}, query);
  auto const e     = c.errors(first, {0, 1, 2, 3}, query);
  CHECK(e.out <= test::bounds_of_codes.out);
  CHECK(e.lse <= test::bounds_of_codes.lse);
  int different = 0;
  for (int i = 0; i < 100; ++i) {
    attention.spoil_outputs();
    if (i % 2 == 0) { attention.plan(); }  // a plan serves any number of launches
    attention.attend(0);
    different += attention.answer().same(first) ? 0 : 1;
  }
  CHECK(different == 0);
}

TEST_CASE("decode_attention: where pages lie changes no bit", "[attention]")
{
  std::vector<test::decode_answer<__half>> answers;
  for (std::uint64_t const placement : {1u, 2u, 3u}) {
    test::host_cache_parts const parts = test::decode_parts<mixed>(5, 2, 4, 600);
    mixed_case c{parts, 9};
    test::random other{placement};
    c.host().shuffle_pages(other);
    fill_ragged(c, 600);
    test::decode_call call;
    call.capacity    = 5;
    auto attention   = c.attention(call);
    auto const query = c.queries(5, -2.0f, 2.0f);
    answers.push_back(attention.run({3, 1, 0, 4, 2}, query));
    CHECK(answers.back().same(answers.front()));
  }
}

TEST_CASE("decode_attention: pages beyond 2 and 4 GiB of a pool are found", "[attention]")
{
  mixed_case c{test::decode_parts<mixed>(1, 2, 4, 400)};
  test::fill_rows(c.host().context(), 0, 0, {{130, 100}, {70, 130}}, c.numbers());
  auto const query  = c.queries(1, -2.0f, 2.0f);
  auto near         = c.attention({});
  auto const answer = near.run({0}, query);

  // The same pages once more, around the places where 31 and 32 bits of an offset end.
  cache_ref const& host     = c.host().ref();
  std::uint64_t const bytes = host.pool.page_bytes;
  std::uint64_t const gib   = 1ull << 30;
  auto const num_pages      = static_cast<std::uint32_t>(4 * gib / bytes + gib / (2 * bytes));
  std::vector<std::uint64_t> places;
  for (std::uint64_t const at : {2 * gib / bytes, 4 * gib / bytes}) {
    for (std::uint64_t i = at - 6; i < at + 6; ++i) { places.push_back(i); }
  }
  places.push_back(0);
  places.push_back(num_pages - 1);
  std::byte* pool = nullptr;
  void* memory    = nullptr;
  check(cudaMalloc(&memory, num_pages * bytes), "cudaMalloc");
  pool = static_cast<std::byte*>(memory);
  std::vector<page_id> const kept(host.table.entries,
                                  host.table.entries + 2 * host.table.row_entries);
  std::size_t next = 0;
  for (std::uint32_t e = 0; e < 2 * host.table.row_entries; ++e) {
    page_id& id = host.table.entries[e];
    if (id == no_page) { continue; }
    REQUIRE(next < places.size());
    check(
      cudaMemcpy(pool + places[next] * bytes, host.pool.page(id), bytes, cudaMemcpyHostToDevice),
      "cudaMemcpy");
    id = page_id{static_cast<std::uint32_t>(places[next++])};
  }
  c.upload();
  std::copy(kept.begin(), kept.end(), host.table.entries);
  cache_ref far      = c.on_device();
  far.pool.base      = pool;
  far.pool.num_pages = num_pages;
  {
    test::decode_call call;
    call.options = c.options();
    test::decode_device<mixed, decode_variant<4>, __half, __half> attention{far, call};
    CHECK(next > 12);
    CHECK(attention.run({0}, query).same(answer));
  }
  cudaFree(memory);
}

TEST_CASE("decode_attention: a captured plan and its launches serve other lengths and batches",
          "[attention]")
{
  constexpr std::uint32_t slots = 6, layers = 2;
  mixed_case c{test::decode_parts<mixed>(slots, 2, 4, 500, layers)};
  test::decode_call call;
  call.capacity  = slots;
  call.layers    = {0, layers};
  auto attention = c.attention(call);
  attention.set_batch({});  // whom it serves is read at replay
  cudaGraph_t graph     = nullptr;
  cudaGraphExec_t ready = nullptr;
  check(cudaStreamBeginCapture(attention.stream(), cudaStreamCaptureModeThreadLocal), "capture");
  attention.plan();
  attention.attend(0);
  attention.attend(1);
  check(cudaStreamEndCapture(attention.stream(), &graph), "capture");
  check(cudaGraphInstantiate(&ready, graph, 0), "instantiate");
  check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  for (std::uint32_t const longest : {40u, 480u, 4u, 250u}) {
    CAPTURE(longest);
    for (std::uint32_t slot = 0; slot < slots; ++slot) {
      static_cast<void>(host::release_slots(c.host().context(), &slot, 1));
    }
    fill_ragged(c, longest);
    c.upload();
    std::uint32_t const count = 1 + c.numbers().below(slots);
    auto batch                = test::some_slots(slots, c.numbers());
    batch.resize(count);
    auto const query = c.queries(count, -2.0f, 2.0f);
    attention.set_batch(batch);
    attention.set_query(query);
    attention.spoil_outputs();
    check(cudaGraphLaunch(ready, attention.stream()), "cudaGraphLaunch");
    auto const answer = attention.answer();  // of the layer that came last
    auto const errors = c.errors(answer, batch, query, 1);
    CHECK(errors.out <= test::bounds_of_codes.out);
    CHECK(errors.lse <= test::bounds_of_codes.lse);
    CHECK_FALSE(answer.wrote_astray);
    CHECK(attention.run(batch, query, 1).same(answer));
  }
  check(cudaGraphExecDestroy(ready), "cudaGraphExecDestroy");
}

TEST_CASE("decode_attention: is ordered in its stream, behind whatever keeps that busy",
          "[attention]")
{
  mixed_case c{test::decode_parts<mixed>(3, 2, 4, 300)};
  fill_ragged(c, 300);
  auto const query = c.queries(3, -2.0f, 2.0f);
  test::decode_call call;
  call.capacity           = 3;
  auto attention          = c.attention(call);
  auto const quiet        = attention.run({2, 1, 0}, query);
  int different           = 0;
  cache_ref const at      = c.on_device();
  std::size_t const bytes = c.shape().num_rows() * sizeof(row_state);
  test::pinned_array<row_state> const rows{c.shape().num_rows()};
  std::copy_n(c.host().ref().state.rows, c.shape().num_rows(), rows.data());
  for (int i = 0; i < 20; ++i) {
    attention.spoil_outputs();
    check(cudaMemset(at.state.rows, 0, bytes), "cudaMemset");
    check(cudaDeviceSynchronize(), "cudaMemset");
    check(cudaLaunchHostFunc(
            attention.stream(),
            [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(3)); }, nullptr),
          "cudaLaunchHostFunc");
    check(cudaMemcpyAsync(at.state.rows, rows.data(), bytes, cudaMemcpyHostToDevice,
                          attention.stream()),
          "cudaMemcpyAsync");
    attention.plan();
    attention.attend(0);
    different += attention.answer().same(quiet) ? 0 : 1;
  }
  CHECK(different == 0);
}

TEST_CASE("decode_attention: two threads with caches of their own do not meet", "[attention]")
{
  constexpr int threads  = 2;
  int different[threads] = {-1, -1};
  auto const live        = [&](int number) {
    mixed_case c{test::decode_parts<mixed>(3, 2, 4, 300), static_cast<std::uint64_t>(number) + 1};
    fill_ragged(c, 300);
    auto const query = c.queries(3, -2.0f, 2.0f);
    test::decode_call call;
    call.capacity    = 3;
    auto attention   = c.attention(call);
    auto const alone = attention.run({2, 1, 0}, query);
    int wrong        = c.errors(alone, {2, 1, 0}, query).out <= test::bounds_of_codes.out ? 0 : 1;
    for (int i = 0; i < 100; ++i) {
      attention.plan();
      attention.attend(0);
      wrong += attention.answer().same(alone) ? 0 : 1;
    }
    different[number] = wrong;
  };
  std::thread other{live, 1};
  live(0);
  other.join();
  CHECK(different[0] == 0);
  CHECK(different[1] == 0);
}

TEST_CASE("decode_attention: an old error of somebody else is not its own", "[attention]")
{
  mixed_case c{test::decode_parts<mixed>(1, 1, 4, 100)};
  test::fill_rows(c.host().context(), 0, 0, {{40, 30}}, c.numbers());
  auto const query = c.queries(1, -2.0f, 2.0f);
  auto attention   = c.attention({});
  attention.set_batch({0});
  attention.set_query(query);
  attention.spoil_outputs();
  CHECK(cudaSetDevice(999) != cudaSuccess);
  CHECK_NOTHROW(attention.plan());
  CHECK_NOTHROW(attention.attend(0));
  static_cast<void>(cudaGetLastError());
  CHECK(c.errors(attention.answer(), {0}, query).out <= test::bounds_of_codes.out);
}
