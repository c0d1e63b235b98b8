// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! A ring in host memory and one in device memory side by side: the same operations on both must leave
//! the same answers and the same ring, cell by cell.
#include <diffkv/host/claim.hpp>
#include <diffkv/pool/claim.cuh>
#include <diffkv/pool/init_ring.cuh>
#include <diffkv/pool/release.cuh>

#include <numeric>
#include <string>
#include <vector>

#include "support/device.hpp"

namespace diffkv::test {

//! Everything that a claim answers. Cells that it must not write start with all bits set.
struct claim_answer {
  std::vector<std::uint64_t> offsets;
  std::vector<page_id> ids;
  std::vector<std::uint8_t> granted;
  std::vector<std::uint32_t> refused;
  std::uint32_t num_refused = 0xFFFF'FFFFu;

  claim_answer(std::size_t sequences, std::size_t rows, std::size_t pages)
    : offsets(rows, ~std::uint64_t{0}),
      ids(pages, no_page),
      granted(sequences, 0xFF),
      refused(sequences, 0xFFFF'FFFFu)
  {}
  friend bool operator==(claim_answer const& a, claim_answer const& b)
  {
    return a.offsets == b.offsets && a.ids == b.ids && a.granted == b.granted &&
           a.refused == b.refused && a.num_refused == b.num_refused;
  }
};

//! Rows that ask for pages.
struct claim_case {
  std::uint32_t sequences = 0;
  std::uint32_t rows      = 0;  //!< of each
  std::vector<std::uint32_t> demand{};

  //! Sum of the demand; of a ring's pages at most so many are handed out.
  [[nodiscard]] std::uint64_t total() const
  {
    return std::accumulate(demand.begin(), demand.end(), std::uint64_t{0});
  }
};

//! The two rings. `capacity` pages, `head` of them taken and given back before.
class twin_rings {
 public:
  twin_rings(std::uint32_t capacity, bool checked, std::uint64_t head = 0)
    : host_{capacity, checked},
      device_{make_free_ring(capacity, checked, cuda_async_resource{stream_.get()}, stream_.get())},
      head_{head}
  {
    stream_.wait();
    reset(capacity);
  }
  //! All but `num_free` pages are held, the counters stand where they stood at first.
  void reset(std::uint64_t num_free)
  {
    free_ring_ref const h = host_.ref();
    for (std::uint32_t i = 0; i < h.capacity; ++i) {
      h.ids[i] = page_id{(i * 7u + 3u) % h.capacity};
    }
    if (h.capacity % 7 == 0) {  // then 7 i does not visit all
      for (std::uint32_t i = 0; i < h.capacity; ++i) { h.ids[i] = page_id{h.capacity - 1 - i}; }
    }
    *h.head = head_;
    *h.tail = head_ + num_free;
    if (h.is_checked()) {
      for (std::uint32_t i = 0; i < (h.capacity + 31) / 32; ++i) { h.held[i] = 0; }
      for (std::uint64_t i = num_free; i < h.capacity; ++i) {
        host::detail::mark_held(h, h.cell(head_ + i), true);
      }
    }
    upload();
  }
  [[nodiscard]] free_ring_ref host() { return host_.ref(); }
  [[nodiscard]] free_ring_ref device() { return device_.ref(); }
  [[nodiscard]] device_stream const& stream() const { return stream_; }

  //! What differs between the two rings, or nothing.
  [[nodiscard]] std::string difference()
  {
    stream_.wait();
    free_ring_ref const h = host_.ref();
    free_ring_ref const d = device_.ref();
    std::uint64_t counters[2];
    std::vector<page_id> ids(h.capacity);
    std::vector<std::uint32_t> held(h.is_checked() ? (std::size_t{h.capacity} + 31) / 32 : 0);
    check(cudaMemcpy(&counters[0], d.head, 8, cudaMemcpyDeviceToHost), "head");
    check(cudaMemcpy(&counters[1], d.tail, 8, cudaMemcpyDeviceToHost), "tail");
    check(cudaMemcpy(ids.data(), d.ids, ids.size() * 4, cudaMemcpyDeviceToHost), "ids");
    if (counters[0] != *h.head) { return "head " + std::to_string(counters[0]); }
    if (counters[1] != *h.tail) { return "tail " + std::to_string(counters[1]); }
    for (std::uint64_t c = *h.head; c < *h.tail; ++c) {
      if (ids[c % h.capacity] != h.cell(c)) { return "cell of counter " + std::to_string(c); }
    }
    if (!held.empty()) {
      check(cudaMemcpy(held.data(), d.held, held.size() * 4, cudaMemcpyDeviceToHost), "held");
      for (std::size_t i = 0; i < held.size(); ++i) {
        if (held[i] != h.held[i]) { return "record of held pages, word " + std::to_string(i); }
      }
    }
    return {};
  }

 private:
  void upload()
  {
    free_ring_ref const h = host_.ref();
    free_ring_ref const d = device_.ref();
    check(cudaMemcpy(d.ids, h.ids, std::size_t{h.capacity} * 4, cudaMemcpyHostToDevice), "ids");
    check(cudaMemcpy(d.head, h.head, 8, cudaMemcpyHostToDevice), "head");
    check(cudaMemcpy(d.tail, h.tail, 8, cudaMemcpyHostToDevice), "tail");
    if (h.is_checked()) {
      std::size_t const words = (std::size_t{h.capacity} + 31) / 32;
      check(cudaMemcpy(d.held, h.held, words * 4, cudaMemcpyHostToDevice), "held");
    }
    check(cudaDeviceSynchronize(), "upload");
  }

  device_stream stream_;
  free_ring<> host_;
  free_ring<cuda_async_resource> device_;
  std::uint64_t head_;
};

//! The claim of a case in host memory.
inline claim_answer claim_on_host(free_ring_ref const& ring, claim_case const& c,
                                  std::uint64_t pages)
{
  claim_answer a{c.sequences, c.demand.size(), static_cast<std::size_t>(pages)};
  host::claim(ring, {c.demand.data(),
                     c.sequences,
                     c.rows,
                     a.offsets.data(),
                     a.ids.data(),
                     a.granted.data(),
                     {&a.num_refused, a.refused.data()}});
  return a;
}

//! Device memory for the claims of one case; a claim can be repeated.
class device_claim {
 public:
  device_claim(claim_case const& c, std::uint64_t pages)
    : case_{c},
      demand_{c.demand},
      offsets_{c.demand.size()},
      ids_{static_cast<std::size_t>(pages)},
      granted_{c.sequences},
      refused_{c.sequences},
      num_refused_{1},
      workspace_{claim_workspace_bytes(c.sequences, c.rows)}
  {}
  [[nodiscard]] claim_request request() const
  {
    return {demand_.data(),
            case_.sequences,
            case_.rows,
            offsets_.data(),
            ids_.data(),
            granted_.data(),
            {num_refused_.data(), refused_.data()}};
  }
  void operator()(free_ring_ref const& ring, cudaStream_t stream) const
  {
    claim(ring, request(), workspace_.data(), workspace_.size(), stream);
  }
  void set_demand(std::vector<std::uint32_t> const& demand, cudaStream_t stream) const
  {
    check(cudaMemcpyAsync(demand_.data(), demand.data(), demand.size() * 4, cudaMemcpyHostToDevice,
                          stream),
          "demand");
  }
  //! All bits set again, so that what a claim does not write is seen.
  void forget(cudaStream_t stream) const
  {
    auto const fill = [stream](auto const& a) {
      check(cudaMemsetAsync(a.data(), 0xFF, a.size() * sizeof *a.data(), stream), "forget");
    };
    fill(offsets_);
    fill(ids_);
    fill(granted_);
    fill(refused_);
    fill(num_refused_);
  }
  [[nodiscard]] claim_answer answer() const
  {
    claim_answer a{0, 0, 0};
    a.offsets     = offsets_.to_host();
    a.ids         = ids_.to_host();
    a.granted     = granted_.to_host();
    a.refused     = refused_.to_host();
    a.num_refused = num_refused_.to_host()[0];
    return a;
  }

 private:
  claim_case case_;
  device_array<std::uint32_t> demand_;
  device_array<std::uint64_t> offsets_;
  device_array<page_id> ids_;
  device_array<std::uint8_t> granted_;
  device_array<std::uint32_t> refused_;
  device_array<std::uint32_t> num_refused_;
  device_array<std::byte> workspace_;
};

}  // namespace diffkv::test
