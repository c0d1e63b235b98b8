// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Elements of queries as integers, and the 8-bit codes that the lag ring holds.
//! Read before this: attention/decode_traits.hpp.  Read next: attention/query_fragments.cuh.
#include <diffkv/detail/arithmetic.hpp>
#include <diffkv/quant/lag_rounding.hpp>

#include <cstddef>
#include <cstdint>

namespace diffkv::detail {

//! Elements rounded to integers: round(x * factor) in the low bits of the sum with `magic`.
template <int N>
struct rounded_elements {
  std::uint32_t bits[N];
  std::uint32_t magic;

  __device__ rounded_elements(float const (&x)[N], float factor, float with_magic) noexcept
    : magic{float_bits(with_magic)}
  {
#pragma unroll
    for (int i = 0; i < N; ++i) { bits[i] = float_bits(fmaf(x[i], factor, with_magic)); }
  }
  //! Of the four elements from `first` on, of 16 bits the byte that `selector` takes.
  [[nodiscard]] __device__ std::uint32_t bytes(int first, std::uint32_t selector) const noexcept
  {
    return __byte_perm(__byte_perm(bits[first], bits[first + 1], selector),
                       __byte_perm(bits[first + 2], bits[first + 3], selector), 0x5410u);
  }
  __device__ void add(std::uint32_t integer) noexcept
  {
#pragma unroll
    for (std::uint32_t& b : bits) { b += integer; }
  }
  //! Sum of `count` of the integers; exact.
  [[nodiscard]] __device__ float sum(int first, int count) const noexcept
  {
    std::uint32_t total = 0u - static_cast<std::uint32_t>(count) * magic;
#pragma unroll
    for (int i = 0; i < count; ++i) { total += bits[first + i]; }
    return static_cast<float>(static_cast<int>(total));
  }
};
inline constexpr std::uint32_t low_bytes    = 0x0040u;
inline constexpr std::uint32_t second_bytes = 0x0051u;
inline constexpr float query_code_limit     = 32512.0f;  //!< 127 * 256

//! Elements as 8-bit codes: int8_query_code bit for bit, as one more or less would show.
template <int N>
struct int8_elements {
  rounded_elements<N> rounded;

  //! @param greatest  magnitude of the whole vector
  //! @threads one warp
  __device__ int8_elements(float const (&x)[N], float greatest) noexcept
    : rounded{x, step_of(greatest), integer_magic}
  {
    // The product with the step lies within 2.3e-5 of the quotient that int8_query_code rounds, and
    // only near ties may round another way.
    float const step = step_of(greatest);
    bool is_clear    = is_finite(greatest);
#pragma unroll
    for (int e = 0; e < N; ++e) {
      float const code = __uint_as_float(rounded.bits[e]) - integer_magic;
      is_clear         = is_clear && fabsf(fmaf(x[e], step, -code)) <= 0.49997f;
    }
    if (__all_sync(0xFFFF'FFFFu, is_clear)) { return; }
#pragma unroll
    for (int e = 0; e < N; ++e) {
      rounded.bits[e] = float_bits(int8_query_code(x[e], greatest) + integer_magic);
    }
  }
  //! Of elements 4 w .. 4 w + 3.
  [[nodiscard]] __device__ std::uint32_t word(int w) const noexcept
  {
    return rounded.bytes(4 * w, low_bytes);
  }

 private:
  [[nodiscard]] static __device__ float step_of(float greatest) noexcept
  {
    return greatest > 0.0f ? div_rn(127.0f, greatest) : 0.0f;
  }
};

//! A lane's share of a vector of 8-bit codes, four to a word.
template <class Share>
struct code_share {
  static constexpr int words = Share::elements / 4;
  //! Bytes that lie together, in a lane's share and in the vector.
  static constexpr int unit_bytes =
    Share::per_group % 16 == 0 && Share::order.group_dims() % 16 == 0 ? 16
    : Share::per_group % 8 == 0 && Share::order.group_dims() % 8 == 0 ? 8
                                                                      : 4;
  struct alignas(unit_bytes) unit {
    std::uint32_t word[unit_bytes / 4];
  };
  static_assert(Share::per_group % 4 == 0 && Share::order.group_dims() % 4 == 0);

  //! @param from  null: zeros
  static __device__ void load(std::int8_t const* from, int owner,
                              std::uint32_t (&word)[words]) noexcept
  {
#pragma unroll
    for (int e = 0; e < Share::elements; e += unit_bytes) {
      unit u{};
      if (from != nullptr && Share::exists(owner, e)) {
        u = *reinterpret_cast<unit const*>(from + Share::dim(owner, e));
      }
#pragma unroll
      for (int w = 0; w < unit_bytes / 4; ++w) { word[e / 4 + w] = u.word[w]; }
    }
  }
  static __device__ void store(std::int8_t* to, int owner,
                               std::uint32_t const (&word)[words]) noexcept
  {
#pragma unroll
    for (int e = 0; e < Share::elements; e += unit_bytes) {
      if (!Share::exists(owner, e)) { continue; }
      unit u;
#pragma unroll
      for (int w = 0; w < unit_bytes / 4; ++w) { u.word[w] = word[e / 4 + w]; }
      *reinterpret_cast<unit*>(to + Share::dim(owner, e)) = u;
    }
  }
};

}  // namespace diffkv::detail
