// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Decode attention on the device as a test calls it: buffers full of NaN, any strides, any grid.
#include <diffkv/attention/decode.cuh>

#include <cstring>  // memcmp
#include <memory>
#include <vector>

#include "support/device.hpp"

namespace diffkv::test {

//! How attention is called.
struct decode_call {
  attention_options options{};
  std::uint32_t capacity = 1;  //!< sequences
  layer_range layers{};
  decode_grid grid{};  //!< ctas = 0: the default one
  // Elements, in front of and between the vectors of queries and outputs.
  std::ptrdiff_t offset    = 0;
  std::ptrdiff_t head_pad  = 0;
  std::ptrdiff_t token_pad = 0;
  bool wants_lse           = true;
  bool is_counted          = true;  //!< the number of sequences is read from device memory
};

//! What is found afterwards.
template <class Out>
struct decode_answer {
  std::vector<Out> out;       //!< [count, num_q_heads, head_dim]
  std::vector<float> lse;     //!< [count, num_q_heads]
  bool wrote_astray = false;  //!< between the outputs, or behind the last sequence

  //! Bit for bit.
  [[nodiscard]] bool same(decode_answer const& other) const
  {
    return out.size() == other.out.size() && lse.size() == other.lse.size() &&
           std::memcmp(out.data(), other.out.data(), out.size() * sizeof(Out)) == 0 &&
           std::memcmp(lse.data(), other.lse.data(), lse.size() * sizeof(float)) == 0;
  }
};

//! Elements as T holds them.
template <class T>
[[nodiscard]] std::vector<float> rounded(std::vector<float> x)
{
  for (float& e : x) {
    T t;
    from_f32(e, t);
    e = to_f32(t);
  }
  return x;
}

//! @tparam T, Out  elements of queries and outputs
template <class Config, class Variant, class T, class Out>
class decode_device {
 public:
  using policy_type = typename Config::policy_type;

  //! @param cache  in device memory, must outlive this
  decode_device(cache_ref const& cache, decode_call const& call, policy_type const& policy = {})
    : cache_{cache}, call_{call}, policy_{policy}
  {
    decode_grid const usual = default_decode_grid<Config, Variant>();
    if (call_.grid.ctas == 0) { call_.grid = usual; }
    // As many warps of a CTA as its memory has room for.
    if (call_.grid.warps > usual.warps) { call_.grid.warps = usual.warps; }
    call_.grid.passes = usual.passes;
    std::size_t const bytes =
      decode_workspace_bytes<Config, Variant>(cache.shape, call.capacity, call.layers, call_.grid);
    memory_    = std::make_unique<device_array<std::byte>>(bytes);
    workspace_ = make_decode_workspace<Config, Variant>(memory_->data(), bytes, cache.shape,
                                                        call.capacity, call.layers, call_.grid);
  }

  void set_batch(std::vector<std::uint32_t> slots)
  {
    count_          = static_cast<std::uint32_t>(slots.size());
    batch_.slots    = slots_.data();
    batch_.capacity = call_.is_counted ? call_.capacity : count_;
    batch_.count    = call_.is_counted ? count_at_.data() : nullptr;
    slots.resize(call_.capacity, 0xFFFF'FFFFu);
    copy_to(slots_, slots);
    copy_to(count_at_, {count_});
  }
  //! @param query  [count, num_q_heads, head_dim], T holds each element
  void set_query(std::vector<float> const& query)
  {
    std::vector<T> all(queries_.size());
    std::memset(static_cast<void*>(all.data()), 0xFF, all.size() * sizeof(T));
    auto const dim = static_cast<std::size_t>(cache_.shape.head_dim);
    for (std::size_t i = 0; i < query.size(); ++i) {
      from_f32(query[i], strided(all.data()).at(token_of(i / dim), head_of(i / dim))[i % dim]);
    }
    copy_to(queries_, all);
  }
  void plan() const
  {
    plan_decode<Config>(cache_, batch_, call_.layers, workspace_, stream_.get());
  }
  void attend(std::uint32_t layer) const
  {
    decode_attention<Config, Variant>(cache_, layer, policy_, call_.options, workspace_,
                                      strided(static_cast<T const*>(queries_.data())),
                                      strided(out_.data()), call_.wants_lse ? lse_.data() : nullptr,
                                      stream_.get());
  }
  void wait() const { stream_.wait(); }
  //! Everything that attention may write becomes NaN.
  void spoil_outputs() const
  {
    check(cudaMemset(out_.data(), 0xFF, out_.size() * sizeof(Out)), "cudaMemset");
    check(cudaMemset(lse_.data(), 0xFF, lse_.size() * sizeof(float)), "cudaMemset");
    check(cudaDeviceSynchronize(), "cudaMemset");
  }
  //! Waits.
  [[nodiscard]] decode_answer<Out> answer() const
  {
    wait();
    auto out       = out_.to_host();
    auto lse       = lse_.to_host();
    auto const dim = static_cast<std::size_t>(cache_.shape.head_dim);
    decode_answer<Out> a;
    for (std::size_t i = 0; i < std::size_t{count_} * cache_.shape.num_q_heads(); ++i) {
      Out* const from = strided(out.data()).at(token_of(i), head_of(i));
      a.out.insert(a.out.end(), from, from + dim);
      a.lse.push_back(lse[i]);
      std::memset(static_cast<void*>(from), 0xFF, dim * sizeof(Out));
      lse[i] = spoilt();
    }
    std::vector<char> const clean(out.size() * sizeof(Out) + lse.size() * sizeof(float), '\xFF');
    a.wrote_astray = std::memcmp(out.data(), clean.data(), out.size() * sizeof(Out)) != 0 ||
                     std::memcmp(lse.data(), clean.data(), lse.size() * sizeof(float)) != 0;
    return a;
  }
  //! All of it once.
  [[nodiscard]] decode_answer<Out> run(std::vector<std::uint32_t> const& slots,
                                       std::vector<float> const& query, std::uint32_t layer = 0)
  {
    set_batch(slots);
    set_query(query);
    spoil_outputs();
    plan();
    attend(layer);
    return answer();
  }

  [[nodiscard]] decode_workspace_ref const& workspace() const { return workspace_; }
  [[nodiscard]] device_array<T> const& query_memory() const { return queries_; }
  [[nodiscard]] cudaStream_t stream() const { return stream_.get(); }
  [[nodiscard]] decode_grid grid() const { return call_.grid; }

 private:
  [[nodiscard]] std::ptrdiff_t head_stride() const
  {
    return cache_.shape.head_dim + call_.head_pad;
  }
  [[nodiscard]] std::ptrdiff_t token_stride() const
  {
    return head_stride() * cache_.shape.num_q_heads() + call_.token_pad;
  }
  [[nodiscard]] std::size_t elements() const
  {
    return static_cast<std::size_t>(call_.offset + token_stride() * call_.capacity + 8);
  }
  template <class E>
  [[nodiscard]] vectors<E> strided(E* data) const
  {
    return {data + call_.offset, token_stride(), head_stride()};
  }
  [[nodiscard]] std::ptrdiff_t token_of(std::size_t i) const
  {
    return static_cast<std::ptrdiff_t>(i / cache_.shape.num_q_heads());
  }
  [[nodiscard]] std::ptrdiff_t head_of(std::size_t i) const
  {
    return static_cast<std::ptrdiff_t>(i % cache_.shape.num_q_heads());
  }
  [[nodiscard]] static float spoilt()
  {
    float x;
    std::memset(&x, 0xFF, sizeof x);
    return x;
  }
  template <class E>
  static void copy_to(device_array<E> const& to, std::vector<E> const& from)
  {
    check(cudaMemcpy(to.data(), from.data(), from.size() * sizeof(E), cudaMemcpyHostToDevice),
          "cudaMemcpy");
    check(cudaDeviceSynchronize(), "cudaMemcpy");  // the stream does not wait for it
  }

  cache_ref cache_;
  decode_call call_;
  policy_type policy_;
  std::unique_ptr<device_array<std::byte>> memory_{};
  decode_workspace_ref workspace_{};
  device_array<std::uint32_t> slots_{call_.capacity};
  device_array<std::uint32_t> count_at_{1};
  batch_ref batch_{};
  std::uint32_t count_ = 0;
  device_array<T> queries_{elements()};
  device_array<Out> out_{elements()};
  device_array<float> lse_{std::size_t{call_.capacity} * cache_.shape.num_q_heads()};
  device_stream stream_{};
};

}  // namespace diffkv::test
