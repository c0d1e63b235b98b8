// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file Prompts whose attention and importance the device and the host twin compute, in chunks or
//! at once.
#include <diffkv/host/prefill_attention.hpp>
#include <diffkv/prefill/prefill.cuh>

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "support/catch.hpp"
#include "support/device.hpp"
#include "support/random.hpp"

namespace diffkv::test {

//! What prompt attention says about one sequence.
struct prompt_answer {
  std::vector<float> out;          //!< [tokens, q_heads, head_dim]
  std::vector<float> lse;          //!< [q_heads, tokens]
  std::vector<float> importances;  //!< [heads, tokens]
};

//! Whether out and lse have the same bits; answers without NaN.
[[nodiscard]] inline bool are_same_attention(std::vector<prompt_answer> const& a,
                                             std::vector<prompt_answer> const& b)
{
  bool same = a.size() == b.size();
  for (std::size_t s = 0; same && s < a.size(); ++s) {
    same = a[s].out == b[s].out && a[s].lse == b[s].lse;
  }
  return same;
}
[[nodiscard]] inline bool are_same_importances(std::vector<prompt_answer> const& a,
                                               std::vector<prompt_answer> const& b)
{
  bool same = a.size() == b.size();
  for (std::size_t s = 0; same && s < a.size(); ++s) {
    same = a[s].importances == b[s].importances;
  }
  return same;
}

//! The largest errors, as shares of what is allowed.
struct prompt_errors {
  double out = 0.0, lse = 0.0, importances = 0.0;
};

//! Prompts in buffers with gaps: between the sequences' keys, behind each token's vectors, behind
//! the last query. What lies there is NaN.
//! @tparam T, Out  elements of query, key and value, and of out
template <int HeadDim, class T, class Out = T>
class prefill_case {
 public:
  static constexpr std::size_t dim = HeadDim;
  static constexpr std::size_t gap = 8;  // elements behind the vectors of a token
  static constexpr int key_gap     = 3;  // tokens behind the keys of a sequence

  prefill_case(prefill_shape const& shape, std::vector<int> lengths, float reach = 4.0f,
               std::uint64_t seed = 71)
    : shape_{shape}, lengths_{std::move(lengths)}
  {
    CAPTURE(seed);
    random numbers{seed};
    options.scale = 1.0f / std::sqrt(static_cast<float>(HeadDim));
    for (int const n : lengths_) {
      query_.push_back(vectors_of(numbers, n, shape.num_q_heads(), reach));
      key_.push_back(vectors_of(numbers, n, shape.num_heads, 1.0f));
      value_.push_back(vectors_of(numbers, n, shape.num_heads, 1.0f));
    }
  }

  attention_options options{};
  importance_queries counted{};
  detail::prefill_path path = detail::prefill_path::fastest;

  [[nodiscard]] std::vector<int> const& lengths() const noexcept { return lengths_; }
  [[nodiscard]] T& query(std::size_t s, int token, std::uint32_t head, int d)
  {
    return query_[s][at(token, head, shape_.num_q_heads(), d)];
  }
  [[nodiscard]] T& key(std::size_t s, int token, std::uint32_t head, int d)
  {
    return key_[s][at(token, head, shape_.num_heads, d)];
  }
  [[nodiscard]] T& value(std::size_t s, int token, std::uint32_t head, int d)
  {
    return value_[s][at(token, head, shape_.num_heads, d)];
  }

  //! The host twin's answers.
  [[nodiscard]] std::vector<prompt_answer> expected() const
  {
    std::vector<prompt_answer> answers(lengths_.size());
    for (std::size_t s = 0; s < lengths_.size(); ++s) {
      int const n                = lengths_[s];
      std::uint32_t const nq     = shape_.num_q_heads();
      std::int32_t const queries = counted.last > 0 ? std::min(counted.last, n) : n;
      auto const tokens          = static_cast<std::size_t>(n);
      answers[s] = {std::vector<float>(tokens * nq * dim), std::vector<float>(nq * tokens),
                    std::vector<float>(shape_.num_heads * tokens)};
      host::prompt_shape const shape = {n,       shape_.num_heads, shape_.group_size,
                                        HeadDim, queries,          counted.every};
      host::prefill_attention(
        shape, options, rows_of(query_[s].data(), nq), rows_of(key_[s].data(), shape_.num_heads),
        rows_of(value_[s].data(), shape_.num_heads), packed(answers[s].out.data(), nq, HeadDim),
        answers[s].lse.data(), answers[s].importances.data());
    }
    return answers;
  }

  //! The device's answers, each prompt in chunks of `chunk` tokens (0: at once). Sequence s starts
  //! with launch s % 2 if there are chunks, so that launches are of different positions.
  [[nodiscard]] std::vector<prompt_answer> run(int chunk = 0) const
  {
    std::size_t const count = lengths_.size();
    std::vector<std::int64_t> first_keys(count);
    std::int64_t num_keys = 0;
    for (std::size_t s = 0; s < count; ++s) {
      first_keys[s] = num_keys;
      num_keys += lengths_[s] + key_gap;
    }
    auto const keys  = static_cast<std::size_t>(num_keys);
    auto const nq    = shape_.num_q_heads();
    auto const nh    = shape_.num_heads;
    auto const ahead = [&](std::vector<std::vector<T>> const& from) {
      std::vector<T> all(keys * pitch(nh), nan());
      for (std::size_t s = 0; s < count; ++s) {
        std::copy(from[s].begin(), from[s].end(),
                  all.begin() + static_cast<std::ptrdiff_t>(
                                  static_cast<std::size_t>(first_keys[s]) * pitch(nh)));
      }
      return all;
    };
    device_stream const stream;
    device_array<T> const key{ahead(key_)};
    device_array<T> const value{ahead(value_)};
    device_array<float> const sums{nq * keys};
    device_array<float> const importances{nh * keys};
    device_array<std::int64_t> const device_first_keys{first_keys};
    device_array<std::int32_t> const prompt_tokens{lengths_};

    std::vector<prompt_answer> answers(count);
    std::vector<int> done(count, 0);
    for (std::size_t s = 0; s < count; ++s) {
      auto const n = static_cast<std::size_t>(lengths_[s]);
      answers[s]   = {
          std::vector<float>(n * nq * dim, 123.0f), std::vector<float>(nq * n, 123.0f), {}};
    }
    for (int launch = 0; done != lengths_ || launch == 0; ++launch) {
      std::vector<std::int64_t> first_queries(count + 1, 0);
      std::vector<int> sizes(count);
      for (std::size_t s = 0; s < count; ++s) {
        int const left = lengths_[s] - done[s];
        sizes[s] = chunk == 0 ? left : launch < static_cast<int>(s % 2) ? 0 : std::min(left, chunk);
        first_queries[s + 1] = first_queries[s] + sizes[s];
      }
      auto const queries = static_cast<std::size_t>(first_queries[count]);
      std::vector<T> chunk_queries((queries + 2) * pitch(nq), nan());
      for (std::size_t s = 0; s < count; ++s) {
        auto const from = query_[s].begin() + static_cast<std::ptrdiff_t>(
                                                static_cast<std::size_t>(done[s]) * pitch(nq));
        std::copy(
          from, from + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(sizes[s]) * pitch(nq)),
          chunk_queries.begin() +
            static_cast<std::ptrdiff_t>(static_cast<std::size_t>(first_queries[s]) * pitch(nq)));
      }
      device_array<T> const query{chunk_queries};
      device_array<Out> const out{(queries + 2) * pitch(nq)};
      device_array<float> const lse{nq * (queries + 2)};
      device_array<std::int64_t> const device_first_queries{first_queries};
      device_array<std::int32_t> const positions{done};
      prefill_batch batch{};
      batch.capacity      = static_cast<std::uint32_t>(count);
      batch.first_queries = device_first_queries.data();
      batch.positions     = chunk == 0 ? nullptr : positions.data();
      batch.first_keys    = device_first_keys.data();
      batch.prompt_tokens = chunk == 0 ? nullptr : prompt_tokens.data();
      batch.num_queries   = static_cast<std::int64_t>(queries) + 2;
      batch.num_keys      = num_keys;
      auto const q        = rows_of(query.data(), nq);
      auto const k        = rows_of(key.data(), nh);
      auto const v        = rows_of(value.data(), nh);
      detail::prefill_attention<HeadDim, T, Out>(
        path, shape_, batch, options, q, k, v,
        vectors<Out>{out.data(), static_cast<std::ptrdiff_t>(pitch(nq)), HeadDim}, lse.data(),
        stream.get());
      detail::add_importance<HeadDim, T>(path, shape_, batch, options, counted, q, k, lse.data(),
                                         sums.data(), stream.get());
      finish_importance(shape_, batch, counted, sums.data(), importances.data(), stream.get());
      stream.wait();
      collect(answers, done, sizes, first_queries, out.to_host(), lse.to_host());
    }
    collect(answers, first_keys, importances.to_host());
    return answers;
  }

  //! Compares; the bounds are those of docs/numerics.md.
  [[nodiscard]] prompt_errors errors(std::vector<prompt_answer> const& a,
                                     std::vector<prompt_answer> const& b) const
  {
    prompt_errors worst;
    for (std::size_t s = 0; s < lengths_.size(); ++s) {
      double const n = lengths_[s];
      for (std::size_t i = 0; i < b[s].out.size(); ++i) {
        double const weights = unit<T>() + n * (unit<T>() < 0.001 ? 0x1p-25 : 0.0) + 2e-5;
        raise(worst.out, a[s].out[i], b[s].out[i], weights + unit<Out>() * std::fabs(b[s].out[i]));
      }
      for (std::size_t i = 0; i < b[s].lse.size(); ++i) {
        raise(worst.lse, a[s].lse[i], b[s].lse[i], 2e-5 + 1e-6 * std::fabs(b[s].lse[i]));
      }
      for (std::size_t i = 0; i < b[s].importances.size(); ++i) {
        raise(worst.importances, a[s].importances[i], b[s].importances[i],
              1e-7 + 4e-5 * std::fabs(b[s].importances[i]));
      }
    }
    return worst;
  }
  //! The same with what each path answers.
  void check(int chunk = 0)
  {
    auto const right = expected();
    for (auto const each : {detail::prefill_path::any_gpu, detail::prefill_path::fastest}) {
      path = each;
      CAPTURE(static_cast<int>(path));
      auto const error = errors(run(chunk), right);
      CHECK(error.out <= 1.0);
      CHECK(error.lse <= 1.0);
      CHECK(error.importances <= 1.0);
    }
  }

 private:
  [[nodiscard]] static std::size_t pitch(std::uint32_t heads) { return heads * dim + gap; }
  [[nodiscard]] static std::size_t at(int token, std::uint32_t head, std::uint32_t heads, int d)
  {
    return static_cast<std::size_t>(token) * pitch(heads) + head * dim +
           static_cast<std::size_t>(d);
  }
  [[nodiscard]] static T nan()
  {
    T x;
    from_f32(std::numeric_limits<float>::quiet_NaN(), x);
    return x;
  }
  template <class U>
  [[nodiscard]] static vectors<T const> rows_of(U* data, std::uint32_t heads)
  {
    return {data, static_cast<std::ptrdiff_t>(pitch(heads)), HeadDim};
  }
  [[nodiscard]] static std::vector<T> vectors_of(random& numbers, int tokens, std::uint32_t heads,
                                                 float reach)
  {
    std::vector<T> all(static_cast<std::size_t>(tokens) * pitch(heads), nan());
    for (int token = 0; token < tokens; ++token) {
      for (std::uint32_t head = 0; head < heads; ++head) {
        for (int d = 0; d < HeadDim; ++d) {
          from_f32(numbers.uniform(-reach, reach), all[at(token, head, heads, d)]);
        }
      }
    }
    return all;
  }
  //! Half a unit in the last place, relative.
  template <class U>
  [[nodiscard]] static double unit()
  {
    return std::is_same_v<U, __half>          ? 0x1p-11
           : std::is_same_v<U, __nv_bfloat16> ? 0x1p-8
                                              : 0x1p-24;
  }
  static void raise(double& worst, float a, float b, double allowed)
  {
    double const error = (a == b || (std::isnan(a) && std::isnan(b)))
                           ? 0.0
                           : std::fabs(double{a} - double{b}) / allowed;
    worst = std::fmax(worst, std::isnan(error) ? std::numeric_limits<double>::infinity() : error);
  }

  //! Takes the answers of one launch apart; nothing else may have been written.
  void collect(std::vector<prompt_answer>& answers, std::vector<int>& done,
               std::vector<int> const& sizes, std::vector<std::int64_t> const& first_queries,
               std::vector<Out> const& out, std::vector<float> const& lse) const
  {
    auto const nq            = shape_.num_q_heads();
    std::size_t const tokens = lse.size() / nq;
    std::size_t written      = 0;
    for (std::size_t s = 0; s < sizes.size(); ++s) {
      for (int i = 0; i < sizes[s]; ++i) {
        std::size_t const row = static_cast<std::size_t>(first_queries[s] + i);
        std::size_t const to  = static_cast<std::size_t>(done[s] + i);
        for (std::uint32_t head = 0; head < nq; ++head) {
          answers[s].lse[head * static_cast<std::size_t>(lengths_[s]) + to] =
            lse[head * tokens + row];
          for (std::size_t d = 0; d < dim; ++d) {
            answers[s].out[(to * nq + head) * dim + d] =
              to_f32(out[row * pitch(nq) + head * dim + d]);
          }
        }
        ++written;
      }
      done[s] += sizes[s];
    }
    bool rest_is_untouched = true;
    for (std::size_t row = 0; row < tokens; ++row) {
      for (std::size_t d = row < written ? nq * dim : 0; d < pitch(nq); ++d) {
        rest_is_untouched = rest_is_untouched && is_untouched(out[row * pitch(nq) + d]);
      }
      for (std::uint32_t head = 0; head < nq && row >= written; ++head) {
        rest_is_untouched = rest_is_untouched && is_untouched(lse[head * tokens + row]);
      }
    }
    CHECK(rest_is_untouched);
  }
  void collect(std::vector<prompt_answer>& answers, std::vector<std::int64_t> const& first_keys,
               std::vector<float> const& importances) const
  {
    std::size_t const tokens = importances.size() / shape_.num_heads;
    bool rest_is_untouched   = true;
    for (std::uint32_t head = 0; head < shape_.num_heads; ++head) {
      for (std::size_t s = 0; s < first_keys.size(); ++s) {
        float const* const from = importances.data() + head * tokens + first_keys[s];
        answers[s].importances.insert(answers[s].importances.end(), from, from + lengths_[s]);
        for (int i = 0; i < key_gap; ++i) {
          rest_is_untouched = rest_is_untouched && is_untouched(from[lengths_[s] + i]);
        }
      }
    }
    CHECK(rest_is_untouched);
  }
  //! device_array starts with bytes 0xFF.
  template <class U>
  [[nodiscard]] static bool is_untouched(U const& x)
  {
    unsigned char bytes[sizeof(U)];
    std::memcpy(bytes, &x, sizeof x);
    for (unsigned char const byte : bytes) {
      if (byte != 0xFF) { return false; }
    }
    return true;
  }

  prefill_shape shape_;
  std::vector<int> lengths_;
  std::vector<std::vector<T>> query_, key_, value_;  //!< of each sequence, tokens `pitch` apart
};

}  // namespace diffkv::test
