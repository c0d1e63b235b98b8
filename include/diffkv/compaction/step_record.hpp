// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The plan of one row in 16 bytes: what the first launch of a step hands to the second.
//! Read before this: compaction/step_plan.hpp.  Read next: compaction/calibration.hpp.
#include <diffkv/compaction/step_plan.hpp>

namespace diffkv {

//! A row_step without what the row's state tells, and where the row's pages lie among those of its
//! sequence.
struct alignas(16) step_record {
  //! Offsets are 24 bits: a sequence has at most 2^23 rows, each of which wants at most two pages.
  static constexpr std::uint32_t max_rows = 1u << 23;

  slot_index append_slot         = no_slot;
  slot_index low_slot            = no_slot;  //!< to which a token moves, if one does
  std::int32_t position          = 0;        //!< of the new token
  std::uint32_t offset_and_flags = 0;

  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr std::uint32_t offset() const noexcept
  {
    return offset_and_flags & 0x00FF'FFFFu;
  }
};
static_assert(sizeof(step_record) == 16);

namespace detail {

enum step_flag : std::uint32_t {
  step_high_from_ring  = 1u << 24,
  step_high_from_other = 1u << 25,
  step_low_from_ring   = 1u << 26,
  step_low_from_other  = 1u << 27,
  step_demotes         = 1u << 28,
  step_fills           = 1u << 29,
  step_drops_low       = 1u << 30
};

}  // namespace detail

//! @param offset  pages wanted by the rows of the sequence before this one
[[nodiscard]] DIFFKV_HOST_DEVICE constexpr step_record pack_step(row_step const& plan,
                                                                 tier_counts before,
                                                                 std::int32_t position,
                                                                 std::uint32_t offset) noexcept
{
  auto const source = [](page_source s, std::uint32_t ring, std::uint32_t other) {
    return s == page_source::ring ? ring : s == page_source::other_tier ? other : 0u;
  };
  bool const demotes = plan.demote_from != no_slot;
  bool const fills   = plan.fill_from != no_slot;
  std::uint32_t const flags =
    source(plan.high_page, detail::step_high_from_ring, detail::step_high_from_other) |
    source(plan.low_page, detail::step_low_from_ring, detail::step_low_from_other) |
    (demotes ? detail::step_demotes : 0u) | (fills ? detail::step_fills : 0u) |
    (plan.tokens_after.low < before.low ? detail::step_drops_low : 0u);
  return {plan.append_slot, demotes ? plan.demote_to : plan.fill_to, position, offset | flags};
}

//! @param before  tokens of the row, as when the plan was packed
[[nodiscard]] DIFFKV_HOST_DEVICE constexpr row_step unpack_step(step_record const& record,
                                                                tier_counts before) noexcept
{
  std::uint32_t const flags = record.offset_and_flags;
  auto const source         = [flags](std::uint32_t ring, std::uint32_t other) {
    return (flags & ring) != 0    ? page_source::ring
                   : (flags & other) != 0 ? page_source::other_tier
                                          : page_source::none;
  };
  row_step plan{};
  plan.append_slot       = record.append_slot;
  plan.tokens_after.high = detail::max_of(before.high, record.append_slot + 1);
  plan.tokens_after.low  = before.low - ((flags & detail::step_drops_low) != 0 ? 1u : 0u);
  if ((flags & detail::step_demotes) != 0) {
    plan.demote_from      = record.append_slot;  // the new token takes the freed slot
    plan.demote_to        = record.low_slot;
    plan.tokens_after.low = detail::max_of(before.low, record.low_slot + 1);
  }
  if ((flags & detail::step_fills) != 0) {
    plan.fill_from = plan.tokens_after.low;  // the part's last token
    plan.fill_to   = record.low_slot;
  }
  plan.high_page = source(detail::step_high_from_ring, detail::step_high_from_other);
  plan.low_page  = source(detail::step_low_from_ring, detail::step_low_from_other);
  return plan;
}

}  // namespace diffkv
