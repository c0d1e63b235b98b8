// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! Vectors at the edges of the codec, through every path that encodes on the device: what the host twin
//! makes of them is said in tests/quant/, here that the device stores the same bytes.
#include <diffkv/compaction/append.cuh>
#include <diffkv/compaction/prompt.cuh>
#include <diffkv/compaction/step.cuh>
#include <diffkv/host/prompt.hpp>
#include <diffkv/host/step.hpp>
#include <diffkv/policy/paper.hpp>

#include "quant/vectors.hpp"
#include "support/catch.hpp"
#include "support/device_cache.hpp"
#include "support/host_cache.hpp"

namespace edge_vectors {

//! Every leaving token goes low.
struct demoting_policy : diffkv::paper_policy {
  [[nodiscard]] DIFFKV_HOST_DEVICE diffkv::step_decision step(
    diffkv::step_view const&) const noexcept
  {
    return {diffkv::step_action::demote_leaving, false};
  }
};
static_assert(diffkv::is_policy_v<demoting_policy>);

}  // namespace edge_vectors

namespace {

using namespace diffkv;
using edge_vectors::demoting_policy;
constexpr auto both = conditioning::centred | conditioning::rotated;

//! [count, head_dim]: finite edges, ordinary vectors, and such as hold NaN or Inf (`not_numbers`).
template <class T>
std::vector<T> edges(int head_dim, bool not_numbers)
{
  auto named       = test::nasty_vectors(head_dim);
  auto const more  = test::random_vectors(head_dim, 16, 5);
  auto const dim   = static_cast<std::size_t>(head_dim);
  float const nan  = std::numeric_limits<float>::quiet_NaN();
  float const inf  = std::numeric_limits<float>::infinity();
  auto const spoil = [&](std::vector<std::pair<std::size_t, float>> const& lanes) {
    auto x = more[0].x;
    for (auto const& [lane, value] : lanes) { x[lane] = value; }
    named.push_back({"no number", x});
  };
  named.insert(named.end(), more.begin(), more.end());
  if (not_numbers) {
    for (std::size_t const lane : {std::size_t{0}, std::size_t{5}, dim / 2, dim - 1}) {
      spoil({{lane, nan}});
      spoil({{lane, inf}});
      spoil({{lane, -inf}});
    }
    spoil({{3, inf}, {7, -inf}});
    spoil({{3, nan}, {dim - 2, inf}});
    named.push_back({"all NaN", std::vector<float>(dim, nan)});
    named.push_back({"all Inf", std::vector<float>(dim, inf)});
  }
  std::vector<T> all;
  for (auto const& v : named) {
    std::vector<T> elements;
    bool is_finite = true;
    for (float const x : v.x) {
      T element;
      from_f32(x, element);
      elements.push_back(element);
      is_finite = is_finite && std::fabs(to_f32(element)) < 1e36f;  // a rotation adds up to 256
    }
    if (is_finite || not_numbers) { all.insert(all.end(), elements.begin(), elements.end()); }
  }
  return all;
}

//! Caches of one row per slot in front of an operation, and what came of it on either side.
template <class Config>
struct edge_case {
  explicit edge_case(std::uint32_t slots, std::int32_t max_tokens)
  {
    using layouts     = typename Config::layouts;
    parts.shape       = {slots, 1, 1, 1, layouts::head_dim, max_tokens, 2, 1};
    parts.tiers       = layouts::pages;
    parts.num_pages   = slots * parts.tiers.most_pages(static_cast<std::uint32_t>(max_tokens)) + 3;
    parts.conditioned = Config::conditioned;
    if (has(Config::conditioned, conditioning::centred)) {
      parts.key_offsets = test::random{9}.floats(layouts::head_dim, -1.0f, 1.0f);
    }
    parts.limits = {{1.0f, 0.0f}};
    for (std::uint32_t s = 0; s < slots; ++s) { all_slots.push_back(s); }
    host = std::make_unique<test::host_cache>(parts);
  }
  //! Whether `operation` of the device leaves what `twin` leaves.
  template <class Operation, class Twin>
  void compare(Operation&& operation, Twin&& twin)
  {
    test::device_cache const device{host->ref(), 1};
    test::device_array<std::uint32_t> const slots{all_slots};
    test::device_stream stream;
    operation(device.ref(),
              batch_ref{slots.data(), nullptr, static_cast<std::uint32_t>(all_slots.size())},
              stream.get());
    stream.wait();
    twin(host->context());
    test::host_cache after{parts};
    device.download(after.ref());
    CHECK(test::difference_of(host->ref(), after.ref()) == "");
  }

  test::host_cache_parts parts{};
  std::vector<std::uint32_t> all_slots{};
  std::unique_ptr<test::host_cache> host{};
};

//! Keys and values of a token are different edges.
template <class Config, class T>
struct edge_inputs {
  static constexpr std::int32_t dim = Config::layouts::head_dim;

  explicit edge_inputs(bool not_numbers)
    : keys{edges<T>(dim, not_numbers)}, values{shifted(keys, 7 * dim)}
  {}
  [[nodiscard]] static std::vector<T> shifted(std::vector<T> const& from, std::ptrdiff_t by)
  {
    std::vector<T> to(from.begin() + by, from.end());
    to.insert(to.end(), from.begin(), from.begin() + by);
    return to;
  }
  [[nodiscard]] static std::vector<T> ordinary(std::size_t size)
  {
    std::vector<T> all;
    for (float const x : test::random{11}.floats(size, -1.0f, 1.0f)) {
      all.emplace_back();
      from_f32(x, all.back());
    }
    return all;
  }
  [[nodiscard]] std::uint32_t count() const
  {
    return static_cast<std::uint32_t>(keys.size() / std::size_t{dim});
  }
  [[nodiscard]] static vectors<T const> packed_from(T const* x)
  {
    return packed<T const>(x, 1, dim);
  }

  std::vector<T> keys, values;
  test::device_array<T> device_keys{keys}, device_values{values};
  vectors<T const> k_host   = packed_from(keys.data());
  vectors<T const> v_host   = packed_from(values.data());
  vectors<T const> k_device = packed_from(device_keys.data());
  vectors<T const> v_device = packed_from(device_values.data());
  // Queries go into the lag ring as f32 or with their greatest magnitude in f32, where a NaN that a
  // rotation makes may carry any payload.
  std::vector<T> queries = ordinary(keys.size());
  test::device_array<T> device_queries{queries};
};

template <class Config, class T>
void same_after_append(edge_inputs<Config, T> const& x)
{
  edge_case<Config> work{x.count(), 40};
  for (std::uint32_t s : work.all_slots) {
    test::reserve_row(work.host->context(), s, {3, 0});
    work.host->ref().state.rows[s].append_slot = 2;
    work.host->ref().layer(s, 0).num_tokens    = 3;
  }
  work.compare(
    [&](cache_ref const& cache, batch_ref const& batch, cudaStream_t stream) {
      append<Config>(cache, batch, 0, x.k_device, x.v_device,
                     x.packed_from(x.device_queries.data()), stream);
    },
    [&](host::context const& ctx) {
      host::append(ctx, work.all_slots.data(), x.count(), 0, x.k_host, x.v_host,
                   x.packed_from(x.queries.data()));
    });
}

//! Every edge is stored in the high part and requantised.
template <class Config, class T>
void same_after_move(edge_inputs<Config, T> const& x)
{
  edge_case<Config> work{x.count(), 40};
  for (std::uint32_t s : work.all_slots) {
    test::reserve_row(work.host->context(), s, {5, 0});
    for (slot_index t = 0; t < 5; ++t) {
      std::vector<float> k, v;
      std::size_t const first = std::size_t{(s + t) % x.count()} * x.dim;
      for (std::size_t at = first; at < first + x.dim; ++at) {
        k.push_back(to_f32(x.keys[at]));
        v.push_back(to_f32(x.values[at]));
      }
      auto const position = static_cast<std::int32_t>(t);
      test::write_token(work.host->context(), s, tier::high, t, k.data(), v.data(), 1.0f, position);
      work.host->ref().state.window_slot(s, position) = t;  // window of 2: position 3 leaves
    }
    work.host->ref().layer(s, 0) = {5, {5, 1, 5}};
  }
  test::device_array<std::byte> const workspace{step_workspace_bytes(work.parts.shape, x.count())};
  work.compare(
    [&](cache_ref const& cache, batch_ref const& batch, cudaStream_t stream) {
      step<Config>(cache, batch, demoting_policy{}, workspace.data(), workspace.size(), {}, stream);
    },
    [&](host::context const& ctx) {
      REQUIRE(host::step(ctx, work.all_slots.data(), x.count(), demoting_policy{}) == 0);
      CHECK(ctx.cache.state.rows[x.count() - 1].tokens == tier_counts{5, 1});
    });
}

//! Every other token goes low.
template <class Config, class T>
void same_after_prompt(edge_inputs<Config, T> const& x)
{
  host::admission const one{0, static_cast<std::int32_t>(x.count())};
  edge_case<Config> work{1, one.num_tokens};
  REQUIRE(host::admit(work.host->context(), &one, 1, demoting_policy{}) == 0);
  std::vector<float> importances;
  for (std::uint32_t i = 0; i < x.count(); ++i) {
    importances.push_back(i % 2 == 0 ? 2.0f : 1e-6f);
  }
  test::device_array<float> const device_importances{importances};
  prompt_source<T> source;
  source.key         = x.k_device;
  source.value       = x.v_device;
  source.importances = device_importances.data();
  source.max_tokens  = one.num_tokens;
  std::size_t const bytes =
    store_prompt_workspace_bytes(work.host->ref(), 1, {0, 1}, one.num_tokens, demoting_policy{});
  test::device_array<std::byte> const workspace{bytes};
  work.compare(
    [&](cache_ref const& cache, batch_ref const& batch, cudaStream_t stream) {
      store_prompt<Config>(cache, batch, source, {0, 1}, {}, workspace.data(), bytes, stream);
    },
    [&](host::context const& ctx) {
      host::store_prompt(ctx, 0, 0, demoting_policy{}, x.k_host, x.v_host, importances.data());
      if (Config::layouts::has_low) { CHECK(ctx.cache.state.rows[0].tokens.low > 20); }
    });
}

template <class Config, class T>
void same_bytes(bool not_numbers)
{
  CAPTURE(Config::layouts::head_dim, sizeof(T), not_numbers);
  edge_inputs<Config, T> const x{not_numbers};
  same_after_append(x);
  same_after_prompt(x);
  if constexpr (Config::layouts::has_low) { same_after_move(x); }
}

template <class High, class Low, int HeadDim, conditioning Set = conditioning::none>
using with = static_config<demoting_policy, High, Low, HeadDim, Set>;

}  // namespace

TEMPLATE_TEST_CASE("edge vectors: device and host store the same bytes in every width",
                   "[compaction]", (with<k8v4, k4v2, 128>), (with<k8v8, k4v4, 64>),
                   (with<k4v8, k2v4, 128>), (with<k8v2, k4v1, 64>), (with<k2v2, k2v2, 128>),
                   (with<k8v4, k4v2, 128, both>), (with<k8v4, k4v2, 64, conditioning::rotated>),
                   (with<format<8, 4, 2, 2>, format<4, 2, 2, 2>, 128>), (with<k8v4, k4v2, 80>),
                   (with<k4v2, k2v4, 96>), (with<k8v4, k4v2, 112, both>), (with<k4v4, k2v2, 256>))
{
  same_bytes<TestType, float>(true);
  same_bytes<TestType, __half>(true);
  same_bytes<TestType, __nv_bfloat16>(true);
}

// A NaN of 16 bits may carry any payload.
TEMPLATE_TEST_CASE("edge vectors: device and host store the same bytes of 16 bits", "[compaction]",
                   (with<k16v16, k8v4, 128>), (with<k8v16, k4v2, 64>),
                   (with<k16v8, format<16, 2>, 80>), (with<k16v16, void, 96, both>))
{
  same_bytes<TestType, float>(false);
  same_bytes<TestType, __half>(false);
  same_bytes<TestType, __nv_bfloat16>(false);
}
