// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The tensor-core fragments that a code segment is an image of, from the layouts that the PTX manual
//! gives for mma.m16n8k32 (8-bit) and mma.m16n8k16 (16-bit): which (row, column) of the 16-row matrix
//! A each register of each lane holds, and the same for the two-register matrix B. From it, without
//! a look at the library's mapping: the words that a warp loads, and where each code must lie.
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace diffkv::test {

inline constexpr int lanes = 32;

//! Registers of a fragment hold `per_register` elements: 4 of 8 bits, or 2 of 16 bits.
struct fragment_element {
  int row, column;
};

//! Element `i` of register `reg` (0..3) of `lane` in A. In both shapes registers 0 and 2 hold row
//! lane / 4, registers 1 and 3 the row 8 below; 2 and 3 hold the second half of the columns.
[[nodiscard]] inline fragment_element a_fragment(int lane, int reg, int i, int per_register)
{
  int const group_id  = lane / 4;
  int const in_group  = lane % 4;
  int const half_cols = 4 * per_register;
  return {group_id + 8 * (reg % 2), in_group * per_register + i + half_cols * (reg / 2)};
}

//! Element `i` of register `reg` (0..1) of `lane` in B: (row, column) with 8 columns.
[[nodiscard]] inline fragment_element b_fragment(int lane, int reg, int i, int per_register)
{
  return {(lane % 4) * per_register + i + 4 * per_register * reg, lane / 4};
}

//! Shape of one code segment's block of 16 tokens.
struct block_shape {
  int bits     = 0;
  int head_dim = 0;
  int groups   = 0;

  [[nodiscard]] int group_dims() const { return head_dim / groups; }
  //! Elements of a group with its padding: whole steps of 32.
  [[nodiscard]] int stored_dims() const { return (group_dims() + 31) / 32 * 32; }
  [[nodiscard]] int words() const
  {
    int const bits_per_lane = 16 * groups * stored_dims() * bits / lanes;
    return (bits_per_lane + 31) / 32;
  }
};

//! Byte in the block of word `word` of `lane`: a warp reads 16 bytes a lane as long as four words are
//! left for every lane, then what is left in one narrower access.
[[nodiscard]] inline int loaded_from(int words, int lane, int word)
{
  int first = 0;
  int bytes = 0;  // of the units before
  for (;;) {
    int const unit = words - first >= 4 ? 4 : words - first;
    if (word < first + unit) { return bytes + (lane * unit + word - first) * 4; }
    first += unit;
    bytes += lanes * unit * 4;
  }
}

//! Where an element of a register comes from: a word of the lane, and a bit in it.
struct register_source {
  int word, bit;
};

//! Keys. A step of the product K q covers 16 (16 bits) or 32 dims; rows are tokens. 16- and 8-bit
//! words are the registers themselves; a 4-bit word holds rows g (low nibbles) and g + 8 of half a
//! step; a 2-bit word holds a whole step, its second half in the high nibbles.
[[nodiscard]] inline register_source key_source(int bits, int step, int reg, int i)
{
  int const row_half = reg % 2;
  int const col_half = reg / 2;
  switch (bits) {
    case 16:
      return {4 * step + reg, 16 * i};
    case 8:
      return {4 * step + reg, 8 * i};
    case 4:
      return {2 * step + col_half, 8 * i + 4 * row_half};
    default:
      return {step, 8 * i + 4 * col_half + 2 * row_half};
  }
}

//! Values. A step of the product V^T p covers 16 dims, the rows; a block of 16 tokens is half the
//! columns of m16n8k32 (registers 0 and 1), or all columns of m16n8k16. `reg` is that of the block:
//! 0..1, or 0..3 at 16 bits. Narrower codes put 1, 2 or 4 steps into a word.
[[nodiscard]] inline register_source value_source(int bits, int step, int reg, int i)
{
  switch (bits) {
    case 16:
      return {4 * step + reg, 16 * i};
    case 8:
      return {2 * step + reg, 8 * i};
    case 4:
      return {step, 8 * i + 4 * reg};
    case 2:
      return {step / 2, 8 * i + 4 * (step % 2) + 2 * reg};
    default:
      return {step / 4, 8 * i + 2 * (step % 4) + reg};
  }
}

//! The dim (with padding, over all groups) of column `column` in key step `step`, and the token of row
//! `row`. A lane's columns of all steps together are a contiguous quarter of its group's dims.
[[nodiscard]] inline std::pair<int, int> key_element(block_shape shape, int step, int row,
                                                     int column)
{
  int const per_register = shape.bits == 16 ? 2 : 4;
  int const step_dims    = 8 * per_register;
  int const steps        = shape.stored_dims() / step_dims;
  int const quarter      = column % (4 * per_register) / per_register;
  int const in_lane = step % steps * 2 * per_register + column / (4 * per_register) * per_register +
                      column % per_register;
  int const in_group = quarter * (shape.stored_dims() / 4) + in_lane;
  return {row, step / steps * shape.stored_dims() + in_group};
}

//! The token of column `column` (0..15) and the dim of row `row` in value step `step`. A lane's columns
//! are the tokens 2t, 2t + 8, 2t + 1, 2t + 9; its rows of all steps a contiguous eighth of the dims.
[[nodiscard]] inline std::pair<int, int> value_element(block_shape shape, int step, int row,
                                                       int column)
{
  int const steps = shape.stored_dims() / 16;
  int t = 0, j = 0;
  if (shape.bits == 16) {
    t = column % 8 / 2;
    j = column / 8 * 2 + column % 2;
  } else {
    t = column / 4;
    j = column % 4;
  }
  int const token    = 2 * t + 8 * (j % 2) + j / 2;
  int const in_group = row % 8 * (shape.stored_dims() / 8) + step % steps * 2 + row / 8;
  return {token, step / steps * shape.stored_dims() + in_group};
}

//! Dims with padding back to dims of the vector; -1 for padding.
[[nodiscard]] inline int unpadded(block_shape shape, int stored_dim)
{
  int const in_group = stored_dim % shape.stored_dims();
  if (in_group >= shape.group_dims()) { return -1; }
  return stored_dim / shape.stored_dims() * shape.group_dims() + in_group;
}

struct bit_place {
  int byte, shift;
};

//! Number of steps over all groups.
[[nodiscard]] inline int num_steps(block_shape shape, bool key)
{
  int const step_dims = key && shape.bits != 16 ? 32 : 16;
  return shape.groups * shape.stored_dims() / step_dims;
}

//! Registers of A that one block of 16 tokens fills in a step.
[[nodiscard]] inline int num_registers(block_shape shape, bool key)
{
  return key || shape.bits == 16 ? 4 : 2;
}

//! The byte map of one block: (token, dim) -> place, gathered register by register.
[[nodiscard]] inline std::map<std::pair<int, int>, bit_place> fragment_map(block_shape shape,
                                                                           bool key)
{
  std::map<std::pair<int, int>, bit_place> out;
  int const per_register = shape.bits == 16 ? 2 : 4;
  for (int step = 0; step < num_steps(shape, key); ++step) {
    for (int lane = 0; lane < lanes; ++lane) {
      for (int reg = 0; reg < num_registers(shape, key); ++reg) {
        for (int i = 0; i < per_register; ++i) {
          auto const [row, column] = a_fragment(lane, reg, i, per_register);
          auto const [token, stored] =
            key ? key_element(shape, step, row, column) : value_element(shape, step, row, column);
          int const dim = unpadded(shape, stored);
          if (dim < 0) { continue; }
          auto const [word, bit] =
            key ? key_source(shape.bits, step, reg, i) : value_source(shape.bits, step, reg, i);
          int const byte    = loaded_from(shape.words(), lane, word) + bit / 8;
          out[{token, dim}] = {byte, bit % 8};
        }
      }
    }
  }
  return out;
}

}  // namespace diffkv::test
