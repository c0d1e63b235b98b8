// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Arrays of vectors in the caller's memory.
//! Read before this: core/half.hpp.  Read next: core/memory.hpp.
#include <diffkv/core/half.hpp>  // is_element_v

#include <cstddef>  // ptrdiff_t
#include <cstdint>

namespace diffkv {

//! Vectors of `head_dim` contiguous elements in the caller's memory, e.g. a slice of a fused QKV
//! buffer. Strides are in elements.
//! @tparam T  float, __half, __nv_bfloat16, or const of these
template <class T>
struct vectors {
  static_assert(is_element_v<std::remove_const_t<T>>,
                "vectors hold float, __half or __nv_bfloat16 elements");
  T* data                     = nullptr;
  std::ptrdiff_t token_stride = 0;  //!< from one token (or sequence of a batch) to the next
  std::ptrdiff_t head_stride  = 0;  //!< from one head (or q_head) to the next

  [[nodiscard]] DIFFKV_HOST_DEVICE T* at(std::ptrdiff_t token, std::ptrdiff_t head) const noexcept
  {
    return data + token * token_stride + head * head_stride;
  }
};

//! Packed [tokens, heads, head_dim].
template <class T>
[[nodiscard]] vectors<T> packed(T* data, std::uint32_t num_heads, std::int32_t head_dim) noexcept
{
  return {data, static_cast<std::ptrdiff_t>(num_heads) * head_dim, head_dim};
}

}  // namespace diffkv
