// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Rows that claim pages on the device as in a generation step: one row in 32 wants a page, every fourth
//! of these two. Their answers are compared with those of a host.
#include "device_buffers.cuh"

#include <diffkv/host/claim.hpp>
#include <diffkv/pool/claim.cuh>
#include <diffkv/pool/init_ring.cuh>
#include <diffkv/pool/release.cuh>

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

namespace bench {

using namespace diffkv;

inline constexpr std::uint32_t rows_per_sequence = 256;  // 32 layers of 8 heads

//! Sets the counters: inside the graphs, so that every claim meets the ring it is meant to meet.
static __global__ void set_counters(free_ring_ref ring, std::uint64_t head, std::uint64_t tail)
{
  diffkv::detail::wait_for_previous();
  *ring.head = head;
  *ring.tail = tail;
}

inline std::vector<std::uint32_t> step_demand(std::size_t rows, unsigned seed)
{
  std::mt19937 random{seed};
  std::vector<std::uint32_t> demand(rows);
  for (auto& d : demand) { d = random() % 32 != 0 ? 0 : random() % 4 == 0 ? 2 : 1; }
  return demand;
}

//! One cache's worth of claims.
struct claims {
  claims(std::uint32_t rows, unsigned seed)
    : sequences{(rows + rows_per_sequence - 1) / rows_per_sequence},
      demand{step_demand(std::size_t{sequences} * rows_per_sequence, seed)},
      total{std::accumulate(demand.begin(), demand.end(), std::uint64_t{0})},
      capacity{static_cast<std::uint32_t>(4 * total + 57)},
      ring{make_free_ring(capacity, false, cuda_async_resource{bench_stream()}, bench_stream())},
      demand_d{on_device(demand)},
      offsets{on_device<std::uint64_t>(demand.size())},
      ids{on_device<page_id>(total)},
      granted{on_device<std::uint8_t>(sequences)},
      refused{on_device<std::uint32_t>(sequences)},
      num_refused{on_device<std::uint32_t>(1)},
      workspace{on_device<std::byte>(std::max(claim_workspace_bytes(sequences, rows_per_sequence),
                                              release_workspace_bytes(total)))}
  {}
  void set(std::uint64_t num_free)
  {
    std::uint64_t const head = (std::uint64_t{1} << 33) + 12345;
    diffkv::detail::launch(set_counters, {1, 1, 0, true}, bench_stream(), ring.ref(), head,
                           head + num_free);
  }
  void claim()
  {
    diffkv::claim(ring.ref(),
                  {demand_d.data(),
                   sequences,
                   rows_per_sequence,
                   offsets.data(),
                   ids.data(),
                   granted.data(),
                   {num_refused.data(), refused.data()}},
                  workspace.data(), workspace.size(), bench_stream());
  }
  void release()
  {
    diffkv::release(ring.ref(), {ids.data(), nullptr, total}, workspace.data(), workspace.size(),
                    nullptr, bench_stream());
  }
  //! Answers in host memory, with a ring in the same state.
  template <class Claim>
  [[nodiscard]] bool equals(std::uint64_t num_free, Claim&& on_host)
  {
    set(num_free);
    claim();
    free_ring<> twin{capacity, false};
    *twin.ref().head = (std::uint64_t{1} << 33) + 12345;
    *twin.ref().tail = *twin.ref().head + num_free;
    std::vector<std::uint64_t> o(demand.size());
    std::vector<page_id> i(total);
    std::vector<std::uint8_t> g(sequences);
    std::vector<std::uint32_t> r(sequences);
    std::uint32_t count = 0;
    on_host(twin.ref(), claim_request{demand.data(),
                                      sequences,
                                      rows_per_sequence,
                                      o.data(),
                                      i.data(),
                                      g.data(),
                                      {&count, r.data()}});
    r.resize(count);
    auto got_ids     = to_host(ids);
    auto got_refused = to_host(refused);
    auto const taken =
      static_cast<std::size_t>(*twin.ref().head - ((std::uint64_t{1} << 33) + 12345));
    got_ids.resize(taken);
    i.resize(taken);
    if (to_host(num_refused)[0] != count) { return false; }
    got_refused.resize(count);
    return to_host(offsets) == o && got_ids == i && to_host(granted) == g && got_refused == r;
  }
  [[nodiscard]] std::size_t bytes() const
  {
    return demand.size() * (sizeof(std::uint32_t) + sizeof(std::uint64_t)) +
           2 * total * sizeof(page_id);
  }

  std::uint32_t sequences;
  std::vector<std::uint32_t> demand;
  std::uint64_t total;
  std::uint32_t capacity;
  free_ring<cuda_async_resource> ring;
  device_buffer<std::uint32_t> demand_d;
  device_buffer<std::uint64_t> offsets;
  device_buffer<page_id> ids;
  device_buffer<std::uint8_t> granted;
  device_buffer<std::uint32_t> refused;
  device_buffer<std::uint32_t> num_refused;
  device_buffer<std::byte> workspace;
};

//! Some caches, to be served in turn.
inline std::vector<std::unique_ptr<claims>> caches(std::uint32_t rows, int count)
{
  std::vector<std::unique_ptr<claims>> all;
  for (int i = 0; i < count; ++i) {
    all.push_back(std::make_unique<claims>(rows, 7 + static_cast<unsigned>(i)));
  }
  return all;
}

inline bool claims_are_right(claims& work)
{
  auto const twin = [](auto const& ring, auto const& request) { host::claim(ring, request); };
  return work.equals(work.capacity, twin) && work.equals(work.total / 2, twin);
}

}  // namespace bench
