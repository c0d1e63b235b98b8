// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! Decode attention reads pages before the kernel in front has ended, but not what that one writes.
#include <algorithm>  // count_if, min

#include "attention/edges_case.cuh"
#include "support/spin.cuh"

namespace {

using namespace diffkv;
using test::check;
using mixed = test::paper_config<k8v4, k4v2, 128>;

//! What kernels in front of attention write, and what it is before.
struct late_writes {
  std::byte const* pages;  //!< a copy of the pool as it shall be
  __half const* queries;   //!< the same of all queries
  __half* query_memory;
  std::size_t num_queries;  //!< elements
};

//! Lets attention start, and writes what it needs long after: the queries, and the pages where the tokens
//! of the step go.  @threads one CTA
__global__ void write_late_kernel(cache_ref const cache, late_writes const what,
                                  std::uint64_t nanoseconds)
{
  detail::let_next_start();
  test::spin(nanoseconds);
  for (std::size_t i = threadIdx.x; i < what.num_queries; i += blockDim.x) {
    what.query_memory[i] = what.queries[i];
  }
  for (std::size_t row = 0; row < cache.shape.num_rows(); ++row) {
    slot_index const at = cache.state.rows[row].append_slot;
    if (at == no_slot) { continue; }
    auto const id = static_cast<std::size_t>(
      cache.table.entry(row, tier::high, at / cache.tiers.tokens_per_page(tier::high)));
    for (std::size_t i = threadIdx.x; i < cache.pool.page_bytes; i += blockDim.x) {
      cache.pool.base[id * cache.pool.page_bytes + i] = what.pages[id * cache.pool.page_bytes + i];
    }
  }
}

//! Gives rows append slots in any page, and in the n-th of the pages that a warp begins with.
//! @return warps that begin with such a page, within the first n + 1
template <class Case, class Attention>
int place_tokens(Case& c, Attention const& attention, std::uint32_t n)
{
  cache_ref const& host           = c.host().ref();
  std::uint32_t const page_tokens = host.tiers.tokens_per_page(tier::high);
  std::size_t const num_warps     = attention.workspace().grid.num_warps();
  std::vector<warp_range> ranges(num_warps);
  auto const read_ranges = [&] {
    attention.plan();
    attention.wait();
    check(cudaMemcpy(ranges.data(), attention.workspace().ranges, num_warps * sizeof(warp_range),
                     cudaMemcpyDeviceToHost),
          "cudaMemcpy");
  };
  read_ranges();
  std::uint32_t const first_row = ranges[0].of.row;  // of any plan; it always has a slot
  for (std::size_t row = 0; row < host.shape.num_rows(); ++row) {
    row_state& state   = host.state.rows[row];
    bool const refused = row != first_row && c.numbers().below(5) == 0;
    state.append_slot  = refused ? no_slot : c.numbers().below(state.tokens.high);
  }
  c.upload();
  read_ranges();  // which depend on who has a slot, as only such rows catch up, but not on where
  for (warp_range const& range : ranges) {
    std::uint32_t const first = (range.first_page + n) * page_tokens;
    row_state& state          = host.state.rows[range.of.row];
    if (range.num_pages > n && first < state.tokens.high && state.append_slot != no_slot) {
      state.append_slot =
        first + c.numbers().below(std::min(page_tokens, state.tokens.high - first));
    }
  }
  c.upload();
  read_ranges();
  return static_cast<int>(std::count_if(ranges.begin(), ranges.end(), [&](warp_range const& range) {
    return range.num_pages > 0 && range.appends_within(n + 1);
  }));
}

//! @param grids  how the launch is cut: into long and short ranges
template <class Config, class Variant>
void check_late_writes(std::vector<decode_grid> const& grids)
{
  constexpr std::uint32_t slots = 3, heads = 4;
  test::decode_case<Config, Variant, __half, __half> c{
    test::decode_parts<Config>(slots, heads, 4, 1500, 1, Variant::score_every)};
  constexpr bool has_low = Config::layouts::has_low;
  for (std::uint32_t slot = 0; slot < slots; ++slot) {
    std::vector<tier_counts> tokens(heads);
    for (tier_counts& t : tokens) {
      t = {200 + c.numbers().below(500), has_low ? c.numbers().below(800) : 0};
    }
    test::fill_rows(c.host().context(), slot, 0, tokens, c.numbers());
  }
  cache_ref const& host   = c.host().ref();
  std::size_t const bytes = std::size_t{host.pool.num_pages} * host.pool.page_bytes;
  auto const query        = c.queries(slots, -2.0f, 2.0f);
  test::device_array<std::byte> const good{host.pool.base, bytes};
  std::vector<std::uint32_t> const batch{1, 2, 0};
  for (decode_grid const grid : grids) {
    for (std::uint32_t const page : {0u, 1u}) {
      CAPTURE(grid.ctas, grid.warps, page);
      c.upload();
      test::decode_call call;
      call.capacity  = slots;
      call.grid      = grid;
      auto attention = c.attention(call);
      attention.set_batch(batch);
      CHECK(place_tokens(c, attention, page) > 0);
      auto const expected = attention.run(batch, query);
      CHECK(c.errors(expected, batch, query).out <= test::bounds_of_codes.out);

      auto const& queries    = attention.query_memory();
      std::size_t const size = queries.size() * sizeof(__half);
      test::device_array<__half> const good_queries{queries.to_host()};
      check(cudaMemset(queries.data(), 0xFF, size), "cudaMemset");
      c.upload();  // scores as they were
      cache_ref const& at = c.on_device();
      for (std::size_t row = 0; row < host.shape.num_rows(); ++row) {
        slot_index const slot = host.state.rows[row].append_slot;
        if (slot == no_slot) { continue; }
        page_id const id =
          host.table.entry(row, tier::high, slot / host.tiers.tokens_per_page(tier::high));
        check(cudaMemset(at.pool.page(id), 0xFF, at.pool.page_bytes), "cudaMemset");
      }
      attention.spoil_outputs();
      attention.plan();
      check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
      write_late_kernel<<<1, 256, 0, attention.stream()>>>(
        at, {good.data(), good_queries.data(), queries.data(), queries.size()}, 300'000);
      attention.attend(0);
      CHECK(attention.answer().same(expected));
    }
  }
}

}  // namespace

TEST_CASE("decode_attention: waits for the queries and the tokens that the kernel in front writes",
          "[attention][small]")
{
  std::vector<decode_grid> const grids{{}, {1, 1}, {1, 8}, {7, 3}, {40, 8}};
  check_late_writes<mixed, decode_variant<4>>(grids);
  check_late_writes<mixed, decode_variant<4, 4>>(grids);
  check_late_writes<test::paper_config<k4v4, void, 128>, decode_variant<4>>(grids);
  check_late_writes<test::paper_config<k16v16, void, 256>, decode_variant<4>>(grids);
}
