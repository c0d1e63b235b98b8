// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! Prompts stored on the device and by the host twin: every byte of every array is the same.
#include <diffkv/compaction/prompt.cuh>
#include <diffkv/policy/any_policy.hpp>

#include "compaction/prompt_case.cuh"

namespace {

using diffkv::conditioning;
using diffkv::static_config;
using diffkv::test::contains;
using diffkv::test::prompt_case;
using diffkv::test::same_after_prompts;
using diffkv::test::seen_policy;

constexpr auto centred_rotated = conditioning::centred | conditioning::rotated;

using mix_128 = static_config<diffkv::paper_policy, diffkv::k8v4, diffkv::k4v2, 128>;

}  // namespace

TEST_CASE("store_prompt: prompts of any length give the bytes of the host twin", "[compaction]")
{
  for (std::int32_t tokens : {1, 15, 16, 17, 63, 64, 65, 66, 97, 98, 99, 130, 1000, 4096, 4097}) {
    CAPTURE(tokens);
    prompt_case work;
    work.lengths = {tokens};
    same_after_prompts<mix_128, __half>(work);
  }
}

TEST_CASE("store_prompt: some prompts, few enough for compute-sanitizer", "[compaction][small]")
{
  prompt_case work;
  work.lengths = {17, 99};
  same_after_prompts<mix_128, __half>(work);
  same_after_prompts<
    static_config<diffkv::paper_policy, diffkv::k8v4, diffkv::k4v2, 128, centred_rotated>, __half>(
    work);
  work.budget = 20;
  same_after_prompts<static_config<diffkv::static_policy, diffkv::k8v4, diffkv::k4v2, 64>, __half>(
    work);
}

TEST_CASE("store_prompt: a long prompt is planned in chunks", "[compaction]")
{
  prompt_case work;
  work.num_layers = 1;
  work.num_heads  = 1;
  work.lengths    = {40000};
  same_after_prompts<mix_128, __half>(work);
  work.lengths = {8192, 1, 8193};
  same_after_prompts<static_config<diffkv::artifact_policy, diffkv::k8v4, diffkv::k4v2, 64>,
                     __half>(work);
}

TEST_CASE("store_prompt: all rows of many prompts and layers in one call", "[compaction]")
{
  prompt_case work;
  work.num_layers = 5;
  work.num_heads  = 3;
  work.lengths    = {130, 1, 700, 64, 0, 333, 65, 4100};
  work.layers     = {1, 3};
  same_after_prompts<mix_128, __half>(work);
  work.seed     = 9;
  work.window   = 1;
  work.in_graph = true;
  same_after_prompts<static_config<diffkv::paper_policy, diffkv::k8v4, diffkv::k4v2, 64>, __half>(
    work);
}

TEMPLATE_TEST_CASE(
  "store_prompt: every format and conditioning", "[compaction]",
  (static_config<diffkv::paper_policy, diffkv::k8v8, diffkv::k4v4, 128>),
  (static_config<diffkv::paper_policy, diffkv::k16v16, void, 128>),
  (static_config<diffkv::paper_policy, diffkv::k4v8, void, 64>),
  (static_config<diffkv::paper_policy, diffkv::k4v1, diffkv::k2v2, 128>),
  (static_config<diffkv::paper_policy, diffkv::k4v1, diffkv::k2v2, 64, centred_rotated>),
  (static_config<diffkv::paper_policy, diffkv::k8v4, diffkv::k4v2, 128, centred_rotated>),
  (static_config<diffkv::paper_policy, diffkv::k8v4, diffkv::k4v2, 64, conditioning::rotated>),
  (static_config<diffkv::paper_policy, diffkv::k8v4, diffkv::k4v2, 128, conditioning::centred>),
  (static_config<diffkv::paper_policy, diffkv::format<8, 4, 2, 2>, diffkv::format<4, 2, 4, 2>, 128,
                 centred_rotated>),
  (static_config<diffkv::paper_policy, diffkv::format<8, 4, 2, 2>, diffkv::format<4, 2, 2, 4>,
                 128>),
  (static_config<diffkv::paper_policy, diffkv::k8v4, diffkv::k4v2, 256>),
  (static_config<diffkv::paper_policy, diffkv::k8v4, diffkv::k4v2, 256, centred_rotated>))
{
  prompt_case work;
  work.lengths = {17, 130, 500};
  same_after_prompts<TestType, __half>(work);
}

TEMPLATE_TEST_CASE(
  "store_prompt: head dims that are no power of two are padded with code 0", "[compaction]",
  (static_config<diffkv::paper_policy, diffkv::k8v4, diffkv::k4v2, 80>),
  (static_config<diffkv::paper_policy, diffkv::k16v16, diffkv::format<2, 8>, 80>),
  (static_config<diffkv::paper_policy, diffkv::format<8, 4, 2, 2>, diffkv::format<4, 2, 2, 1>, 80,
                 centred_rotated>),
  (static_config<diffkv::paper_policy, diffkv::k8v4, diffkv::k4v2, 96, conditioning::rotated>),
  (static_config<diffkv::paper_policy, diffkv::k8v4, diffkv::k4v1, 112, centred_rotated>),
  (static_config<diffkv::paper_policy, diffkv::k8v8, diffkv::k2v2, 112>))
{
  prompt_case work;
  work.lengths = {17, 130, 333};
  // Words of 1-bit values may have bits that belong to no element.
  if (TestType::layouts::low::geometry.format.value.bits == 1) { work.fill = 0; }
  same_after_prompts<TestType, __half>(work);
}

TEMPLATE_TEST_CASE("store_prompt: bf16 and f32 vectors, any strides and alignments", "[compaction]",
                   float, __half, __nv_bfloat16)
{
  prompt_case work;
  work.lengths = {33, 200};
  same_after_prompts<mix_128, TestType>(work);
  work.head_padding  = 1;
  work.first_element = 1;
  same_after_prompts<mix_128, TestType>(work);
  same_after_prompts<
    static_config<diffkv::paper_policy, diffkv::k16v16, diffkv::k4v2, 80, conditioning::centred>,
    TestType>(work);
  work.head_padding  = 24;
  work.first_element = 8;
  same_after_prompts<
    static_config<diffkv::paper_policy, diffkv::k8v4, diffkv::k4v2, 64, centred_rotated>, TestType>(
    work);
}

TEMPLATE_TEST_CASE("store_prompt: every policy classifies as on the host", "[compaction]",
                   diffkv::paper_policy, diffkv::artifact_policy, diffkv::relative_policy,
                   diffkv::static_policy, diffkv::any_policy, seen_policy)
{
  using config = static_config<TestType, diffkv::k8v4, diffkv::k4v2, 64>;
  prompt_case work;
  for (std::int32_t budget : {0, 1, 100, 5000}) {
    CAPTURE(budget);
    work.budget  = budget;
    work.lengths = {66, 300, 4200};
    same_after_prompts<config, __half>(work);
    work.ties = true;
    same_after_prompts<config, __half>(work);
  }
}

TEST_CASE(
  "store_prompt: vectors that hold NaN or Inf, and importances that are NaN, stay contained",
  "[compaction]")
{
  prompt_case work;
  work.lengths = {200, 65};
  work.nasty   = true;
  same_after_prompts<mix_128, __half>(work);
  same_after_prompts<mix_128, float>(work);
  same_after_prompts<
    static_config<diffkv::paper_policy, diffkv::k8v4, diffkv::k4v2, 128, centred_rotated>, __half>(
    work);
  same_after_prompts<static_config<diffkv::paper_policy, diffkv::format<8, 4, 2, 2>,
                                   diffkv::format<4, 2, 2, 2>, 64, centred_rotated>,
                     float>(work);
  same_after_prompts<static_config<diffkv::paper_policy, diffkv::k16v16, void, 64>, __half>(work);
}

TEMPLATE_TEST_CASE(
  "store_prompt: elements far beyond a clipped range have the code of its end, "
  "padding has 0",
  "[compaction]", float, __half, __nv_bfloat16)
{
  prompt_case work;
  work.lengths = {200, 65};
  work.nasty   = true;
  for (float clip : {0.3f, 1e-6f}) {
    CAPTURE(clip);
    work.clip = clip;
    same_after_prompts<mix_128, TestType>(work);
    same_after_prompts<static_config<diffkv::paper_policy, diffkv::k8v4, diffkv::k4v2, 80>,
                       TestType>(work);
    same_after_prompts<
      static_config<diffkv::paper_policy, diffkv::k8v8, diffkv::k4v1, 64, centred_rotated>,
      TestType>(work);
  }
}

TEST_CASE("store_prompt: arguments that cannot be are refused before any launch", "[compaction]")
{
  diffkv::test::host_cache_parts parts;
  parts.shape.head_dim   = 128;
  parts.shape.max_tokens = 100;
  parts.tiers            = mix_128::layouts::pages;
  parts.num_pages        = 8;
  diffkv::test::host_cache cache{parts};
  diffkv::prompt_source<__half> source;
  auto const store = [&](diffkv::batch_ref batch, diffkv::layer_range layers, std::size_t bytes) {
    diffkv::store_prompt<mix_128>(cache.ref(), batch, source, layers, {}, nullptr, bytes, nullptr);
  };
  constexpr std::size_t enough = 1 << 20;
  source.max_tokens            = 101;
  CHECK_THROWS_WITH(store({nullptr, nullptr, 1}, {0, 1}, enough), contains("max_tokens"));
  source.max_tokens = 0;
  CHECK_THROWS_WITH(store({nullptr, nullptr, 1}, {0, 1}, enough), contains("max_tokens"));
  source.max_tokens = 100;
  CHECK_THROWS_WITH(store({nullptr, nullptr, 1}, {0, 2}, enough), contains("layers"));
  CHECK_THROWS_WITH(store({nullptr, nullptr, 1}, {1, 1}, enough), contains("layers"));
  CHECK_THROWS_WITH(store({nullptr, nullptr, 2}, {0, 1}, enough), contains("first_tokens"));
  CHECK_THROWS_WITH(store({nullptr, nullptr, 1}, {0, 1}, 16), contains("workspace"));
  store({nullptr, nullptr, 0}, {0, 1}, enough);  // an empty batch launches nothing
  using other = static_config<diffkv::paper_policy, diffkv::k8v8, diffkv::k4v2, 128>;
  diffkv::prompt_source<__half> const none;
  CHECK_THROWS_WITH(diffkv::store_prompt<other>(cache.ref(), {}, none, {}, {}, nullptr, 0, nullptr),
                    contains("formats"));
}
