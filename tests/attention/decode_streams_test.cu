// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! Decode attention while its pages go to another sequence in another stream, ordered with events as
//! docs/memory_manager.md says; and on a device that is not the current one.
#include <diffkv/cache/device_kv_cache.cuh>

#include <cmath>  // fabs, log
#include <string>

#include "attention/edges_case.cuh"
#include "support/spin.cuh"

namespace {

using namespace diffkv;
using test::check;
using config = test::paper_config<k8v4, k4v2, 64>;
template <class Variant>
using attention_of = test::decode_device<config, Variant, __half, __half>;

constexpr std::uint32_t heads = 2, group = 4;
constexpr std::size_t dim = 64;

bool is_busy(cudaStream_t stream)
{
  bool const busy = cudaStreamQuery(stream) == cudaErrorNotReady;
  if (busy) { static_cast<void>(cudaGetLastError()); }  // an answer, not an error to be found later
  return busy;
}

//! A cache of one layer and two slots on the current device, and random tokens for it.
class prompted_cache {
 public:
  //! @param lengths  of the prompts; that of slot 1 starts 500 tokens later and is shorter
  prompted_cache(std::vector<std::int32_t> const& lengths, std::int32_t max_tokens,
                 std::int32_t score_every, std::uint32_t num_pages, cudaStream_t stream)
    : lengths_{lengths},
      keys_{random_.floats(max_tokens * heads * dim, -1.0f, 1.0f)},
      values_{random_.floats(max_tokens * heads * dim, -1.0f, 1.0f)},
      importances_{random_.floats(static_cast<std::size_t>(max_tokens) * heads, 0.0f,
                                  2.0f / static_cast<float>(max_tokens))},
      cache_{options(max_tokens, score_every, num_pages),
             {1, 1, max_tokens},
             {},
             cuda_async_resource{stream},
             stream}
  {}

  [[nodiscard]] cache_ref ref() { return cache_.ref(); }
  void store(std::uint32_t slot, cudaStream_t stream)
  {
    std::uint32_t const first = 500 * slot;
    prompt_source<float> source;
    source.key                    = tokens(keys_, first);
    source.value                  = tokens(values_, first);
    source.importances            = importances_.data() + first;
    source.importance_head_stride = cache_.shape().max_tokens;
    source.max_tokens             = cache_.shape().max_tokens;
    batch_ref const one{slots_.data() + slot, nullptr, 1};
    cache_.admit(one, lengths_.data() + slot, {}, stream);
    cache_.store_prompt(one, source, {0, 1}, stream);
  }
  void release(std::uint32_t slot, cudaStream_t stream)
  {
    cache_.release({slots_.data() + slot, nullptr, 1}, nullptr, stream);
  }
  //! Makes room for one token more in both.
  void step(cudaStream_t stream) { cache_.step(both_, {}, stream); }
  //! @param first  which token slot 0 gets; slot 1 gets that behind it
  void append(std::uint32_t first, cudaStream_t stream)
  {
    cache_.append(both_, 0, tokens(keys_, first), tokens(values_, first), {}, stream);
  }
  //! Waits.
  [[nodiscard]] std::uint64_t free_pages(test::device_stream const& stream)
  {
    cache_.statistics({free_pages_.data(), nullptr}, stream.get());
    stream.wait();
    return free_pages_.to_host()[0];
  }

 private:
  static vectors<float const> tokens(test::device_array<float> const& all, std::uint32_t first)
  {
    return packed<float const>(all.data() + first * heads * dim, heads, dim);
  }
  static cache_options options(std::int32_t max_tokens, std::int32_t score_every,
                               std::uint32_t num_pages)
  {
    cache_options o;
    o.shape     = {2, 1, heads, group, dim, max_tokens, 16, score_every};
    o.limits    = {0.4f, 0.0f};  // about half of the tokens are high, none is pruned
    o.num_pages = num_pages;
    return o;
  }

  test::random random_{61};
  test::device_array<std::int32_t> lengths_;
  test::device_array<std::uint32_t> slots_{std::vector<std::uint32_t>{0, 1}};
  test::device_array<std::uint64_t> free_pages_{1};
  batch_ref both_{slots_.data(), nullptr, 2};
  test::device_array<float> keys_, values_, importances_;
  device_kv_cache<config> cache_;
};

std::vector<float> some_queries(std::size_t sequences)
{
  test::random random{62};
  return test::rounded<__half>(random.floats(sequences * heads * group * dim, -2.0f, 2.0f));
}

//! Steps of two sequences: all is made on `device`, the calls come while device 0 is current.
//! @return what attention gives in each step, and in the end all arrays of the cache, as bytes
template <class Variant>
std::vector<std::string> steps_on(int device)
{
  std::uint64_t const bytes_before = test::pool_bytes(0);
  test::on_device const made_here{device};
  test::device_stream const stream;
  prompted_cache c{{800, 350}, 900, Variant::score_every, 80, stream.get()};
  attention_of<Variant> attention{c.ref(), {{0.125f}, 2, {}, {40, 8}}};  // the grid decides on bits
  attention.set_batch({0, 1});
  attention.set_query(some_queries(2));
  for (std::uint32_t slot : {0u, 1u}) { c.store(slot, stream.get()); }
  stream.wait();
  std::vector<std::string> all;
  for (std::uint32_t i = 0; i < 12; ++i) {
    attention.spoil_outputs();
    test::on_device const other{0};
    c.step(attention.stream());
    attention.plan();
    c.append(2 * i, attention.stream());
    attention.attend(0);
    CHECK(test::current_device() == 0);
    auto const answer = attention.answer();
    all.emplace_back(reinterpret_cast<char const*>(answer.out.data()),
                     answer.out.size() * sizeof(__half));
    CHECK((i == 0 || all[i] != all[i - 1]));  // there is a token more
    CHECK_FALSE(answer.wrote_astray);
  }
  CHECK((test::pool_bytes(0) == bytes_before) == (device != 0));
  // Here again, as memory of a device's pool is not for other devices.
  for (auto const& field : test::detail::fields_of(c.ref())) {
    if (field.bytes == 0) { continue; }
    all.emplace_back(field.bytes, ' ');
    check(cudaMemcpy(all.back().data(), field.data, field.bytes, cudaMemcpyDeviceToHost), "copy");
  }
  return all;
}

}  // namespace

TEST_CASE("decode_attention: pages given to another sequence behind an event are read as they were",
          "[attention][stream]")
{
  constexpr std::int32_t x_tokens = 65'536, y_tokens = 60'000;
  // What X is admitted with: Y has no room beside it.
  std::uint32_t const num_pages = heads * config::layouts::pages.most_pages(x_tokens);
  test::device_stream const writers;
  cudaStream_t const writes = writers.get();
  prompted_cache c{{x_tokens, y_tokens}, x_tokens, 0, num_pages, writes};
  attention_of<decode_variant<group>> x{c.ref(), {{0.125f}}}, y{c.ref(), {{0.125f}}};
  auto const run_alone = [&](auto& attention, std::uint32_t slot) {
    c.store(slot, writes);
    writers.wait();
    auto const answer = attention.run({slot}, some_queries(1));
    c.release(slot, writes);
    writers.wait();
    return answer;
  };
  auto const y_alone = run_alone(y, 1);  // X was never there
  auto const x_alone = run_alone(x, 0);
  // Of all tokens: the spread of such logits adds about 0.2 to the logarithm.
  CHECK(std::fabs(x_alone.lse[0] - std::log(65'536.0f) - 0.2f) < 0.2f);
  CHECK(std::fabs(y_alone.lse[0] - std::log(60'000.0f) - 0.2f) < 0.2f);
  CHECK_FALSE(x_alone.same(y_alone));

  // Without an event Y is in X's pages before X's stream comes to what is next in it. That is not
  // attention here: it might read anything.
  c.store(0, writes);
  std::uint64_t const free_beside_x = c.free_pages(writers);
  test::spin(200'000'000, x.stream());
  c.release(0, writes);
  c.store(1, writes);
  std::uint64_t const pages_of_y = num_pages - c.free_pages(writers);
  CHECK(is_busy(x.stream()));
  CHECK(pages_of_y > 2 * free_beside_x);  // most of them were X's
  c.release(1, writes);
  x.wait();

  int overlapped = 0, different_x = 0, different_y = 0;
  for (int run = 0; run < 30; ++run) {
    x.spoil_outputs();
    y.spoil_outputs();
    c.store(0, writes);
    test::order(writes, x.stream());
    if (run % 2 == 0) { x.plan(); }  // pages are what they were then
    test::spin(20'000'000, x.stream());
    if (run % 2 == 1) { x.plan(); }
    x.attend(0);
    test::order(x.stream(), writes);
    c.release(0, writes);
    c.store(1, writes);
    test::order(writes, y.stream());
    y.plan();
    y.attend(0);
    test::order(y.stream(), writes);
    c.release(1, writes);
    overlapped += is_busy(x.stream()) ? 1 : 0;  // no call has waited
    different_x += x.answer().same(x_alone) ? 0 : 1;
    different_y += y.answer().same(y_alone) ? 0 : 1;
  }
  CHECK(overlapped > 15);
  CHECK(different_x == 0);
  CHECK(different_y == 0);
  CHECK(c.free_pages(writers) == num_pages);
}

TEST_CASE("decode_attention: on a device that is not the current one its results are the same",
          "[attention][devices]")
{
  if (!test::has_two_devices()) { DIFFKV_SKIP(test::needs_two_devices); }
  CHECK((steps_on<decode_variant<group>>(1) == steps_on<decode_variant<group>>(0)));
  CHECK((steps_on<decode_variant<group, 4>>(1) == steps_on<decode_variant<group, 4>>(0)));
}
