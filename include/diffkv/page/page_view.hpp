// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! A window over the raw bytes of one page: codes, metadata, scores, positions by token.
//! Read before this: page/tier_pages.hpp.  Read next: page/byte_map.hpp.
#include <diffkv/core/half.hpp>           // f16_bits
#include <diffkv/page/page_geometry.hpp>  // page_geometry
#include <diffkv/quant/affine.hpp>        // affine

#include <cstddef>  // byte
#include <cstring>  // memcpy

namespace diffkv {

//! Does not own; the caller keeps page and geometry alive. Tokens are counted within the page.
struct page_view {
  std::byte* bytes              = nullptr;
  page_geometry const* geometry = nullptr;

  [[nodiscard]] DIFFKV_HOST_DEVICE float score(int token) const noexcept
  {
    return load<float>(geometry->score(token));
  }
  DIFFKV_HOST_DEVICE void set_score(int token, float score) const noexcept
  {
    store(geometry->score(token), score);
  }
  [[nodiscard]] DIFFKV_HOST_DEVICE std::int32_t position(int token) const noexcept
  {
    return load<std::int32_t>(geometry->position(token));
  }
  DIFFKV_HOST_DEVICE void set_position(int token, std::int32_t position) const noexcept
  {
    store(geometry->position(token), position);
  }
  [[nodiscard]] DIFFKV_HOST_DEVICE affine key_affine(int token, int group) const noexcept
  {
    return load<affine>(geometry->key_affine(token, group));
  }
  [[nodiscard]] DIFFKV_HOST_DEVICE affine value_affine(int token, int group) const noexcept
  {
    return load<affine>(geometry->value_affine(token, group));
  }
  DIFFKV_HOST_DEVICE void set_key_affine(int token, int group, affine a) const noexcept
  {
    store(geometry->key_affine(token, group), a);
  }
  DIFFKV_HOST_DEVICE void set_value_affine(int token, int group, affine a) const noexcept
  {
    store(geometry->value_affine(token, group), a);
  }

  //! The code (or f16 bits) of `bits` bits at `place`.
  [[nodiscard]] DIFFKV_HOST_DEVICE std::uint32_t code(code_place place, int bits) const noexcept
  {
    if (bits == 16) { return load<std::uint16_t>(place.byte); }
    std::uint32_t const byte = static_cast<std::uint8_t>(bytes[place.byte]);
    return (byte >> place.shift) & ((1u << bits) - 1u);
  }
  //! Writes one code; the other codes in its byte stay.
  DIFFKV_HOST_DEVICE void set_code(code_place place, int bits, std::uint32_t code) const noexcept
  {
    if (bits == 16) {
      store(place.byte, static_cast<std::uint16_t>(code));
      return;
    }
    std::uint32_t const mask = ((1u << bits) - 1u) << place.shift;
    std::uint32_t const byte = static_cast<std::uint8_t>(bytes[place.byte]);
    bytes[place.byte] = static_cast<std::byte>((byte & ~mask) | ((code << place.shift) & mask));
  }

 private:
  // Pages and segments are aligned: without a word about it, device code would go byte by byte.
  template <class T>
  [[nodiscard]] DIFFKV_HOST_DEVICE T load(std::uint32_t offset) const noexcept
  {
    T value;
    memcpy(&value, __builtin_assume_aligned(bytes + offset, sizeof value), sizeof value);
    return value;
  }
  template <class T>
  DIFFKV_HOST_DEVICE void store(std::uint32_t offset, T value) const noexcept
  {
    memcpy(__builtin_assume_aligned(bytes + offset, sizeof value), &value, sizeof value);
  }
};

}  // namespace diffkv
