// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
//! @file
//! Chooses tokens: one CTA per sequence. The rule is that of llama3/cuda/sample_twin.hpp.
#include "llama3/cuda/kernels.hpp"
#include "llama3/cuda/launch.cuh"

#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>

#include <cfloat>  // FLT_MAX
#include <cmath>   // INFINITY
#include <string>

namespace llama3 {
namespace {
constexpr int sample_threads = 1024;
constexpr int num_in_shared  = 8192;  // logits

//! Some tokens: their weights together, and how many they are.
struct share {
  std::uint64_t weight{0};
  std::uint32_t count{0};

  __device__ friend share operator+(share const& a, share const& b)
  {
    return {a.weight + b.weight, a.count + b.count};
  }
};

using block_max = cub::BlockReduce<std::uint64_t, sample_threads>;
using block_sum = cub::BlockReduce<share, sample_threads>;
using prefix    = cub::BlockScan<std::uint64_t, sample_threads, cub::BLOCK_SCAN_WARP_SCANS>;

struct sample_storage {
  union {
    block_max::TempStorage max;
    block_sum::TempStorage sum;
    prefix::TempStorage scan;
  };
  std::uint64_t largest;
  share total;
  int found;
  int num_logits;
  float logits[num_in_shared];
};

//! The logits of a sequence that may be chosen. `Aligned`: each group of four at 16 bytes.
template <bool Aligned>
struct logits_row {
  static constexpr int group = 4;

  float const* data;
  int count;

  //! Logits first .. first + 3; -inf past the end.
  __device__ pack<float, group> load(int first) const
  {
    if (Aligned && first + group <= count) { return load_pack<group>(data + first); }
    pack<float, group> x;
#pragma unroll
    for (int i = 0; i < group; ++i) { x.at[i] = first + i < count ? data[first + i] : -INFINITY; }
    return x;
  }

  //! Calls visit(logit, id) for the thread's share of the row, ids ascending.
  template <class Visit>
  __device__ void for_each(Visit visit) const
  {
    constexpr int in_flight = 4;  // groups: enough loads under way to keep the memory busy
    constexpr int stride    = sample_threads * group;
    for (int first = static_cast<int>(threadIdx.x) * group; first < count;
         first += in_flight * stride) {
      pack<float, group> x[in_flight];
#pragma unroll
      for (int g = 0; g < in_flight; ++g) { x[g] = load(first + g * stride); }
#pragma unroll
      for (int g = 0; g < in_flight; ++g) {
#pragma unroll
        for (int i = 0; i < group; ++i) { visit(x[g].at[i], first + g * stride + i); }
      }
    }
  }
};

//! A few logits in shared memory, in any order.
struct logits_list {
  float const* data;
  int count;

  template <class Visit>
  __device__ void for_each(Visit visit) const
  {
    for (int i = static_cast<int>(threadIdx.x); i < count; i += sample_threads) { visit(data[i]); }
  }
};

//! Logits from `low` on and below `high`; NaN is in none.
struct logit_range {
  float low, high;

  [[nodiscard]] __device__ bool contains(float logit) const { return logit >= low && logit < high; }
};

__device__ logit_range range_of(std::uint32_t low_key, std::uint32_t high_key)
{
  return {logit_of_key(low_key), logit_of_key(high_key)};
}

//! Tokens in the order of their logits, cut in three: keys from `high` on are kept, those below
//! `low` are not, and those between are undecided.
struct nucleus {
  std::uint32_t low, high;
  share from_low, from_high;  // of all tokens with such keys

  [[nodiscard]] __device__ logit_range undecided() const { return range_of(low, high); }
  [[nodiscard]] __device__ std::uint32_t num_undecided() const
  {
    return from_low.count - from_high.count;
  }
  [[nodiscard]] __device__ bool is_decided() const
  {
    return high - low <= 1 || num_undecided() <= 1;
  }
};

template <bool Aligned>
struct sample_block {
  static constexpr int scan_groups = 4;  // consecutive, of a thread

  logits_row<Aligned> row;
  sample_storage& smem;
  float largest = 0.0f, scale = 0.0f;

  [[nodiscard]] __device__ std::uint64_t weight(float logit) const
  {
    return token_weight(logit, largest, scale);
  }

  //! Key and id of the greedy choice, the id inverted: the lowest wins. Key 0: there is none.
  //! @threads the CTA; result valid in all
  __device__ std::uint64_t find_largest() const
  {
    float best            = -INFINITY;
    std::uint32_t best_id = 0;
    row.for_each([&](float logit, int id) {
      if (logit > best) {
        best    = logit;
        best_id = static_cast<std::uint32_t>(id);
      }
    });
    std::uint64_t const mine = std::uint64_t{logit_key(best)} << 32 | (0xFFFF'FFFFu - best_id);
    std::uint64_t const most = block_max{smem.max}.Reduce(
      mine, [](std::uint64_t a, std::uint64_t b) { return a > b ? a : b; });
    if (threadIdx.x == 0) { smem.largest = most; }
    __syncthreads();
    return smem.largest;
  }

  //! What the threads hold together.  @threads the CTA; result valid in all
  __device__ share sum(share mine) const
  {
    share const all = block_sum{smem.sum}.Sum(mine);
    if (threadIdx.x == 0) { smem.total = all; }
    __syncthreads();
    share const total = smem.total;
    __syncthreads();
    return total;
  }

  //! The tokens of `source` in a range.
  template <class Source>
  __device__ share within(Source const& source, logit_range range) const
  {
    share mine;
    source.for_each([&](float logit, auto...) {
      if (range.contains(logit)) {
        mine.weight += weight(logit);
        ++mine.count;
      }
    });
    return sum(mine);
  }

  //! Halves the undecided keys until they are one, or at most `enough` tokens have one. Halfway is
  //! between the logits at first, which gets near soon, and then between the keys, which ends.
  template <class Source>
  __device__ void narrow(Source const& source, std::uint64_t wanted, std::uint32_t enough,
                         nucleus& n) const
  {
    constexpr int steps_of_logits = 24;
    for (int step = 0; !n.is_decided() && n.num_undecided() > enough; ++step) {
      std::uint32_t middle = n.low + (n.high - n.low) / 2;
      if (step < steps_of_logits) {
        middle = logit_key(0.5f * logit_of_key(n.low) + 0.5f * logit_of_key(n.high));
        middle = min(max(middle, n.low + 1), n.high - 1);
      }
      share const from_middle = n.from_high + within(source, range_of(middle, n.high));
      if (from_middle.weight >= wanted) {
        n.low      = middle;
        n.from_low = from_middle;
      } else {
        n.high      = middle;
        n.from_high = from_middle;
      }
    }
  }

  //! Copies the undecided tokens, at most num_in_shared, to shared memory.
  __device__ logits_list list_undecided(nucleus const& n) const
  {
    if (threadIdx.x == 0) { smem.num_logits = 0; }
    __syncthreads();
    logit_range const range = n.undecided();
    row.for_each([&](float logit, int) {
      if (range.contains(logit)) { smem.logits[atomicAdd(&smem.num_logits, 1)] = logit; }
    });
    __syncthreads();
    return {smem.logits, smem.num_logits};
  }

  //! The first id up to which the weights, weigh(logit, id), add up to more than `passed`.
  //! @pre   all of them do
  //! @threads the CTA; result valid in all
  template <class Weigh>
  __device__ int find_in_order(std::uint64_t passed, Weigh weigh) const
  {
    constexpr int group = logits_row<Aligned>::group, thread_ids = scan_groups * group;
    std::uint64_t before = 0;  // of the ids in front of the tile
    for (int tile = 0; tile < row.count; tile += sample_threads * thread_ids) {
      int const first = tile + static_cast<int>(threadIdx.x) * thread_ids;
      std::uint64_t weights[thread_ids];
      std::uint64_t mine = 0;
#pragma unroll
      for (int g = 0; g < scan_groups; ++g) {
        auto const x = row.load(first + g * group);
#pragma unroll
        for (int i = 0; i < group; ++i) {
          weights[g * group + i] = weigh(x.at[i], first + g * group + i);
          mine += weights[g * group + i];
        }
      }
      std::uint64_t in_front, all;
      prefix{smem.scan}.ExclusiveSum(mine, in_front, all);
      in_front += before;
      before += all;
      if (in_front <= passed && passed < in_front + mine) {
        int id = first;
#pragma unroll
        for (int i = 0; i < thread_ids; ++i) {
          in_front += weights[i];
          id += in_front <= passed ? 1 : 0;
        }
        smem.found = id;
      }
      __syncthreads();
      if (passed < before) { break; }
    }
    int const found = smem.found;
    __syncthreads();
    return found;
  }

  __device__ int choose(sampling const& options, std::int32_t position)
  {
    std::uint64_t const best = find_largest();
    auto const best_key      = static_cast<std::uint32_t>(best >> 32);
    if (best_key == 0) { return nothing_to_choose; }
    int const greedy = static_cast<int>(0xFFFF'FFFFu - static_cast<std::uint32_t>(best));
    largest          = logit_of_key(best_key);
    if (!(options.temperature > 0.0f) || isinf(largest)) { return greedy; }

    scale                    = weight_scale(options.temperature);
    std::uint64_t const word = random_word(options.seed, position);
    // What lies further below than this has no weight.
    float const lowest = fmaxf(largest + (lightest_exponent - 4.0f) / scale, -FLT_MAX);
    nucleus n{logit_key(lowest), best_key + 1, {}, {}};
    n.from_low                 = within(row, n.undecided());
    std::uint64_t const wanted = wanted_weight(n.from_low.weight, options.top_p);
    if (wanted == n.from_low.weight) {
      return find_in_order(scaled_word(word, wanted),
                           [&](float logit, int) { return weight(logit); });
    }
    narrow(row, wanted, num_in_shared, n);
    if (!n.is_decided()) { narrow(list_undecided(n), wanted, 1, n); }

    // What is left between has one weight: as many as are wanted are kept, the lowest ids first.
    std::uint64_t const each = (n.from_low.weight - n.from_high.weight) / n.num_undecided();
    std::uint64_t const kept = (wanted - n.from_high.weight + each - 1) / each;
    logit_range const edge   = n.undecided();
    int last                 = row.count;
    if (kept < n.num_undecided()) {
      last = find_in_order(kept - 1,
                           [&](float logit, int) { return std::uint64_t{edge.contains(logit)}; });
    }
    return find_in_order(
      scaled_word(word, n.from_high.weight + kept * each), [&](float logit, int id) {
        bool const is_kept = logit >= edge.high || (logit >= edge.low && id <= last);
        return is_kept ? weight(logit) : std::uint64_t{0};
      });
  }
};

template <bool Aligned>
__global__ void __launch_bounds__(sample_threads)
  sample_kernel(float const* logits, int vocab, int count, sampling const* options,
                std::int32_t const* positions, token_id* ids)
{
  __shared__ sample_storage smem;
  wait_for_previous();
  std::int64_t const i = blockIdx.x;
  sample_block<Aligned> block{{logits + i * vocab, count}, smem};
  int const id = block.choose(options[i], positions[i]);
  if (threadIdx.x == 0) { ids[i] = id; }
}
}  // namespace

void sample(float const* logits, int n, int vocab, int num_ids, sampling const* options,
            std::int32_t const* positions, token_id* ids, cudaStream_t stream)
{
  if (vocab > max_sampled_ids) {
    throw std::invalid_argument("sample: at most " + std::to_string(max_sampled_ids) +
                                " logits can be chosen from, not " + std::to_string(vocab));
  }
  bool const wide = fits_packs<4>(vocab, logits);
  int const count = vocab < num_ids ? vocab : num_ids;
  launch(wide ? sample_kernel<true> : sample_kernel<false>, n, sample_threads, stream, logits,
         vocab, count, options, positions, ids);
}
}  // namespace llama3
