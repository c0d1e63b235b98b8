// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! Decode attention refuses what it was not compiled for, and says which argument it was.
#include "attention/edges_case.cuh"

namespace {

using namespace diffkv;
using mixed = test::paper_config<k8v4, k4v2, 128>;

constexpr std::uint32_t slots = 2, layers = 3;

//! A call of which a test changes one thing. What is not refused runs, on memory of its own.
template <class Variant>
struct call {
  call()
  {
    for (std::uint32_t slot = 0; slot < slots; ++slot) {
      for (std::uint32_t l = 0; l < layers; ++l) {
        test::random r{slot + 1};
        test::fill_rows(host.context(), slot, l, {{20, 10}}, r);
      }
    }
    device = std::make_unique<test::device_cache>(host.ref(), 1);
    cache  = device->ref();
    cudaMemset(batch_slots.data(), 0, batch_slots.size() * 4);
    cudaDeviceSynchronize();
  }
  [[nodiscard]] decode_workspace_ref workspace() const
  {
    std::size_t const bytes =
      decode_workspace_bytes<mixed, Variant>(cache.shape, capacity, held, grid);
    return make_decode_workspace<mixed, Variant>(memory.data(), bytes - missing_bytes, cache.shape,
                                                 capacity, held, grid);
  }
  void plan(std::uint32_t batch = slots) const
  {
    plan_decode<mixed>(cache, {batch_slots.data(), nullptr, batch}, planned, workspace(),
                       stream.get());
  }
  void attend() const { attend(workspace()); }
  void attend(decode_workspace_ref const& work) const
  {
    decode_attention<mixed, Variant>(cache, layer, {}, options, work,
                                     packed<__half const>(vectors.data(), 4, 128),
                                     packed<__half>(vectors.data(), 4, 128), nullptr, stream.get());
  }

  test::host_cache host{test::decode_parts<mixed>(slots, 1, 4, 100, layers, 2)};
  std::unique_ptr<test::device_cache> device{};
  test::device_array<std::uint32_t> batch_slots{8};
  test::device_array<std::byte> memory{1 << 20};
  test::device_array<__half> vectors{8 * 4 * 128};
  test::device_stream stream{};
  cache_ref cache{};
  decode_grid grid{4, 2};
  std::uint32_t capacity = slots;
  layer_range held{0, layers};
  layer_range planned{0, layers};
  std::uint32_t layer = 0;
  attention_options options{};
  std::size_t missing_bytes = 0;
};

using plain_call = call<decode_variant<4>>;

//! Throws `invalid_argument` with a text that names `what`, and leaves no error of CUDA behind.
template <class F>
void check_refused(F&& f, char const* what)
{
  std::string text = "nothing was thrown";
  try {
    f();
  } catch (invalid_argument const& e) {
    text = e.what();
  }
  CHECK_THAT(text, test::contains(what));
  CHECK(cudaGetLastError() == cudaSuccess);
}

}  // namespace

TEST_CASE("decode_attention: handles of another configuration are refused", "[attention]")
{
  plain_call c;
  c.cache.shape.head_dim = 64;
  check_refused([&] { c.plan(); }, "head_dim");
  check_refused([&] { c.attend(); }, "head_dim");
  c.cache.shape.head_dim = 128;
  c.cache.conditioned    = conditioning::rotated;
  check_refused([&] { c.plan(); }, "conditioning");
  check_refused([&] { c.attend(); }, "conditioning");
  c.cache.conditioned = conditioning::none;
  c.cache.tiers       = test::paper_config<k8v8, void, 128>::layouts::pages;
  check_refused([&] { c.plan(); }, "formats");
  check_refused([&] { c.attend(); }, "formats");
}

TEST_CASE("decode_attention: a variant for other caches or options is refused", "[attention]")
{
  plain_call c;
  c.cache.shape.group_size = 3;
  check_refused([&] { c.attend(); }, "group_size");
  c.cache.shape.group_size = 4;
  c.options.soft_cap       = 30.0f;
  check_refused([&] { c.attend(); }, "soft_cap");
  c.options.soft_cap       = 0.0f;
  c.options.sliding_window = 100;
  check_refused([&] { c.attend(); }, "sliding_window");

  call<decode_variant<4, 2>> scored;
  scored.cache.shape.score_every = 4;
  check_refused([&] { scored.attend(); }, "score_every");
  scored.cache.shape.score_every = 0;
  check_refused([&] { scored.attend(); }, "score_every");
  scored.cache.shape.score_every      = 2;
  scored.options.exact_lagged_queries = true;
  check_refused([&] { scored.attend(); }, "exact_lagged_queries");
  scored.options.exact_lagged_queries = false;
  scored.cache.queries.rounding       = lag_rounding::none;
  check_refused([&] { scored.attend(); }, "lag ring must hold 8-bit codes");
}

TEST_CASE("decode_attention: layers that the cache or the workspace has not are refused",
          "[attention]")
{
  plain_call c;
  c.layer = layers;
  check_refused([&] { c.attend(); }, "layer");
  c.held  = {1, 1};
  c.layer = 0;
  check_refused([&] { c.attend(); }, "layer");
  c.layer = 2;
  check_refused([&] { c.attend(); }, "layer");
  c.planned = {0, 2};
  check_refused([&] { c.plan(); }, "layers");
  c.held = {1, layers};
  check_refused([&] { static_cast<void>(c.workspace()); }, "layers");
}

TEST_CASE("decode_attention: a workspace that is too small or for fewer sequences is refused",
          "[attention]")
{
  plain_call c;
  c.missing_bytes = 1;
  check_refused([&] { static_cast<void>(c.workspace()); }, "bytes");
  c.missing_bytes = 0;
  check_refused([&] { c.plan(slots + 1); }, "batch");
  c.grid.ctas = 0;
  check_refused([&] { static_cast<void>(c.workspace()); }, "grid");
  c.grid = {4, 2};
  check_refused([&] { c.attend(decode_workspace_ref{}); }, "");
}

TEST_CASE("decode_attention: workspace grows with grid, rows and layers, not with the context",
          "[attention]")
{
  cache_shape shape = plain_call{}.cache.shape;
  auto const bytes  = [&](std::uint32_t capacity, layer_range l, decode_grid grid) {
    return decode_workspace_bytes<mixed, decode_variant<4>>(shape, capacity, l, grid);
  };
  std::size_t const small = bytes(slots, {0, 1}, {8, 2});
  shape.max_tokens        = 1 << 20;
  CHECK(bytes(slots, {0, 1}, {8, 2}) == small);
  CHECK(bytes(slots, {0, 1}, {64, 8}) > small);
  CHECK(bytes(500, {0, 1}, {8, 2}) > small);
  CHECK(bytes(slots, {0, 3}, {8, 2}) > small);
}
