// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! A page's geometry as a type, for kernels: the same numbers, known at compile time.
//! Read before this: page/page_size.hpp.  Read next: page/tier_pages.hpp.
#include <diffkv/page/page_size.hpp>

namespace diffkv {

//! @tparam Format     format<KeyBits, ValueBits, KeyGroups, ValueGroups> (quant/code_spec.hpp)
//! @tparam HeadDim    elements of a key or value vector
//! @tparam PageBytes  by default the best size for this format alone; a pool that mixes formats passes
//!                    `best_page_bytes(HeadDim, High::spec, Low::spec)`
template <class Format, int HeadDim,
          std::uint32_t PageBytes = best_page_bytes(HeadDim, Format::spec)>
struct page_layout {
  static_assert(is_legal_head_dim(HeadDim), "HeadDim must be a multiple of 16 from 32 to 256");
  static_assert(is_legal(Format::spec, HeadDim),
                "each scale group must have HeadDim / groups elements, at least 32");
  static_assert(PageBytes % page_alignment == 0, "PageBytes must be a multiple of 128");
  static_assert(diffkv::tokens_per_page(Format::spec, HeadDim, PageBytes) > 0,
                "PageBytes must hold at least 16 tokens of Format");

  using format_type = Format;

  static constexpr page_geometry geometry   = make_page_geometry(Format::spec, HeadDim, PageBytes);
  static constexpr int head_dim             = HeadDim;
  static constexpr std::uint32_t page_bytes = PageBytes;
  static constexpr int tokens_per_page      = geometry.tokens_per_page;
  static constexpr std::uint32_t key_codes  = geometry.key_codes;
  static constexpr std::uint32_t key_metadata   = geometry.key_metadata;
  static constexpr std::uint32_t value_codes    = geometry.value_codes;
  static constexpr std::uint32_t value_metadata = geometry.value_metadata;
  static constexpr std::uint32_t scores         = geometry.scores;
  static constexpr std::uint32_t positions      = geometry.positions;
  //! What attention reads of a full page.
  static constexpr std::uint32_t attention_bytes = scores;

  static_assert(key_metadata % 16 == 0 && value_codes % 16 == 0 && value_metadata % 16 == 0 &&
                  scores % 16 == 0 && positions % 16 == 0,
                "segments must keep 16-byte accesses aligned");
  static_assert(geometry.end <= page_bytes);
};

static_assert(page_layout<k8v4, 128, 7168>::tokens_per_page == 32);
static_assert(page_layout<k4v2, 128, 7168>::tokens_per_page == 64);
static_assert(page_layout<k8v4, 64, 7168>::tokens_per_page == 64);
static_assert(page_layout<k4v2, 64, 7168>::tokens_per_page == 112);
static_assert(page_layout<k8v4, 128, 7168>::geometry.nominal_bytes_per_token() == 192.0);
static_assert(page_layout<k8v4, 128, 7168>::geometry.real_bytes_per_token() == 224.0);

}  // namespace diffkv
