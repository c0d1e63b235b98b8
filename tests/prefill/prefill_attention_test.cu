// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file Prompt attention and importance on the device against the host twin: lengths, groups, head
//! sizes, element types, chunks, and which queries count.
#include "prefill/prefill_case.cuh"

namespace {

using namespace diffkv;
using test::prefill_case;

std::vector<int> const edge_lengths{1, 15, 0, 16, 17, 63, 64, 0, 0, 65, 127, 128, 129, 2};

template <int HeadDim, class T>
void check_head_dim(std::vector<int> const& lengths)
{
  CAPTURE(HeadDim);
  prefill_case<HeadDim, T>{{2, 2}, lengths}.check();
}

}  // namespace

TEST_CASE("prefill_attention: equals the host twin over lengths around the tiles, in one batch",
          "[prefill][small]")
{
  prefill_case<64, __half>{{2, 2}, {17, 0, 65, 1, 130}}.check();
  prefill_case<64, __nv_bfloat16>{{1, 3}, {66, 0, 16}}.check();
}

TEST_CASE("prefill_attention: equals the host twin for each head size, f16", "[prefill]")
{
  check_head_dim<64, __half>(edge_lengths);
  check_head_dim<80, __half>({1, 17, 64, 130});
  check_head_dim<96, __half>({1, 17, 64, 130});
  check_head_dim<112, __half>({1, 17, 64, 130});
  check_head_dim<128, __half>(edge_lengths);
  check_head_dim<256, __half>({1, 17, 31, 32, 33, 64, 130});
}

TEST_CASE("prefill_attention: equals the host twin for each head size, bf16", "[prefill]")
{
  check_head_dim<64, __nv_bfloat16>({1, 17, 64, 130});
  check_head_dim<80, __nv_bfloat16>({1, 17, 64, 130});
  check_head_dim<96, __nv_bfloat16>({1, 17, 64, 130});
  check_head_dim<112, __nv_bfloat16>({1, 17, 64, 130});
  check_head_dim<128, __nv_bfloat16>(edge_lengths);
  check_head_dim<256, __nv_bfloat16>({1, 17, 31, 32, 33, 64, 130});
}

TEST_CASE("prefill_attention: equals the host twin for groups of any size", "[prefill]")
{
  for (std::uint32_t const group : {1u, 2u, 4u, 7u, 8u}) {
    CAPTURE(group);
    prefill_case<64, __half>{{3, group}, {70, 1, 33}}.check();
  }
}

TEST_CASE("prefill_attention: equals the host twin over a longer prompt", "[prefill]")
{
  prefill_case<128, __half>{{2, 4}, {500}}.check();
  prefill_case<128, __nv_bfloat16>{{1, 2}, {1000, 3}}.check();
}

TEST_CASE("prefill_attention: f32 comes out without a second rounding", "[prefill]")
{
  prefill_case<128, __half, float>{{1, 2}, {129}}.check();
  prefill_case<64, __nv_bfloat16, float>{{1, 2}, {70}}.check();
}

TEST_CASE("prefill_attention: finds the sequences of a large batch", "[prefill]")
{
  std::vector<int> lengths(70);
  for (std::size_t s = 0; s < lengths.size(); ++s) {
    lengths[s] = s % 3 == 0 ? 0 : static_cast<int>(s * 37 % 90);
  }
  prefill_case<64, __half>{{1, 2}, lengths}.check();
}

TEST_CASE("prefill_attention: huge logits move the maximum without loss", "[prefill]")
{
  prefill_case<64, __half>{{1, 2}, {300}, 60.0f}.check();
}

TEST_CASE("add_importance: all queries, the last ones or a sample of them count", "[prefill]")
{
  prefill_case<64, __half> c{{2, 2}, {1, 2, 9, 64, 65, 150, 0}};
  for (importance_queries const counted :
       {importance_queries{0, 1}, importance_queries{64, 1}, importance_queries{1, 1},
        importance_queries{0, 8}, importance_queries{0, 16}, importance_queries{20, 3},
        importance_queries{2147483647, 2147483647}}) {
    CAPTURE(counted.last, counted.every);
    c.counted = counted;
    c.check();
  }
}

TEST_CASE("add_importance: a sample that fills tiles of queries leaves no later token in",
          "[prefill]")
{
  prefill_case<64, __half> c{{1, 1}, {1200}};
  for (int const every : {2, 8, 16}) {
    CAPTURE(every);
    c.counted = {0, every};
    c.check();
  }
}

TEST_CASE("prefill_attention: chunks give what the whole prompt gives", "[prefill][small]")
{
  prefill_case<64, __half> c{{1, 2}, {40, 0, 70, 1}};
  for (importance_queries const counted : {importance_queries{0, 1}, importance_queries{9, 2}}) {
    CAPTURE(counted.last, counted.every);
    c.counted = counted;
    c.check(33);
  }
}

TEST_CASE("prefill_attention: out and lse of a query depend neither on chunks nor on the batch",
          "[prefill]")
{
  prefill_case<128, __half> c{{2, 2}, {200, 0, 129, 64, 1}};
  auto const whole = c.run();
  for (int const chunk : {1000, 128, 100, 64, 63, 62, 37}) {
    CAPTURE(chunk);
    for (importance_queries const counted :
         {importance_queries{0, 1}, importance_queries{64, 1}, importance_queries{0, 8}}) {
      CAPTURE(counted.last, counted.every);
      c.counted        = counted;
      auto const parts = c.run(chunk);
      auto const error = c.errors(parts, c.expected());
      CHECK(error.out <= 1.0);
      CHECK(error.lse <= 1.0);
      CHECK(error.importances <= 1.0);
      CHECK(test::are_same_attention(parts, whole));
    }
  }
}

TEST_CASE("prefill_attention: the same bits on every run", "[prefill]")
{
  prefill_case<128, __half> const c{{2, 4}, {300, 77, 512}};
  auto const first = c.run();
  for (int i = 0; i < 3; ++i) {
    auto const again = c.run();
    CHECK(test::are_same_attention(again, first));
    CHECK(test::are_same_importances(again, first));
  }
}
