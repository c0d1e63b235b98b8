// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Claim and release of pages: the meaning of the ring.
//! Read before this: host/context.hpp.  Read next: host/prompt.hpp.
#include <diffkv/pool/claim_request.hpp>
#include <diffkv/pool/free_ring.hpp>

#include <numeric>  // accumulate
#include <vector>

namespace diffkv::host {

namespace detail {
inline void mark_held(free_ring_ref const& ring, page_id id, bool held) noexcept
{
  auto const p            = static_cast<std::uint32_t>(id);
  std::uint32_t const bit = 1u << (p % 32);
  ring.held[p / 32]       = held ? ring.held[p / 32] | bit : ring.held[p / 32] & ~bit;
}
[[nodiscard]] inline bool is_held(free_ring_ref const& ring, page_id id) noexcept
{
  auto const p = static_cast<std::uint32_t>(id);
  return (ring.held[p / 32] >> (p % 32) & 1u) != 0;
}
}  // namespace detail

//! Claims the demand of all rows; see claim_request for who gets what. The head moves once.
//! Every member of `request` that is not null is written; refusals are data, not an error.
//! @cost O(rows + pages)
inline void claim(free_ring_ref const& ring, claim_request const& request) noexcept
{
  std::uint64_t const head = *ring.head;
  std::uint64_t left       = ring.num_free();
  std::uint64_t taken      = 0;
  std::uint32_t refused    = 0;
  for (std::uint32_t s = 0; s < request.num_sequences; ++s) {
    std::size_t const first = std::size_t{s} * request.rows_per_sequence;
    std::uint64_t total     = 0;
    for (std::size_t r = first; r < first + request.rows_per_sequence; ++r) {
      total += request.demand[r];
    }
    bool const fits = total <= left;
    if (request.granted != nullptr) { request.granted[s] = fits ? 1 : 0; }
    if (!fits && request.refusals.sequences != nullptr) { request.refusals.sequences[refused] = s; }
    refused += fits ? 0 : 1;
    left -= fits ? total : 0;
    for (std::size_t r = first; r < first + request.rows_per_sequence; ++r) {
      if (request.offsets != nullptr) { request.offsets[r] = taken; }
      for (std::uint32_t i = 0; fits && i < request.demand[r]; ++i, ++taken) {
        page_id const id = ring.cell(head + taken);
        if (request.ids != nullptr) { request.ids[taken] = id; }
        if (ring.is_checked()) { detail::mark_held(ring, id, true); }
      }
    }
  }
  *ring.head = head + taken;
  if (request.refusals.count != nullptr) { *request.refusals.count = refused; }
}

//! What the sequences of a batch got.
struct batch_claim {
  std::vector<std::uint64_t> offsets;  //!< [rows] first id of each row
  std::vector<page_id> ids;
  std::vector<std::uint8_t> granted;  //!< [sequences]
  std::uint32_t refused = 0;
};

//! Claims `demand` [num_sequences * rows_per_sequence] and keeps the answer.
[[nodiscard]] inline batch_claim claim_for_batch(free_ring_ref const& ring,
                                                 std::vector<std::uint32_t> const& demand,
                                                 std::uint32_t num_sequences,
                                                 std::uint32_t rows_per_sequence,
                                                 refusals_ref refusals)
{
  std::uint64_t const total = std::accumulate(demand.begin(), demand.end(), std::uint64_t{0});
  std::uint64_t const most  = total < ring.num_free() ? total : ring.num_free();
  batch_claim got{std::vector<std::uint64_t>(demand.size()),
                  std::vector<page_id>(static_cast<std::size_t>(most)),
                  std::vector<std::uint8_t>(num_sequences)};
  claim(ring, {demand.data(),
               num_sequences,
               rows_per_sequence,
               got.offsets.data(),
               got.ids.data(),
               got.granted.data(),
               {&got.refused, refusals.sequences}});
  if (refusals.count != nullptr) { *refusals.count = got.refused; }
  return got;
}

//! Gives pages back. In a checked ring ids that are no page, and pages that are free already, are
//! skipped and counted; an unchecked ring trusts the caller.
//! @pre (unchecked) each id was claimed and not yet released
inline release_report release(free_ring_ref const& ring, page_id const* ids,
                              std::size_t count) noexcept
{
  release_report report{};
  for (std::size_t i = 0; i < count; ++i) {
    if (ring.is_checked()) {
      if (static_cast<std::uint32_t>(ids[i]) >= ring.capacity) {
        ++report.foreign;
        continue;
      }
      if (!detail::is_held(ring, ids[i])) {
        ++report.repeated;
        continue;
      }
      detail::mark_held(ring, ids[i], false);
    }
    ring.cell(*ring.tail + report.released) = ids[i];
    ++report.released;
  }
  *ring.tail += report.released;
  return report;
}

}  // namespace diffkv::host
