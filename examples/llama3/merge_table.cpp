// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/merge_table.hpp"

#include <algorithm>  // pop_heap, push_heap

namespace llama3 {
namespace {
constexpr std::size_t npos = static_cast<std::size_t>(-1);
}  // namespace

void merge_table::add(token_id left, token_id right, token_id product)
{
  entries_[key(left, right)] = {num_merges_++, product};
}

void merge_table::merge(std::vector<token_id>& ids, workspace& work) const
{
  if (ids.size() < 2) { return; }
  auto& symbols = work.symbols;
  auto& queue   = work.queue;
  symbols.clear();
  queue.clear();
  // std::push_heap keeps the largest at the front, so "smaller" means "later".
  auto const later = [](workspace::candidate const& a, workspace::candidate const& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
  };
  auto const propose = [&](std::size_t left) {
    if (left == npos || symbols[left].next == npos) { return; }
    token_id const a = symbols[left].id, b = symbols[symbols[left].next].id;
    auto const found = entries_.find(key(a, b));
    if (found == entries_.end()) { return; }
    queue.push_back({found->second.rank, left, a, b, found->second.product});
    std::push_heap(queue.begin(), queue.end(), later);
  };

  for (std::size_t i = 0; i < ids.size(); ++i) {
    symbols.push_back({ids[i], i == 0 ? npos : i - 1, i + 1 == ids.size() ? npos : i + 1});
  }
  for (std::size_t i = 0; i + 1 < ids.size(); ++i) { propose(i); }
  while (!queue.empty()) {
    std::pop_heap(queue.begin(), queue.end(), later);
    auto const best = queue.back();
    queue.pop_back();
    auto& left             = symbols[best.position];
    std::size_t const next = left.next;
    // A pair whose halves have been merged away since it was proposed is stale.
    if (left.id != best.left || next == npos || symbols[next].id != best.right) { continue; }
    left.id          = best.product;
    left.next        = symbols[next].next;
    symbols[next].id = -1;
    if (left.next != npos) { symbols[left.next].previous = best.position; }
    propose(left.previous);
    propose(best.position);
  }
  ids.clear();
  for (std::size_t i = 0; i != npos; i = symbols[i].next) { ids.push_back(symbols[i].id); }
}
}  // namespace llama3
