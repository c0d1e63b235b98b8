// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/cuda/runner.hpp"

#include <diffkv/table/row_view.hpp>

#include <algorithm>  // max, min, rotate
#include <map>
#include <memory>
#include <vector>

#include "llama3/cuda/cuda_device.hpp"
#include "llama3/cuda/device_cache_kind.hpp"
#include "llama3/cuda/logit_distance.hpp"
#include "llama3/cuda/tiny_on_device.hpp"
#include "support/catch.hpp"

namespace {
using namespace llama3;
using namespace llama3::test;

//! Where the tokens of a row are, by position.
using tiers_of_row = std::map<std::int32_t, diffkv::tier>;

std::vector<tiers_of_row> rows_of(runner& r, std::uint32_t slot, cudaStream_t stream)
{
  diffkv::cache_ref here = r.cache_ref();
  std::size_t const rows = here.shape.num_rows();
  auto const pool_bytes  = std::size_t{here.pool.num_pages} * here.pool.page_bytes;
  auto states            = to_host(here.state.rows, rows, stream);
  auto entries           = to_host(here.table.entries, rows * here.table.row_entries, stream);
  auto pool              = to_host(here.pool.base, pool_bytes, stream);
  here.state.rows        = states.data();
  here.table.entries     = entries.data();
  here.pool.base         = pool.data();
  std::vector<tiers_of_row> all;
  for (std::uint32_t i = 0; i < here.shape.rows_per_slot(); ++i) {
    diffkv::row_view const row{&here, here.shape.row(slot, 0, 0) + i};
    tiers_of_row tokens;
    for (diffkv::tier const t : {diffkv::tier::high, diffkv::tier::low}) {
      for (std::uint32_t s = 0; s < row.state().tokens.of(t); ++s) {
        tokens.emplace(row.position(t, s), t);
      }
    }
    all.push_back(std::move(tokens));
  }
  return all;
}

//! Sequences of a batch, each beside what it gets alone.
struct batch_beside_alone {
  double worst           = 0.0;  //!< logit of a token behind the best one's, alone
  std::size_t num_tokens = 0, num_low = 0, num_other_tier = 0;
};

batch_beside_alone compare_batch(diffkv::catch_up_schedule schedule)
{
  tiny_on_device const model_files;
  cache_settings settings = mixed(4);
  settings.schedule       = schedule;
  gpu_stream stream;
  constexpr int slots = 11, longest = 160, tokens = 40;
  device_cache_setup setup;
  setup.num_slots     = slots;
  setup.max_tokens    = longest;
  setup.prompts       = 4;
  setup.prompt_tokens = 300;
  device_model of{model_files.made.config,
                  upload(load_weights(model_files.made.config, model_files.files()), stream.get()),
                  longest, 300, stream.get()};
  runner all{of,
             make_device_cache(of.config(), settings, setup, model_files.offsets(), stream.get()),
             setup, of.config().vocab_size};
  std::vector<prompt_request> prompts;
  std::vector<std::uint32_t> batch;
  for (std::uint32_t s = 0; s < slots; ++s) {
    prompts.push_back({s, model_files.ids(1 + 11 * static_cast<int>(s), s), {}});
    batch.push_back(s);
  }
  std::vector<std::vector<token_id>> said(slots);
  for (std::size_t s = 0; s < slots; s += 3) {
    auto const end   = std::min<std::size_t>(s + 3, slots);
    auto const first = all.read_prompts({prompts.begin() + static_cast<std::ptrdiff_t>(s),
                                         prompts.begin() + static_cast<std::ptrdiff_t>(end)});
    for (std::size_t i = 0; i < first.size(); ++i) { said[s + i].push_back(first[i].value()); }
  }
  std::rotate(batch.begin(), batch.begin() + 3, batch.end());
  for (int t = 0; t < tokens; t += 2) {  // two steps ahead of the host
    all.step(batch);
    all.step(batch);
    for (int i = 0; i < 2; ++i) {
      auto const result = all.collect();
      for (std::size_t b = 0; b < batch.size(); ++b) {
        said[batch[b]].push_back(result.tokens[b].value());
      }
    }
  }
  device_cache_setup one;
  one.max_tokens    = longest;
  one.prompt_tokens = longest;
  runner alone{of,
               make_device_cache(of.config(), settings, one, model_files.offsets(), stream.get()),
               one, of.config().vocab_size};
  auto const logits = [&] {
    return to_host(alone.logits(), static_cast<std::size_t>(of.config().vocab_size), stream.get());
  };
  batch_beside_alone found;
  for (std::uint32_t s = 0; s < slots; ++s) {
    REQUIRE(alone.read_prompts({{0, prompts[s].ids, {}}}).front().has_value());
    found.worst = std::max(found.worst, behind(logits(), said[s].front()));
    for (std::size_t t = 1; t < said[s].size(); ++t) {
      alone.set_token(0, said[s][t - 1]);
      alone.step({0});
      REQUIRE(alone.collect().tokens.front().has_value());
      found.worst = std::max(found.worst, behind(logits(), said[s][t]));
    }
    INFO(s);
    auto const expected = rows_of(alone, 0, stream.get());
    auto const got      = rows_of(all, s, stream.get());
    for (std::size_t r = 0; r < expected.size(); ++r) {
      CHECK(got[r].size() == expected[r].size());  // nothing is pruned here
      for (auto const& [position, tier] : expected[r]) {
        auto const same = got[r].find(position);
        ++found.num_tokens;
        found.num_low += tier == diffkv::tier::low ? 1 : 0;
        found.num_other_tier += same == got[r].end() || same->second != tier ? 1 : 0;
      }
    }
    alone.release({0});
  }
  all.release(batch);
  CHECK(all.free_pages() == all.num_pages());
  CHECK(found.num_low > found.num_tokens / 4);
  return found;
}
}  // namespace

TEST_CASE("runner: a sequence's tokens and tiers are those that it gets alone, by its position",
          "[llama3]")
{
  batch_beside_alone const found = compare_batch(diffkv::catch_up_schedule::by_position);
  // Matrices of another size round otherwise: a token that is close to a threshold, or to another
  // candidate, may go the other way.
  CAPTURE(found.num_low);
  CHECK(found.worst < 0.05);
  CHECK(found.num_other_tier < found.num_tokens / 200);  // none on an H200
}

TEST_CASE("runner: where a batch catches up together, few tokens are in another tier than alone",
          "[llama3]")
{
  batch_beside_alone const found = compare_batch(diffkv::catch_up_schedule::by_batch);
  CHECK(found.num_other_tier < found.num_tokens / 20);  // 2 % on an H200
}

TEST_CASE("runner: a sequence whose step is refused goes on as if nothing had been",
          "[llama3][small][many-steps]")
{
  tiny_on_device const model_files;
  gpu_stream stream;
  constexpr int longest = 200, together = 500;
  device_model of{model_files.made.config,
                  upload(load_weights(model_files.made.config, model_files.files()), stream.get()),
                  longest, together, stream.get()};
  device_cache_setup setup;
  setup.num_slots       = 8;
  setup.max_tokens      = longest;
  setup.prompts         = 5;
  setup.prompt_tokens   = together;
  auto const runner_for = [&](std::uint64_t pool_bytes) {
    setup.pool_bytes = pool_bytes;
    auto cache = make_device_cache(of.config(), uncompressed_settings(), setup, {}, stream.get());
    return std::make_unique<runner>(of, std::move(cache), setup, of.config().vocab_size);
  };
  auto const roomy = runner_for(0);
  auto const tiers = diffkv::tiers_of(roomy->cache_options());
  // Prompts that fill their pages: the next token takes a page more in each row.
  auto const length = static_cast<int>(tiers.tokens_per_page(diffkv::tier::high));
  REQUIRE(5 * length <= together);
  std::uint64_t const of_prompt = roomy->most_pages(length);
  std::uint64_t const more      = roomy->most_pages(length + 1) - of_prompt;
  REQUIRE(more > 0);
  auto const tight = runner_for((5 * of_prompt + 2 * more) * tiers.high.page_bytes);

  std::vector<std::uint32_t> const batch{5, 1, 6, 3, 0};  // as many as no graph is captured for
  std::vector<std::uint32_t> const first{5, 1}, rest{6, 3, 0};
  std::vector<prompt_request> prompts;
  for (std::uint32_t const slot : batch) {
    prompts.push_back({slot, model_files.ids(length, slot), {}});
  }
  auto const begun = roomy->read_prompts(prompts);
  CHECK(tight->read_prompts(prompts) == begun);
  REQUIRE(tight->free_pages() == 2 * more);

  tight->step(batch);  // pages for two of them
  auto const refused = tight->collect();
  for (std::size_t b = 0; b < batch.size(); ++b) {
    INFO(b);
    CHECK(refused.tokens[b].has_value() == (b < first.size()));
  }
  CHECK(refused.free_pages == 0);
  tight->release(first);
  roomy->release(first);

  auto const logits_of = [&](runner const& r) {
    return to_host(r.logits(), rest.size() * static_cast<std::size_t>(of.config().vocab_size),
                   stream.get());
  };
  for (int t = 0; t < 5; ++t) {
    INFO(t);
    tight->step(rest);
    roomy->step(rest);
    auto const got      = tight->collect();
    auto const expected = roomy->collect();
    CHECK(got.tokens == expected.tokens);
    CHECK(got.tokens.back().has_value());
    CHECK(logits_of(*tight) == logits_of(*roomy));  // to the bit
    for (std::uint32_t const slot : rest) {
      CHECK(tight->usage(slot).num_tokens == length + t + 1);
    }
  }
}

TEST_CASE("runner: calls that cannot be are refused, and what was launched is collected",
          "[llama3][small]")
{
  tiny_on_device const model_files;
  auto const device =
    open_cuda_device(model_files.made.config, model_files.files(), 64);  // tokens at once
  auto const runs = device->make_runner(mixed(4), {2, 40, 200, 0}, model_files.offsets());
  auto const of   = [&](std::uint32_t slot, int length) {
    return prompt_request{slot, model_files.ids(length, slot), {}};
  };
  CHECK_THROWS_AS(runs->read_prompts({of(0, 1), of(1, 1), of(2, 1)}), diffkv::invalid_argument);
  CHECK_THROWS_AS(runs->read_prompts({of(0, 33), of(1, 32)}), diffkv::invalid_argument);
  REQUIRE(runs->read_prompts({of(0, 32), of(1, 32)}).size() == 2);
  CHECK_THROWS_AS(runs->step({0, 1, 0}), diffkv::invalid_argument);
  runs->step({0, 1});
  CHECK_THROWS_AS(runs->release({1}), diffkv::invalid_argument);
  CHECK_THROWS_AS(runs->read_prompts({of(0, 1)}), diffkv::invalid_argument);
  CHECK(runs->collect().tokens.size() == 2);
  runs->release({0, 1});
  CHECK(runs->free_pages() == runs->num_pages());
}
