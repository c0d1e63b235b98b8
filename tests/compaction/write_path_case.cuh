// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The whole write path of one configuration beside its host twins: prompts, candidates, steps, appends.
#include "compaction/prompt_case.cuh"
#include "support/step_run.cuh"

namespace diffkv::test {

template <class Config, class T>
void same_write_path()
{
  using layouts = typename Config::layouts;
  CAPTURE(name(layouts::high_format::spec), name(layouts::low_format::spec), layouts::head_dim,
          static_cast<int>(Config::conditioned), sizeof(T));
  prompt_case prompts;
  prompts.lengths = {17, 130};
  // Words of 1-bit values may have bits that belong to no element.
  prompts.fill = 0;
  same_after_prompts<Config, T>(prompts);

  step_run_setup setup;
  setup.shape     = {3, 2, 2, 2, layouts::head_dim, 150, 8, 4};
  setup.num_pages = static_cast<std::uint32_t>(
    layouts::pages.most_pages(static_cast<std::uint32_t>(setup.shape.max_tokens)) *
    setup.shape.num_rows() / 2);
  step_run<Config, T> run{setup, {}, {}, 71};
  run.live(40);
  CHECK(run.trouble() == "");
  CHECK(run.steps() > 20);
}

}  // namespace diffkv::test
