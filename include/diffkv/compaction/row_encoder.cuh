// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! A warp encodes the keys or the values of a row, block after block, 16 tokens each, and fetches the
//! next block meanwhile.
//! Read before this: compaction/encode_block.cuh, compaction/prompt_pages.cuh.
//! Read next: compaction/prompt_store.cuh.
#include <diffkv/compaction/encode_block.cuh>
#include <diffkv/compaction/prompt_pages.cuh>
#include <diffkv/table/static_config.hpp>

namespace diffkv {

//! Measured on an H200. Loads are in flight while a warp encodes, so few warps are enough and
//! registers are worth more.
struct encode_tuning_sm90 {
  static constexpr unsigned plain_ctas       = 5;  //!< of an SM, of 4 warps, for 16-bit vectors
  static constexpr unsigned conditioned_ctas = 4;
  static constexpr unsigned most_steps       = 8;         //!< blocks that a warp encodes
  static constexpr unsigned full_grid        = 132 * 16;  //!< CTAs that keep the whole GPU busy
};

namespace detail {

//! What encoding needs to know.
template <class T>
struct store_params {
  planned_prompts planned;
  prompt_source<T> source;
  std::uint32_t row_ctas;  //!< CTAs that encode a row
  std::uint32_t steps;     //!< blocks that a warp encodes, at most
  bool whole;              //!< vectors may be read 16 bytes at a time
};

//! Shape of the CTAs that encode, and what they need of shared memory.
template <class Config, class T>
struct encode_cta {
  using layouts                     = typename Config::layouts;
  static constexpr int head_dim     = layouts::head_dim;
  static constexpr conditioning set = Config::conditioned;
  static constexpr bool is_staged   = detail::is_staged<head_dim, set>;
  using tile = vector_tile<std::conditional_t<is_staged, float, T>, head_dim>;
  static constexpr int codes_bytes(code_spec spec)
  {
    return spec.is_quantised() ? block_rows_bytes(head_dim, spec.groups) : 0;
  }
  static constexpr int codes_bytes(format_spec const& format)
  {
    return max_of(codes_bytes(format.key), codes_bytes(format.value));
  }
  static constexpr int bytes_per_warp =
    tile::bytes +
    max_of(codes_bytes(layouts::high::geometry.format), codes_bytes(layouts::low::geometry.format));
  static constexpr int offset_bytes =
    has(set, conditioning::centred) ? head_dim * static_cast<int>(sizeof(float)) : 0;
  static constexpr unsigned warps = 4 * bytes_per_warp + offset_bytes <= 48 * 1024 ? 4 : 2;
  static constexpr unsigned pairs = warps / 2;  //!< one warp for keys, one for values
  static constexpr int bytes      = static_cast<int>(warps) * bytes_per_warp + offset_bytes;
  static_assert(bytes <= 48 * 1024, "shared memory of a CTA that is launched without asking");
  static constexpr bool is_small = sizeof(T) == 2 && head_dim <= 128 && !is_staged;
  static constexpr unsigned ctas = !is_small ? 1
                                   : set == conditioning::none
                                     ? encode_tuning_sm90::plain_ctas
                                     : encode_tuning_sm90::conditioned_ctas;
};

//! Where the parts of one side of a tier lie in a page.
struct side_places {
  std::uint32_t codes       = 0;
  std::uint32_t block_codes = 0;  //!< bytes of a block
  std::uint32_t scales      = 0;
  std::uint32_t tokens = 0;  //!< what is stored once per token: scores with keys, else positions
};

//! One side of a tier, as a type.
template <class Layout, bool IsHigh, bool IsKey>
struct tier_side {
  using layout                  = Layout;
  static constexpr bool is_high = IsHigh;
  static constexpr bool is_key  = IsKey;
  static constexpr code_spec spec =
    IsKey ? Layout::geometry.format.key : Layout::geometry.format.value;
  static constexpr side_places places{
    IsKey ? Layout::key_codes : Layout::value_codes,
    static_cast<std::uint32_t>(block_bytes(spec, Layout::head_dim)),
    IsKey ? Layout::key_metadata : Layout::value_metadata,
    IsKey ? Layout::scores : Layout::positions};
};

//! 16 tokens (or the last few) of one tier of a row. What belongs to a token is that of lane l's, the
//! (l mod 16)-th; absent ones stand for the last.
struct token_block {
  std::uint32_t index = 0;  //!< of the row, high ones first
  int count           = 0;  //!< tokens that there are; 0: there is no such block
  std::int32_t token  = 0;
  page_id page{};
};

//! Encodes the keys, or the values, of a row.
//! @pre     there is something to store
//! @threads one warp
template <class Config, class T>
class row_encoder {
  using cta     = encode_cta<Config, T>;
  using layouts = typename Config::layouts;

 public:
  //! @param offset  the row's key offset in shared memory, where keys are centred
  //! @param shared  of this warp alone
  __device__ row_encoder(store_params<T> const& p, std::uint32_t item, std::uint32_t head,
                         bool is_key, float const* offset, std::byte* shared, int lane)
    : p_{p},
      is_key_{is_key},
      lane_{lane},
      offset_{is_key && has(cta::set, conditioning::centred) ? offset : nullptr},
      shared_{shared}
  {
    std::uint32_t const r              = item * p.planned.cache.shape.num_heads + head;
    std::uint32_t const sequence       = item / p.planned.layers.count;
    std::uint32_t const layer_in_range = item % p.planned.layers.count;
    std::int64_t const first =
      p.source.first_tokens == nullptr ? 0 : p.source.first_tokens[sequence];
    tokens_      = p.planned.rows[r].tokens;
    high_blocks_ = ceil_div(tokens_.high, std::uint32_t{block_tokens});
    high_pages_  = p.planned.rows[r].pages.high;
    list_        = p.planned.lists + std::size_t{r} * static_cast<unsigned>(p.source.max_tokens);
    pages_       = p.planned.pages + std::size_t{r} * p.planned.max_pages;
    vectors<T const> const& side = is_key ? p.source.key : p.source.value;
    token_stride_                = side.token_stride;
    begin_                       = side.at(first, head) +
             layer_in_range * (is_key ? p.source.key_layer_stride : p.source.value_layer_stride);
    importances_ = p.source.importances + layer_in_range * p.source.importance_layer_stride +
                   head * p.source.importance_head_stride + first;
    queries_ = p.planned.cache
                 .layer(p.planned.batch.slots[sequence], p.planned.layers.first + layer_in_range)
                 .queries;
  }

  [[nodiscard]] __device__ token_block find(std::uint32_t index) const
  {
    token_block block;
    block.index                = index;
    bool const is_high         = index < high_blocks_;
    std::uint32_t const tokens = is_high ? tokens_.high : tokens_.low;
    std::uint32_t const first  = in_tier(index) * block_tokens;
    if (first >= tokens) { return block; }
    block.count = static_cast<int>(min(tokens - first, unsigned{block_tokens}));
    std::int32_t const place =
      static_cast<std::int32_t>(first) + min(lane_ % block_tokens, block.count - 1);
    block.token = list_[is_high ? place : p_.planned.max_tokens - 1 - place];
    block.page =
      pages_[is_high ? index / blocks_per_page<typename layouts::high>
                     : in_tier(index) / blocks_per_page<typename layouts::low> + high_pages_];
    return block;
  }

  __device__ __forceinline__ void fetch(token_block const& block) const
  {
    if constexpr (!cta::is_staged) { tile().fetch(vector_of(block), p_.whole, lane_); }
  }

  //! Encodes and stores a block that was fetched.
  //! @param after_load  is called when the tile has been read
  template <class AfterLoad>
  __device__ __forceinline__ void store(token_block const& block, AfterLoad&& after_load) const
  {
    float importance = 0.0f;
    if (is_key_) { importance = importances_[block.token]; }  // asked before the long work
    if constexpr (cta::is_staged) { stage_block(tile(), vector_of(block), offset_, lane_); }

    bool const is_high = block.index < high_blocks_;
    side_places const places =
      is_high ? side_places_of<typename layouts::high>() : side_places_of<typename layouts::low>();
    std::uint32_t const in_page =
      in_tier(block.index) %
      (is_high ? blocks_per_page<typename layouts::high> : blocks_per_page<typename layouts::low>);
    std::byte* const page = p_.planned.cache.pool.base + std::size_t{layouts::page_bytes} *
                                                           static_cast<std::uint32_t>(block.page);
    std::byte* const codes = page + (places.codes + in_page * places.block_codes);

    tier_pages const& tiers   = p_.planned.cache.tiers;
    format_spec const& format = is_high ? tiers.high.format : tiers.low.format;
    code_spec const spec      = is_key_ ? format.key : format.value;
    store_quantised<1>(block, spec, codes, page + places.scales + in_page * 64, after_load);
    store_quantised<2>(block, spec, codes, page + places.scales + in_page * 128, after_load);
    store_quantised<4>(block, spec, codes, page + places.scales + in_page * 256, after_load);
    for_each_side([&](auto side) {
      if constexpr (!side.spec.is_quantised()) {
        if (is_of(block, side)) {
          block_image<typename decltype(side)::layout, side.is_key> image;
          fill_image<still_to_do>(image, tile(), offset_, lane_);
          after_load();
          image.store(codes, block.count, lane_);
        }
      }
    });
    if (lane_ < block.count) {
      std::uint32_t mine = static_cast<std::uint32_t>(block.token);
      if (is_key_) {
        std::int32_t const seen = queries_.count(block.token + 1);
        // A NaN is stored as it is: the host's product keeps its bits, the device's would not.
        mine = __float_as_uint(seen <= 0            ? 0.0f
                               : is_nan(importance) ? importance
                                                    : score_of(importance, seen));
      }
      reinterpret_cast<std::uint32_t*>(page + places.tokens + in_page * 64)[token_place(lane_)] =
        mine;
    }
  }

 private:
  //! What is done while codes are made, where vectors have not been conditioned before.
  static constexpr conditioning still_to_do = cta::is_staged ? conditioning::none : cta::set;

  template <class Layout>
  static constexpr auto blocks_per_page = static_cast<std::uint32_t>(Layout::tokens_per_page /
                                                                     block_tokens);

  [[nodiscard]] __device__ typename cta::tile tile() const { return {shared_}; }
  //! Block of its tier.
  [[nodiscard]] __device__ std::uint32_t in_tier(std::uint32_t index) const
  {
    return index < high_blocks_ ? index : index - high_blocks_;
  }
  [[nodiscard]] __device__ T const* vector_of(token_block const& block) const
  {
    return begin_ + block.token * token_stride_;
  }
  template <class Layout>
  [[nodiscard]] __device__ side_places side_places_of() const
  {
    constexpr side_places keys   = tier_side<Layout, true, true>::places;
    constexpr side_places values = tier_side<Layout, true, false>::places;
    return {is_key_ ? keys.codes : values.codes, is_key_ ? keys.block_codes : values.block_codes,
            is_key_ ? keys.scales : values.scales, is_key_ ? keys.tokens : values.tokens};
  }
  template <class Side>
  [[nodiscard]] __device__ bool is_of(token_block const& block, Side) const
  {
    return (block.index < high_blocks_) == Side::is_high && is_key_ == Side::is_key;
  }
  template <class Visit>
  static __device__ __forceinline__ void for_each_side(Visit&& visit)
  {
    visit(tier_side<typename layouts::high, true, true>{});
    visit(tier_side<typename layouts::high, true, false>{});
    if constexpr (layouts::has_low) {
      visit(tier_side<typename layouts::low, false, true>{});
      visit(tier_side<typename layouts::low, false, false>{});
    }
  }
  static DIFFKV_HOST_DEVICE constexpr bool uses(code_spec spec, int groups)
  {
    return spec.is_quantised() && spec.groups == groups;
  }
  static DIFFKV_HOST_DEVICE constexpr bool uses(format_spec const& format, int groups)
  {
    return uses(format.key, groups) || uses(format.value, groups);
  }
  static DIFFKV_HOST_DEVICE constexpr bool all_use(int groups)
  {
    constexpr format_spec high = layouts::high::geometry.format;
    constexpr format_spec low  = layouts::low::geometry.format;
    return uses(high.key, groups) && uses(high.value, groups) && uses(low.key, groups) &&
           uses(low.value, groups);
  }

  //! Makes codes where the block's side has so many groups: one code for all its formats.
  template <int Groups, class AfterLoad>
  __device__ __forceinline__ void store_quantised(token_block const& block, code_spec spec,
                                                  std::byte* codes, std::byte* scales,
                                                  AfterLoad&& after_load) const
  {
    if constexpr (uses(layouts::high::geometry.format, Groups) ||
                  (layouts::has_low && uses(layouts::low::geometry.format, Groups))) {
      if (!all_use(Groups) && !uses(spec, Groups)) { return; }
      block_rows<cta::head_dim, Groups> const rows{shared_ + cta::tile::bytes};
      encode_rows<still_to_do>(rows, tile(), offset_, block_codec::of(spec), lane_, after_load);
      __syncwarp();
      for_each_side([&](auto side) {
        if constexpr (uses(side.spec, Groups)) {
          if (is_of(block, side)) {
            rows.template store_codes<typename decltype(side)::layout, side.is_key>(
              codes, block.count, lane_);
          }
        }
      });
      rows.store_scales(scales, block.count, lane_);
    }
  }

  store_params<T> const& p_;
  bool is_key_;
  int lane_;
  float const* offset_;
  std::byte* shared_;
  tier_counts tokens_{};
  std::uint32_t high_blocks_   = 0;
  std::uint32_t high_pages_    = 0;
  std::int32_t const* list_    = nullptr;
  page_id const* pages_        = nullptr;
  std::ptrdiff_t token_stride_ = 0;
  T const* begin_              = nullptr;
  float const* importances_    = nullptr;
  query_span queries_{};
};

}  // namespace detail

}  // namespace diffkv
