// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! What a claim is asked and what it answers: demand of rows in, intervals of the ring and page ids
//! out, refusals as data.
//! Read before this: pool/free_ring.hpp.  Read next: pool/claim_tiles.hpp.
#include <diffkv/core/types.hpp>  // page_id

#include <cstdint>

namespace diffkv {

//! The sequences that a claim could not serve, in order. Their rows and the ring are as before.
struct refusals_ref {
  std::uint32_t* count     = nullptr;  //!< how many
  std::uint32_t* sequences = nullptr;  //!< [at least as many as are asked] indices into the batch
};

//! A claim for `num_sequences` sequences of `rows_per_sequence` rows each, in order.
//! All or nothing per sequence, exact first fit: a sequence whose demand exceeds what is left gets
//! nothing, later ones that still fit go on.
struct claim_request {
  std::uint32_t const* demand     = nullptr;  //!< [num_sequences * rows_per_sequence] pages
  std::uint32_t num_sequences     = 0;
  std::uint32_t rows_per_sequence = 0;
  std::uint64_t* offsets          = nullptr;  //!< [rows] out: exclusive sum of the demand granted
  page_id* ids                    = nullptr;  //!< [sum of demand] out: row r's from offsets[r] on
  std::uint8_t* granted           = nullptr;  //!< [num_sequences] out: 1 or 0
  refusals_ref refusals{};                    //!< out
};

}  // namespace diffkv
