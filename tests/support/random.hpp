// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Random numbers that are the same with every standard library: distributions are our own.
#include <cstddef>
#include <cstdint>
#include <utility>  // swap
#include <vector>

namespace diffkv::test {

//! SplitMix64. Print the seed with CAPTURE.
class random {
 public:
  explicit random(std::uint64_t seed) : state_{seed} {}

  [[nodiscard]] std::uint64_t next() noexcept
  {
    std::uint64_t z = state_ += 0x9E37'79B9'7F4A'7C15u;
    z               = (z ^ (z >> 30)) * 0xBF58'476D'1CE4'E5B9u;
    z               = (z ^ (z >> 27)) * 0x94D0'49BB'1331'11EBu;
    return z ^ (z >> 31);
  }
  //! An integer of first .. last, both included.
  [[nodiscard]] int between(int first, int last) noexcept
  {
    auto const range = static_cast<std::uint64_t>(last - first) + 1;
    return first + static_cast<int>(next() % range);
  }
  [[nodiscard]] std::uint32_t below(std::uint32_t bound) noexcept
  {
    return static_cast<std::uint32_t>(next() % bound);
  }
  //! True once in `n` times.
  [[nodiscard]] bool one_in(int n) noexcept { return between(1, n) == 1; }
  //! Evenly from low to high.
  [[nodiscard]] float uniform(float low, float high) noexcept
  {
    return low + (high - low) * static_cast<float>(next() >> 40) * 0x1.0p-24f;
  }
  template <class T>
  [[nodiscard]] T pick(std::vector<T> const& from) noexcept
  {
    return from[below(static_cast<std::uint32_t>(from.size()))];
  }
  [[nodiscard]] std::vector<float> floats(std::size_t count, float low, float high)
  {
    std::vector<float> all(count);
    for (float& x : all) { x = uniform(low, high); }
    return all;
  }

 private:
  std::uint64_t state_;
};

//! Any order of `count` elements.
template <class T>
void shuffle(T* data, std::uint32_t count, random& r) noexcept
{
  for (std::uint32_t i = count; i > 1; --i) { std::swap(data[i - 1], data[r.below(i)]); }
}

}  // namespace diffkv::test
