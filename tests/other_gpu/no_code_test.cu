// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! This program is compiled for GPUs of compute capability 12.0 alone, without PTX. On any other every
//! operation says so, and what it would have written stays as it was.
#include <diffkv/attention/decode.cuh>
#include <diffkv/cache/device_kv_cache.cuh>
#include <diffkv/policy/paper.hpp>
#include <diffkv/pool/claim.cuh>
#include <diffkv/prefill/prefill.cuh>

#include <string>

#include "support/catch.hpp"
#include "support/device_cache.hpp"
#include "support/host_cache.hpp"

namespace {

using namespace diffkv;
using config = static_config<paper_policy, k8v4, k4v2, 64>;

//! An empty text on a GPU that this program has code for.
std::string capability_without_code()
{
  int device = 0, major = 0, minor = 0;
  test::check(cudaGetDevice(&device), "cudaGetDevice");
  test::check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "major");
  test::check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "minor");
  return major == 12 ? std::string{} : std::to_string(major) + "." + std::to_string(minor);
}

}  // namespace

TEST_CASE("launch: a program without code for this GPU says so and touches nothing", "[core]")
{
  std::string const capability = capability_without_code();
  if (capability.empty()) { DIFFKV_SKIP("this program holds code for this GPU"); }
  test::device_stream stream;
  cudaStream_t const s = stream.get();
  test::host_cache_parts parts;
  parts.shape     = {3, 2, 2, 2, 64, 60, 8, 4};
  parts.tiers     = config::layouts::pages;
  parts.num_pages = 30;
  test::host_cache host{parts};
  test::device_cache const device{host.ref(), 1};
  cache_ref const cache = device.ref();

  test::device_array<std::byte> const workspace{1u << 20};
  test::device_array<unsigned char> const results{4096};
  test::check(cudaMemset(results.data(), 123, results.size()), "cudaMemset");
  auto* const at     = results.data();
  auto* const counts = reinterpret_cast<std::uint32_t*>(at);
  refusals_ref const refusals{counts, counts + 1};
  test::device_array<std::uint32_t> const slots{std::vector<std::uint32_t>{0, 1, 2}};
  test::device_array<std::int32_t> const lengths{std::vector<std::int32_t>{20, 20, 20}};
  test::device_array<std::int64_t> const first_tokens{std::vector<std::int64_t>{0, 20, 40}};
  test::device_array<float> const x{std::vector<float>(3 * 20 * 4 * 64, 1.0f)};
  batch_ref const batch{slots.data(), nullptr, 3};
  auto const v = packed<float const>(x.data(), 2, 64);
  prompt_source<float> source;
  source.key          = v;
  source.value        = v;
  source.importances  = x.data();
  source.first_tokens = first_tokens.data();
  source.max_tokens   = 20;

  auto const has_no_code = [&](char const* operation, auto&& call) {
    CAPTURE(operation);
    CHECK_THROWS_AS(call(), cuda_error);
    CHECK(cudaGetLastError() == cudaSuccess);
    try {
      call();
    } catch (cuda_error const& e) {
      CHECK_THAT(e.what(), test::contains(operation));
      CHECK_THAT(e.what(), test::contains("must be compiled for this GPU"));
      CHECK_THAT(e.what(), test::contains("compute capability is " + capability));
    }
    CHECK(cudaGetLastError() == cudaSuccess);
    stream.wait();
  };
  has_no_code("init_free_ring", [&] { init_free_ring(cache.ring, s); });
  has_no_code("claim", [&] {
    claim(cache.ring,
          {counts + 8, 1, 3, reinterpret_cast<std::uint64_t*>(at) + 16,
           reinterpret_cast<page_id*>(at + 512), at + 1024, refusals},
          workspace.data(), workspace.size(), s);
  });
  has_no_code("release", [&] {
    release(cache.ring, {cache.ring.ids, nullptr, 4}, workspace.data(), workspace.size(),
            reinterpret_cast<release_report*>(at), s);
  });
  has_no_code("admit", [&] {
    admit(cache, batch, lengths.data(), paper_policy{}, workspace.data(), workspace.size(),
          refusals, s);
  });
  has_no_code("store_prompt", [&] {
    store_prompt<config>(cache, batch, source, {0, 2}, {}, workspace.data(), workspace.size(), s);
  });
  has_no_code("scan_candidates", [&] { scan_candidates<config>(cache, batch, {0, 2}, {}, s); });
  has_no_code("step", [&] {
    step<config>(cache, batch, paper_policy{}, workspace.data(), workspace.size(), refusals, s);
  });
  has_no_code("append", [&] { append<config>(cache, batch, 0, v, v, v, s); });
  using variant = decode_variant<2, 4>;
  decode_grid const grid{2, 2, 1};
  auto const work = make_decode_workspace<config, variant>(workspace.data(), workspace.size(),
                                                           cache.shape, 3, {0, 2}, grid);
  has_no_code("plan_decode", [&] { plan_decode<config>(cache, batch, {0, 2}, work, s); });
  has_no_code("decode_attention", [&] {
    auto const out = packed(reinterpret_cast<float*>(at), 4, 64);
    decode_attention<config, variant>(cache, 0, paper_policy{}, {0.1f}, work,
                                      packed<float const>(x.data(), 4, 64), out, nullptr, s);
  });
  test::device_array<__half> const halves{3 * 20 * 4 * 64};
  prefill_batch prompts;
  prompts.capacity      = 2;
  prompts.first_queries = first_tokens.data();
  prompts.num_queries   = 40;
  auto const h          = packed<__half const>(halves.data(), 2, 64);
  has_no_code("prefill_attention", [&] {
    prefill_attention<64>({2, 1}, prompts, {0.1f}, h, h, h,
                          packed(reinterpret_cast<__half*>(at), 2, 64), nullptr, s);
  });
  has_no_code("add_importance", [&] {
    add_importance<64>({2, 1}, prompts, {0.1f}, {}, h, h, x.data(), reinterpret_cast<float*>(at),
                       s);
  });
  has_no_code("finish_importance", [&] {
    finish_importance({2, 1}, prompts, {}, x.data(), reinterpret_cast<float*>(at), s);
  });
  has_no_code("release_slots", [&] {
    release_slots(cache, batch, workspace.data(), workspace.size(),
                  reinterpret_cast<release_report*>(at), s);
  });
  has_no_code("collect_statistics", [&] {
    collect_statistics(
      cache, {reinterpret_cast<std::uint64_t*>(at), reinterpret_cast<sequence_usage*>(at + 1024)},
      s);
  });
  cache_options options;
  options.shape     = parts.shape;
  options.num_pages = parts.num_pages;
  has_no_code("init_free_ring", [&] {
    device_kv_cache<config> made{options, {3, 2, 20}, paper_policy{}, cuda_async_resource{s}, s};
  });

  CHECK(results.to_host() == std::vector<unsigned char>(results.size(), 123));
  test::host_cache after{parts};
  device.download(after.ref());
  CHECK(test::difference_of(host.ref(), after.ref()) == "");
}
