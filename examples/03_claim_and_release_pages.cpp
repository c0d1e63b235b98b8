// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

// What this teaches: how rows get pages and give them back.
//   1. A claim serves many rows at once; a sequence that does not fit is refused as a whole, and
//      the refusal is data, not an error.
//   2. Released pages go back to the tail of the ring; the ring wraps, the counters never do.
//   3. A checked ring notices a page that is released twice and an id that is no page.
// No GPU is needed. The program ends with 0 if every answer is as it must be.
#include <diffkv/host/claim.hpp>

#include <cstdio>
#include <set>
#include <vector>

int main()
{
  bool right = true;

  // --- 1. Seven pages, three sequences of two rows each. The second one asks for too much.
  diffkv::free_ring<> owner{/*capacity=*/7, /*checked=*/true};
  diffkv::free_ring_ref const ring = owner.ref();  // a few words, goes into kernels by value

  std::vector<std::uint32_t> const demand{2, 1, 3, 3, 1, 1};  // [sequences * rows] pages
  std::vector<std::uint64_t> offsets(6);                      // [sequences * rows]
  std::vector<diffkv::page_id> ids(7);                        // [at most the free pages]
  std::vector<std::uint8_t> granted(3);                       // [sequences]
  std::vector<std::uint32_t> refused(3);  // [sequences], the first `count` count
  std::uint32_t count = 0;

  diffkv::claim_request request;
  request.demand            = demand.data();
  request.num_sequences     = 3;
  request.rows_per_sequence = 2;
  request.offsets           = offsets.data();
  request.ids               = ids.data();
  request.granted           = granted.data();
  request.refusals          = {&count, refused.data()};
  diffkv::host::claim(ring, request);

  std::set<diffkv::page_id> held;  // what this program owns
  for (std::size_t row = 0; row < demand.size(); ++row) {
    std::printf("sequence %zu, row %zu: asks for %u:", row / 2, row % 2, demand[row]);
    for (std::uint32_t i = 0; granted[row / 2] != 0 && i < demand[row]; ++i) {
      diffkv::page_id const id = ids[offsets[row] + i];  // each row has its own interval
      std::printf(" page %u", static_cast<unsigned>(id));
      right = right && held.insert(id).second;  // no page is handed out twice
    }
    std::puts(granted[row / 2] != 0 ? "" : " refused");
  }
  right = right && count == 1 && refused[0] == 1;  // the scheduler reads whom to preempt
  right = right && granted[0] == 1 && granted[1] == 0 && granted[2] == 1;
  right = right && held.size() == 5 && ring.num_free() == 2;

  // --- 2. The first sequence is done: its three pages return, and now the refused one would still
  // not fit (6 > 5). One that asks for five does, and its last pages come from behind the wrap.
  diffkv::release_report report = diffkv::host::release(ring, ids.data(), 3);
  for (std::size_t i = 0; i < 3; ++i) { held.erase(ids[i]); }
  right = right && report.released == 3 && ring.num_free() == 5;

  std::uint32_t const five = 5;                // [1]
  std::vector<diffkv::page_id> wrapped(five);  // [five]
  diffkv::claim_request again;
  again.demand            = &five;
  again.num_sequences     = 1;
  again.rows_per_sequence = 1;
  again.ids               = wrapped.data();
  diffkv::host::claim(ring, again);
  std::printf("five more pages:");
  for (diffkv::page_id id : wrapped) {
    std::printf(" %u", static_cast<unsigned>(id));
    right = right && held.insert(id).second;
  }
  std::printf("\nhead %llu, tail %llu, capacity %u: %llu free\n",
              static_cast<unsigned long long>(*ring.head),
              static_cast<unsigned long long>(*ring.tail), ring.capacity,
              static_cast<unsigned long long>(ring.num_free()));
  right = right && *ring.head == 10 && *ring.tail == 10;  // both beyond the capacity: wrapped
  right = right && held.size() + ring.num_free() == ring.capacity;  // pages are conserved

  // --- 3. Mistakes of a caller are skipped and counted; the ring stays whole.
  diffkv::page_id const mistakes[] = {wrapped[0], wrapped[0], diffkv::page_id{99}};  // [3]
  report                           = diffkv::host::release(ring, mistakes, 3);
  std::printf("released %llu, released twice %llu, no page of ours %llu\n",
              static_cast<unsigned long long>(report.released),
              static_cast<unsigned long long>(report.repeated),
              static_cast<unsigned long long>(report.foreign));
  right = right && report.released == 1 && report.repeated == 1 && report.foreign == 1;
  right = right && ring.num_free() == 1;

  std::puts(right ? "every answer is right" : "WRONG");
  return right ? 0 : 1;
}
