// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Vectors into pages and back, on the host.
//! Read before this: prefill/prefill.cuh, attention/decode.cuh.  Read next: host/context.hpp.
#include <diffkv/page/page_view.hpp>
#include <diffkv/quant/vector_codec.hpp>

#include <cstring>  // memcpy, memset
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

  //! Decodes the keys of `count` tokens from `token` on into `keys`, [count, head_dim] f32.
  void read_keys(std::byte const* page, int token, int count, float* keys) const noexcept
  {
    read<true>(page, token, count, keys);
  }
  void read_values(std::byte const* page, int token, int count, float* values) const noexcept
  {
    read<false>(page, token, count, values);
  }
  //! Decodes the key of `token` into `key[0 .. head_dim)`, f32.
  void read_key(std::byte const* page, int token, float* key) const noexcept
  {
    read<true>(page, token, 1, key);
  }
  void read_value(std::byte const* page, int token, float* value) const noexcept
  {
    read<false>(page, token, 1, value);
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
  //! Where the codes of the first block of a segment lie, [16, head_dim], from the segment's begin.
  struct side {
    std::vector<std::uint16_t> bytes;
    std::vector<std::uint16_t> shifts;
    std::vector<code_place> padding;  //!< [16, padding elements]: written with code 0
    std::uint32_t begin;
    std::uint32_t block_bytes;
    bool four_bytes;  //!< each four elements lie in four bytes that follow each other
    bool one_byte;    //!< each four elements lie in one byte
  };

  [[nodiscard]] side side_of(bool key) const
  {
    code_spec const spec = key ? geometry_.format.key : geometry_.format.value;
    side s{{},
           {},
           {},
           key ? geometry_.key_codes : geometry_.value_codes,
           static_cast<std::uint32_t>(block_bytes(spec, geometry_.head_dim)),
           spec.is_quantised(),
           spec.is_quantised()};
    for (int token = 0; token < block_tokens; ++token) {
      for (int dim = 0; dim < geometry_.head_dim; ++dim) {
        code_place const place =
          key ? geometry_.key_code(token, dim) : geometry_.value_code(token, dim);
        s.bytes.push_back(static_cast<std::uint16_t>(place.byte - s.begin));
        s.shifts.push_back(static_cast<std::uint16_t>(place.shift));
        int const step = dim % 4 == 0 ? 0 : s.bytes.back() - s.bytes[s.bytes.size() - 2];
        s.four_bytes   = s.four_bytes && (dim % 4 == 0 || step == 1);
        s.one_byte     = s.one_byte && step == 0;
      }
      for (int e = 0; e < stored_elements(geometry_.head_dim, spec.groups); ++e) {
        if (!is_padding(spec, geometry_.head_dim, e)) { continue; }
        s.padding.push_back(key ? stored_key_place(spec, geometry_.head_dim, token, e)
                                : stored_value_place(spec, geometry_.head_dim, token, e));
      }
    }
    return s;
  }
  [[nodiscard]] page_view view_of(std::byte const* page) const noexcept
  {
    return {const_cast<std::byte*>(page), &geometry_};  // only read through
  }
  //! First place of `token` in the tables of a side.
  [[nodiscard]] std::size_t row_of(int token) const noexcept
  {
    return static_cast<std::size_t>(token % block_tokens * geometry_.head_dim);
  }
  [[nodiscard]] static std::uint32_t block_of(side const& s, int token) noexcept
  {
    return s.begin + static_cast<std::uint32_t>(token / block_tokens) * s.block_bytes;
  }
  void write_codes(page_view const& view, side const& s, int bits, int token,
                   coded_vector const& coded) const
  {
    std::uint16_t const* bytes  = s.bytes.data() + row_of(token);
    std::uint16_t const* shifts = s.shifts.data() + row_of(token);
    std::uint32_t const block   = block_of(s, token);
    for (int d = 0; d < geometry_.head_dim; ++d) {
      view.set_code({block + bytes[d], shifts[d]}, bits, coded.codes[d]);
    }
    std::size_t const num_padding = s.padding.size() / block_tokens;
    code_place const* padding =
      s.padding.data() + static_cast<std::size_t>(token % block_tokens) * num_padding;
    for (std::size_t i = 0; i < num_padding; ++i) {
      view.set_code({block + padding[i].byte, padding[i].shift}, bits, 0);
    }
  }
  template <bool Key>
  void read(std::byte const* page, int token, int count, float* x) const noexcept
  {
    bool const is_quantised =
      Key ? geometry_.format.key.is_quantised() : geometry_.format.value.is_quantised();
    for (int n = 0; count > 0; token += n, count -= n, x += n * geometry_.head_dim) {
      n = count < block_tokens ? count : block_tokens;
      if (is_quantised) {
        read_codes<Key>(page, token, n, x);
      } else {
        read_elements(page, Key ? key_ : value_, token, n, x);
      }
    }
  }
  // Both collect what lies scattered before any arithmetic over it: that is then vector code, and
  // does not wait for bytes that were just written.
  template <bool Key>
  void read_codes(std::byte const* page, int token, int count, float* x) const noexcept
  {
    int const head_dim   = geometry_.head_dim;
    side const& s        = Key ? key_ : value_;
    code_spec const spec = Key ? geometry_.format.key : geometry_.format.value;
    std::uint8_t codes[block_tokens * max_head_dim];
    std::uint8_t* to = codes;
    for (int t = token; t < token + count; ++t, to += head_dim) {
      std::uint16_t const* bytes = s.bytes.data() + row_of(t);
      std::byte const* block     = page + block_of(s, t);
      if (s.four_bytes) {
        for (int d = 0; d < head_dim; d += 4) { std::memcpy(to + d, block + bytes[d], 4); }
      } else if (s.one_byte) {
        for (int d = 0; d < head_dim; d += 4) {
          std::memset(to + d, static_cast<std::uint8_t>(block[bytes[d]]), 4);
        }
      } else {
        for (int d = 0; d < head_dim; d += 4) {
          for (int i = d; i < d + 4; ++i) { to[i] = static_cast<std::uint8_t>(block[bytes[i]]); }
        }
      }
    }
    int const group_elements = head_dim / spec.groups;
    std::uint32_t const mask = spec.max_code();
    page_view const view     = view_of(page);
    std::uint8_t const* from = codes;
    for (int t = token; t < token + count; ++t, from += head_dim, x += head_dim) {
      std::uint16_t const* shifts = s.shifts.data() + row_of(t);
      for (int g = 0, d = 0; g < spec.groups; ++g) {
        affine const group = Key ? view.key_affine(t, g) : view.value_affine(t, g);
        float const scale  = to_f32(group.scale);
        float const zero   = to_f32(group.zero);
        int const end      = d + group_elements;
        for (; d < end; ++d) {
          x[d] = affine_value((std::uint32_t{from[d]} >> shifts[d]) & mask, scale, zero);
        }
      }
    }
  }
  void read_elements(std::byte const* page, side const& s, int token, int count,
                     float* x) const noexcept
  {
    int const head_dim = geometry_.head_dim;
    std::uint16_t elements[block_tokens * max_head_dim];
    std::uint16_t* to = elements;
    for (int t = token; t < token + count; ++t, to += head_dim) {
      std::uint16_t const* bytes = s.bytes.data() + row_of(t);
      std::byte const* block     = page + block_of(s, t);
      for (int d = 0; d < head_dim; ++d) { std::memcpy(to + d, block + bytes[d], 2); }
    }
    for (int i = 0; i < count * head_dim; ++i) {
      x[i] = to_f32(static_cast<f16_bits>(elements[i]));
    }
  }

  page_geometry geometry_;
  side key_;
  side value_;
};

}  // namespace diffkv::host
