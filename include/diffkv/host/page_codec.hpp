// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Vectors into pages and back, on the host.
//! Read before this: attention/decode_params.hpp.  Read next: host/context.hpp.
#include <diffkv/page/page_view.hpp>
#include <diffkv/quant/vector_codec.hpp>

#include <array>
#include <vector>

namespace diffkv::host {

//! Writes and reads the key and value vectors of the tokens of a page. Holds the places of one block
//! of 16 tokens as a table, so that reading a page costs one look-up per element.
class page_codec {
 public:
  explicit page_codec(page_geometry const& geometry)
    : geometry_{geometry}, key_{side_of(true)}, value_{side_of(false)}
  {}

  [[nodiscard]] page_geometry const& geometry() const noexcept { return geometry_; }

  //! Encodes `key[0 .. head_dim)`, f32, into the slot of `token`; other tokens of the page stay.
  void write_key(std::byte* page, int token, float const* key) const
  {
    coded_vector coded;
    encode_vector(key, geometry_.head_dim, geometry_.format.key, coded);
    page_view const view{page, &geometry_};
    write_codes(view, key_, geometry_.format.key.bits, token, coded);
    if (!geometry_.format.key.is_quantised()) { return; }
    for (int g = 0; g < geometry_.format.key.groups; ++g) {
      view.set_key_affine(token, g, coded.groups[g]);
    }
  }
  void write_value(std::byte* page, int token, float const* value) const
  {
    coded_vector coded;
    encode_vector(value, geometry_.head_dim, geometry_.format.value, coded);
    page_view const view{page, &geometry_};
    write_codes(view, value_, geometry_.format.value.bits, token, coded);
    if (!geometry_.format.value.is_quantised()) { return; }
    for (int g = 0; g < geometry_.format.value.groups; ++g) {
      view.set_value_affine(token, g, coded.groups[g]);
    }
  }

  //! Decodes the key of `token` into `key[0 .. head_dim)`, f32.
  void read_key(std::byte const* page, int token, float* key) const noexcept
  {
    std::array<affine, max_code_groups> groups{};
    if (geometry_.format.key.is_quantised()) {
      for (int g = 0; g < geometry_.format.key.groups; ++g) {
        groups[static_cast<std::size_t>(g)] = view_of(page).key_affine(token, g);
      }
    }
    read(page, key_, geometry_.format.key, token, groups, key);
  }
  void read_value(std::byte const* page, int token, float* value) const noexcept
  {
    std::array<affine, max_code_groups> groups{};
    if (geometry_.format.value.is_quantised()) {
      for (int g = 0; g < geometry_.format.value.groups; ++g) {
        groups[static_cast<std::size_t>(g)] = view_of(page).value_affine(token, g);
      }
    }
    read(page, value_, geometry_.format.value, token, groups, value);
  }

  //! The code (or f16 bits) of one element, for tests and for looking inside a page.
  [[nodiscard]] std::uint32_t key_code(std::byte const* page, int token, int dim) const noexcept
  {
    return view_of(page).code(geometry_.key_code(token, dim), geometry_.format.key.bits);
  }
  [[nodiscard]] std::uint32_t value_code(std::byte const* page, int token, int dim) const noexcept
  {
    return view_of(page).code(geometry_.value_code(token, dim), geometry_.format.value.bits);
  }

 private:
  //! Places of the first block of a segment [16, head_dim] and the distance to the next block.
  struct side {
    std::vector<code_place> places;
    std::uint32_t block_bytes;
  };

  [[nodiscard]] side side_of(bool key) const
  {
    code_spec const spec = key ? geometry_.format.key : geometry_.format.value;
    side s{{}, static_cast<std::uint32_t>(block_bytes(spec, geometry_.head_dim))};
    for (int token = 0; token < block_tokens; ++token) {
      for (int dim = 0; dim < geometry_.head_dim; ++dim) {
        s.places.push_back(key ? geometry_.key_code(token, dim) : geometry_.value_code(token, dim));
      }
    }
    return s;
  }
  [[nodiscard]] page_view view_of(std::byte const* page) const noexcept
  {
    return {const_cast<std::byte*>(page), &geometry_};  // only read through
  }
  [[nodiscard]] code_place const* row_of(side const& s, int token) const noexcept
  {
    return s.places.data() + token % block_tokens * geometry_.head_dim;
  }
  void write_codes(page_view const& view, side const& s, int bits, int token,
                   coded_vector const& coded) const
  {
    code_place const* places   = row_of(s, token);
    std::uint32_t const offset = static_cast<std::uint32_t>(token / block_tokens) * s.block_bytes;
    for (int d = 0; d < geometry_.head_dim; ++d) {
      view.set_code({places[d].byte + offset, places[d].shift}, bits, coded.codes[d]);
    }
  }
  void read(std::byte const* page, side const& s, code_spec spec, int token,
            std::array<affine, max_code_groups> const& groups, float* x) const noexcept
  {
    code_place const* places = row_of(s, token);
    std::byte const* block = page + static_cast<std::size_t>(token / block_tokens) * s.block_bytes;
    page_view const view   = view_of(block);
    int const group_elements = geometry_.head_dim / spec.groups;
    std::uint32_t const mask = spec.is_quantised() ? spec.max_code() : 0;
    for (int g = 0, d = 0; g < spec.groups; ++g) {
      float const scale = to_f32(groups[static_cast<std::size_t>(g)].scale);
      float const zero  = to_f32(groups[static_cast<std::size_t>(g)].zero);
      int const end     = d + group_elements;
      if (!spec.is_quantised()) {
        for (; d < end; ++d) { x[d] = to_f32(static_cast<f16_bits>(view.code(places[d], 16))); }
        continue;
      }
      for (; d < end; ++d) {
        std::uint32_t const byte = static_cast<std::uint8_t>(block[places[d].byte]);
        x[d]                     = affine_value((byte >> places[d].shift) & mask, scale, zero);
      }
    }
  }

  page_geometry geometry_;
  side key_;
  side value_;
};

}  // namespace diffkv::host
