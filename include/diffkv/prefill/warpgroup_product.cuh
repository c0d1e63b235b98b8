// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Matrix products of a warpgroup (wgmma) with 16-bit tiles in shared memory.
//! Read before this: prefill/tensor_map.cuh, prefill/matrix_fragments.cuh.
//! Read next: prefill/prefill_schedule.cuh.
//!
//! A product runs beside the program: `begin_products`, some products, `end_products`, and
//! `wait_for_products` before a sum is read. The compiler does not know that a sum changes in
//! between; `settle` keeps what uses it behind the wait.
#include <diffkv/prefill/hopper_barrier.cuh>
#include <diffkv/prefill/matrix_fragments.cuh>  // is_16_bit_v

#include <cstdint>
#include <type_traits>

namespace diffkv::detail {

//! `Rows` vectors of HeadDim 16-bit elements as a tensor copy with 128-byte swizzle leaves them:
//! blocks of 64 elements, in each block 128 bytes a row, and the eight 16-byte units of a row
//! exchanged by the row's last three bits. Starts at a multiple of 1024 bytes.
template <int Rows, int HeadDim>
struct swizzled_tile {
  static_assert(Rows % 8 == 0 && HeadDim % 64 == 0);
  static constexpr std::uint32_t block_bytes = Rows * 128;
  static constexpr std::uint32_t bytes       = HeadDim / 64 * block_bytes;

  std::uint32_t base;  //!< in shared memory

  //! Elements dim .. dim + 7 of a row.  @pre dim % 8 == 0
  [[nodiscard]] __device__ std::uint32_t at(int row, int dim) const noexcept
  {
    auto const r = static_cast<std::uint32_t>(row);
    auto const d = static_cast<std::uint32_t>(dim);
    return base + d / 64 * block_bytes + r * 128 + ((d / 8 % 8) ^ (r % 8)) * 16;
  }

  //! The tile as the matrix descriptor of a product that sums over elements (K-major); the k-th
  //! 16 elements are `element_step(k)` further.
  [[nodiscard]] __device__ std::uint64_t by_elements() const noexcept
  {
    return descriptor(16, 8 * 128);  // the first distance is not read
  }
  [[nodiscard]] static DIFFKV_HOST_DEVICE constexpr std::uint64_t element_step(int k) noexcept
  {
    return (static_cast<std::uint64_t>(k / 4) * block_bytes +
            static_cast<std::uint64_t>(k % 4) * 32) /
           16;
  }
  //! The same of a product that sums over rows (MN-major); 16 rows are one `row_step`.
  [[nodiscard]] __device__ std::uint64_t by_rows() const noexcept
  {
    return descriptor(block_bytes, 8 * 128);
  }
  [[nodiscard]] static DIFFKV_HOST_DEVICE constexpr std::uint64_t row_step(int k) noexcept
  {
    return static_cast<std::uint64_t>(k) * 16 * 128 / 16;
  }

 private:
  [[nodiscard]] __device__ std::uint64_t descriptor(std::uint32_t leading,
                                                    std::uint32_t stride) const noexcept
  {
    constexpr std::uint64_t swizzle_of_128_bytes = std::uint64_t{1} << 62;
    return std::uint64_t{(base & 0x3'FFFFu) / 16} | std::uint64_t{leading / 16} << 16 |
           std::uint64_t{stride / 16} << 32 | swizzle_of_128_bytes;
  }
};

#if DIFFKV_HAS_WARPGROUP_PRODUCTS

__device__ inline void begin_products() noexcept
{
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ inline void end_products() noexcept
{
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
__device__ inline void wait_for_products() noexcept
{
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}
template <int N>
__device__ void settle(float (&sums)[N]) noexcept
{
#pragma unroll
  for (int i = 0; i < N; ++i) { asm volatile("" : "+f"(sums[i])::"memory"); }
}

// Operands of the instructions below: no function can spell them.
#define DIFFKV_SUMS_4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define DIFFKV_SUMS_16(d, i) \
  DIFFKV_SUMS_4(d, i), DIFFKV_SUMS_4(d, i + 4), DIFFKV_SUMS_4(d, i + 8), DIFFKV_SUMS_4(d, i + 12)
#define DIFFKV_SUMS_32(d) DIFFKV_SUMS_16(d, 0), DIFFKV_SUMS_16(d, 16)
#define DIFFKV_SUMS_64(d) DIFFKV_SUMS_32(d), DIFFKV_SUMS_16(d, 32), DIFFKV_SUMS_16(d, 48)
#define DIFFKV_NAMES_32                                                                    \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23," \
  "%24,%25,%26,%27,%28,%29,%30,%31"
#define DIFFKV_NAMES_64                                                                       \
  DIFFKV_NAMES_32                                                                             \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53," \
  "%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define DIFFKV_PRODUCT(n, type) "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." #type "." #type

// sums (+)= A B, both in shared memory and summed over elements.
#define DIFFKV_PRODUCT_SHARED(n, type, sums, names, a, b, keep)                       \
  asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %" #keep ", 0;\n " DIFFKV_PRODUCT( \
                 n, type) " {" names "}, %" #a ", %" #b ", p, 1, 1, 0, 0;\n}"         \
               : sums                                                                 \
               : "l"(left), "l"(right), "r"(keeps ? 1 : 0))

// sums (+)= A B, A in registers, B in shared memory and summed over elements or, if ByRows, rows.
#define DIFFKV_PRODUCT_REGISTERS(n, type, sums, names, a0, a1, a2, a3, b, keep, by_rows)           \
  asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %" #keep                                        \
               ", 0;\n " DIFFKV_PRODUCT(n, type) " {" names "}, {%" #a0 ",%" #a1 ",%" #a2 ",%" #a3 \
                                                 "}, %" #b ", p, 1, 1, %" #by_rows ";\n}"          \
               : sums                                                                              \
               : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right),               \
                 "r"(keeps ? 1 : 0), "n"(ByRows ? 1 : 0))

//! sums := left . right (or += if `keeps`) over 16 elements: 64 rows of one tile with 2 N rows of
//! another. Register 4 n + i of lane 4 g + t of a warp w is of row 16 w + g + i / 2 * 8 and
//! column 8 n + 2 t + i % 2.
template <class T, int N>
__device__ void multiply(float (&sums)[N], std::uint64_t left, std::uint64_t right,
                         bool keeps) noexcept
{
  static_assert(is_16_bit_v<T> && (N == 32 || N == 64));
  constexpr bool is_f16 = std::is_same_v<T, __half>;
  if constexpr (N == 64 && is_f16) {
    DIFFKV_PRODUCT_SHARED(128, f16, DIFFKV_SUMS_64(sums), DIFFKV_NAMES_64, 64, 65, 66);
  } else if constexpr (N == 64) {
    DIFFKV_PRODUCT_SHARED(128, bf16, DIFFKV_SUMS_64(sums), DIFFKV_NAMES_64, 64, 65, 66);
  } else if constexpr (is_f16) {
    DIFFKV_PRODUCT_SHARED(64, f16, DIFFKV_SUMS_32(sums), DIFFKV_NAMES_32, 32, 33, 34);
  } else {
    DIFFKV_PRODUCT_SHARED(64, bf16, DIFFKV_SUMS_32(sums), DIFFKV_NAMES_32, 32, 33, 34);
  }
}

//! @tparam ByRows  whether rows of the right tile are summed over, else its elements
template <bool ByRows, class T, int N>
__device__ void multiply_registers(float (&sums)[N], std::uint32_t const* left, std::uint64_t right,
                                   bool keeps) noexcept
{
  static_assert(is_16_bit_v<T> && (N == 32 || N == 64));
  constexpr bool is_f16 = std::is_same_v<T, __half>;
  if constexpr (N == 64 && is_f16) {
    DIFFKV_PRODUCT_REGISTERS(128, f16, DIFFKV_SUMS_64(sums), DIFFKV_NAMES_64, 64, 65, 66, 67, 68,
                             69, 70);
  } else if constexpr (N == 64) {
    DIFFKV_PRODUCT_REGISTERS(128, bf16, DIFFKV_SUMS_64(sums), DIFFKV_NAMES_64, 64, 65, 66, 67, 68,
                             69, 70);
  } else if constexpr (is_f16) {
    DIFFKV_PRODUCT_REGISTERS(64, f16, DIFFKV_SUMS_32(sums), DIFFKV_NAMES_32, 32, 33, 34, 35, 36, 37,
                             38);
  } else {
    DIFFKV_PRODUCT_REGISTERS(64, bf16, DIFFKV_SUMS_32(sums), DIFFKV_NAMES_32, 32, 33, 34, 35, 36,
                             37, 38);
  }
}

//! The same as `multiply` with the left rows as fragments in registers, as `load_matrices` gives them.
template <class T, int N>
__device__ void multiply(float (&sums)[N], std::uint32_t const* left, std::uint64_t right,
                         bool keeps) noexcept
{
  multiply_registers<false, T>(sums, left, right, keeps);
}

//! sums += weights . tile over 16 rows of the tile; columns are its 2 N elements.
template <class T, int N>
__device__ void add_weighted_rows(float (&sums)[N], std::uint32_t const* left,
                                  std::uint64_t right) noexcept
{
  multiply_registers<true, T>(sums, left, right, true);
}

__device__ inline void store_shared(std::uint32_t address, std::uint32_t word) noexcept
{
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(word) : "memory");
}
//! Stores four matrices of 8 x 8 elements, the counterpart of `load_matrices`.
__device__ inline void store_matrices(std::uint32_t row, std::uint32_t const (&w)[4]) noexcept
{
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(row),
               "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3])
               : "memory");
}

#undef DIFFKV_PRODUCT_REGISTERS
#undef DIFFKV_PRODUCT_SHARED
#undef DIFFKV_PRODUCT
#undef DIFFKV_NAMES_64
#undef DIFFKV_NAMES_32
#undef DIFFKV_SUMS_64
#undef DIFFKV_SUMS_32
#undef DIFFKV_SUMS_16
#undef DIFFKV_SUMS_4

#endif  // DIFFKV_HAS_WARPGROUP_PRODUCTS

}  // namespace diffkv::detail
