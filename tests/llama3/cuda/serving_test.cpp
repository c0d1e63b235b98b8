// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <vector>

#include "llama3/cuda/cuda_device.hpp"
#include "llama3/cuda/tiny_on_device.hpp"
#include "llama3/scheduler.hpp"
#include "support/catch.hpp"

namespace {
using namespace llama3;
using namespace llama3::test;

constexpr int longest = 200;

//! What came of 24 requests of all lengths.
struct served {
  std::map<std::uint64_t, served_request> requests;
  std::uint64_t preemptions = 0, free_pages = 0, num_pages = 0;
  int peak = 0;
};

served serve(cuda_device& device, tiny_on_device const& model_files, int slots,
             std::uint64_t kv_bytes, float temperature,
             diffkv::catch_up_schedule schedule = diffkv::catch_up_schedule::by_batch)
{
  cache_settings settings = mixed(4);
  settings.schedule       = schedule;
  auto const runs =
    device.make_runner(settings, {slots, longest, 200, kv_bytes}, model_files.offsets());
  served out;
  scheduler all{*runs, {}, {{}, [&](served_request const& r) { out.requests[r.id] = r; }}};
  for (unsigned i = 0; i < 24; ++i) {
    all.submit({i,
                model_files.ids(1 + static_cast<int>(i * 37u % 100u), i),
                20 + static_cast<int>(i * 13u % 60u),
                {temperature, 0.9f, i}});
  }
  while (all.advance()) {}
  out.preemptions = all.preemptions();
  out.peak        = all.peak_running();
  out.free_pages  = runs->free_pages();
  out.num_pages   = runs->num_pages();
  return out;
}

void check_all_served(served const& s)
{
  CHECK(s.requests.size() == 24);
  for (auto const& [id, request] : s.requests) {
    INFO(id);
    CHECK(request.reason == request_end::length);
    CHECK(request.tokens.size() == 20 + id * 13 % 60);
    CHECK(std::all_of(request.tokens.begin(), request.tokens.end(),
                      [](token_id t) { return t >= 0 && t < 200; }));
  }
  CHECK(s.free_pages == s.num_pages);
}
}  // namespace

TEST_CASE("serving: requests of all lengths come and go, and every page goes back", "[llama3]")
{
  tiny_on_device const model_files;
  auto const device = open_cuda_device(model_files.made.config, model_files.files(), 300);
  for (int const slots : {1, 5, 16}) {
    INFO(slots);
    served const s = serve(*device, model_files, slots, 0, 0.0f);
    check_all_served(s);
    CHECK(s.preemptions == 0);
    CHECK(s.peak == slots);
  }
  // The same batch composition gives the same tokens, chosen at random too.
  served const a = serve(*device, model_files, 8, 0, 0.8f);
  served const b = serve(*device, model_files, 8, 0, 0.8f);
  for (auto const& [id, request] : a.requests) {
    CHECK(request.tokens == b.requests.at(id).tokens);
  }
}

TEST_CASE("serving: with memory for half of the requests all of them finish", "[llama3]")
{
  tiny_on_device const model_files;
  auto const device  = open_cuda_device(model_files.made.config, model_files.files(), 300);
  served const roomy = serve(*device, model_files, 16, 0, 0.0f);
  // Pages are 7 KB here, a sequence takes a few of them in each of its six rows.
  std::uint64_t preemptions = 0;
  for (auto const schedule :
       {diffkv::catch_up_schedule::by_batch, diffkv::catch_up_schedule::by_position}) {
    for (std::uint64_t const pages : {120u, 80u, 60u}) {
      CAPTURE(static_cast<int>(schedule), pages);
      served const tight = serve(*device, model_files, 16, pages * 7168u, 0.0f, schedule);
      REQUIRE(tight.num_pages < roomy.num_pages);
      check_all_served(tight);
      preemptions += tight.preemptions;
    }
  }
  CHECK(preemptions > 0);  // few, as sequences are compressed while they grow
}
