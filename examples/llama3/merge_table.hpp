// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Byte-pair merging: the pair with the lowest rank first, until no pair is left.
//! Read before this: llama3/token_id.hpp.  Read next: llama3/tokenizer.hpp.
#include "llama3/token_id.hpp"

#include <cstddef>  // size_t
#include <cstdint>  // uint64_t
#include <unordered_map>
#include <vector>

namespace llama3 {
class merge_table {
 public:
  //! Memory that `merge` reuses from piece to piece.
  struct workspace {
    struct symbol {
      token_id id;           // -1: merged into its left neighbour
      std::size_t previous;  // index of the neighbour, npos at the ends
      std::size_t next;
    };
    struct candidate {
      std::uint32_t rank;
      std::size_t position;  // of the left symbol
      token_id left, right, product;
    };
    std::vector<symbol> symbols;
    std::vector<candidate> queue;
  };

  //! Adds the next merge: each one ranks after those before it. The last word on a pair counts.
  void add(token_id left, token_id right, token_id product);

  [[nodiscard]] std::size_t size() const noexcept { return num_merges_; }

  //! Merges `ids` in place: always the pair of lowest rank, of equal ones the leftmost.
  //! @cost O(n log n) of the number of ids, however long the piece
  void merge(std::vector<token_id>& ids, workspace& work) const;

 private:
  struct entry {
    std::uint32_t rank;
    token_id product;
  };
  static std::uint64_t key(token_id left, token_id right) noexcept
  {
    return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 |
           static_cast<std::uint32_t>(right);
  }

  std::unordered_map<std::uint64_t, entry> entries_;
  std::uint32_t num_merges_ = 0;
};
}  // namespace llama3
