// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! Prompt attention at its edges: windows, soft-caps, what is no number, refusals, graphs.
#include "prefill/prefill_case.cuh"

namespace {

using namespace diffkv;
using test::check;
using test::prefill_case;

void put(__half& x, float value) { from_f32(value, x); }

float const not_a_number = std::nanf("");

//! Arguments that are right, to be made wrong one by one. Nothing of it is read.
struct call {
  prefill_shape shape{2, 2};
  prefill_batch batch{1, pointer<std::int64_t>(), nullptr, nullptr, nullptr, 4, 0};
  importance_queries counted{};
  vectors<__half const> query{pointer<__half>(), 256, 64};
  vectors<__half const> key{pointer<__half>(), 128, 64};
  vectors<__half const> value{pointer<__half>(), 128, 64};
  vectors<__half> out{pointer<__half>(), 256, 64};
  float* lse         = pointer<float>();
  float* sums        = pointer<float>();
  float* importances = pointer<float>();

  template <class T>
  static T* pointer()
  {
    return reinterpret_cast<T*>(std::uintptr_t{256});
  }
  void attend() const
  {
    prefill_attention<64>(shape, batch, {}, query, key, value, out, lse, nullptr);
  }
  void add() const
  {
    add_importance<64>(shape, batch, {}, counted, query, key, lse, sums, nullptr);
  }
  void finish() const { finish_importance(shape, batch, counted, sums, importances, nullptr); }
};

//! What `run` says when it refuses.
template <class Run>
std::string refusal(Run const& run)
{
  try {
    run();
  } catch (invalid_argument const& error) {
    return error.what();
  }
  return "nothing was refused";
}

}  // namespace

TEST_CASE("prefill_attention: sliding windows and soft-caps are those of the host twin",
          "[prefill]")
{
  prefill_case<64, __half> c{{1, 2}, {200, 66}};
  for (int const window : {0, 1, 2, 3, 63, 64, 65, 67, 130, 1000}) {
    for (float const cap : {0.0f, 0.5f, 30.0f}) {
      if (window % 2 == 0 && cap == 0.5f) { continue; }
      CAPTURE(window, cap);
      c.options.sliding_window = window;
      c.options.soft_cap       = cap;
      c.check();
      c.check(71);
    }
  }
  c.options       = {};
  c.options.scale = 0.0f;  // the mean of the values
  c.check();
  c.options.scale = -0.3f;
  c.check();
}

TEST_CASE("prefill_attention: sampled importance inside a window", "[prefill]")
{
  prefill_case<64, __half> c{{1, 2}, {150}};
  c.options.sliding_window = 40;
  for (importance_queries const counted : {importance_queries{0, 7}, importance_queries{64, 1}}) {
    CAPTURE(counted.last, counted.every);
    c.counted = counted;
    c.check();
    c.check(50);
  }
}

TEST_CASE("prefill_attention: what is no number shows where the host twin shows it",
          "[prefill][small]")
{
  for (int const what : {0, 1, 2, 3, 4, 5, 6}) {
    CAPTURE(what);
    prefill_case<64, __half> c{{2, 2}, {70, 20}};
    switch (what) {
      case 0:
        put(c.key(0, 33, 1, 3), not_a_number);
        break;
      case 1:
        put(c.query(0, 40, 2, 5), not_a_number);
        break;
      case 2:
        put(c.value(0, 50, 1, 63), not_a_number);
        break;
      case 3:
        put(c.value(0, 65, 0, 0), INFINITY);
        break;
      case 4:
        put(c.value(1, 19, 0, 8), -INFINITY);
        break;
      case 5:
        put(c.query(0, 69, 0, 0), INFINITY);
        break;
      default:
        c.options.sliding_window = 10;
        put(c.value(0, 12, 1, 7), not_a_number);
        break;
    }
    c.check();
  }
}

TEST_CASE("prefill_attention: the importance of the others stays when a query is no number",
          "[prefill]")
{
  prefill_case<64, __half> c{{1, 2}, {130}};
  for (int d = 0; d < 64; ++d) { put(c.query(0, 129, 0, d), not_a_number); }
  c.check();
  for (float const x : c.run()[0].importances) { CHECK(std::isfinite(x)); }
}

TEST_CASE("prefill_attention: a batch of nobody launches nothing", "[prefill]")
{
  call nobody;
  nobody.batch.capacity = 0;
  CHECK_NOTHROW(nobody.attend());
  CHECK_NOTHROW(nobody.add());
  CHECK_NOTHROW(nobody.finish());
  prefill_case<64, __half>{{1, 1}, {0, 0}}.check();
}

TEST_CASE("prefill_attention: what cannot be is refused by name", "[prefill]")
{
  auto const refused = [](auto const& change, auto const& run) {
    call c;
    change(c);
    return refusal([&] { run(c); });
  };
  auto const attend = [](call const& c) { c.attend(); };
  auto const add    = [](call const& c) { c.add(); };
  auto const finish = [](call const& c) { c.finish(); };
  using test::contains;
  CHECK_THAT(refused([](call& c) { c.shape.num_heads = 0; }, attend), contains("shape:"));
  CHECK_THAT(refused([](call& c) { c.shape.group_size = 0; }, add), contains("shape:"));
  CHECK_THAT(refused([](call& c) { c.batch.first_queries = nullptr; }, attend),
             contains("first_queries"));
  CHECK_THAT(refused([](call& c) { c.batch.positions = call::pointer<std::int32_t>(); }, attend),
             contains("first_keys"));
  CHECK_THAT(refused([](call& c) { c.batch.num_keys = 3; }, attend), contains("num_keys"));
  CHECK_THAT(refused([](call& c) { c.batch.first_keys = call::pointer<std::int64_t>(); }, add),
             contains("num_keys"));
  CHECK_THAT(refused([](call& c) { c.batch.num_queries = -1; }, finish), contains("num_queries"));
  CHECK_THAT(refused([](call& c) { ++c.query.data; }, attend), contains("query:"));
  CHECK_THAT(refused([](call& c) { c.key.token_stride = 100; }, add), contains("key:"));
  CHECK_THAT(refused([](call& c) { c.value.head_stride = 4; }, attend), contains("value:"));
  CHECK_THAT(refused([](call& c) { c.out.data = nullptr; }, attend), contains("out:"));
  CHECK_THAT(refused([](call& c) { c.lse = nullptr; }, add), contains("lse:"));
  CHECK_THAT(refused([](call& c) { c.sums = nullptr; }, add), contains("sums:"));
  CHECK_THAT(refused([](call& c) { c.sums = nullptr; }, finish), contains("sums:"));
  CHECK_THAT(refused([](call& c) { c.importances = nullptr; }, finish), contains("importances:"));
  CHECK_THAT(refused([](call& c) { c.counted.every = 0; }, add), contains("every"));
  CHECK_THAT(refused([](call& c) { c.counted.last = -1; }, finish), contains("last"));
}

TEST_CASE("prefill_attention: a captured graph serves other lengths", "[prefill]")
{
  constexpr std::uint32_t heads = 2;
  constexpr int dim = 64, tokens = 300;
  test::random numbers{5};
  std::vector<__half> x(std::size_t{tokens} * heads * dim * 3);
  for (__half& each : x) { put(each, numbers.uniform(-2.0f, 2.0f)); }
  test::device_stream const stream;
  test::device_array<__half> const in{x};
  test::device_array<__half> const out{std::size_t{tokens} * heads * dim};
  test::device_array<float> const lse{std::size_t{tokens} * heads};
  test::device_array<float> const sums{std::size_t{tokens} * heads};
  test::device_array<float> const importances{std::size_t{tokens} * heads};
  test::device_array<std::int64_t> const first_queries{std::vector<std::int64_t>{0, 0, 0}};
  prefill_batch batch{};
  batch.capacity      = 2;
  batch.first_queries = first_queries.data();
  batch.num_queries   = tokens;
  attention_options options{};
  options.scale   = 0.125f;
  auto const side = [&](int i) {
    return vectors<__half const>{in.data() + i * int{heads} * dim, 3 * int{heads} * dim, dim};
  };
  auto const all = [&] {
    prefill_attention<dim>({heads, 1}, batch, options, side(0), side(1), side(2),
                           packed(out.data(), heads, dim), lse.data(), stream.get());
    add_importance<dim>({heads, 1}, batch, options, {}, side(0), side(1), lse.data(), sums.data(),
                        stream.get());
    finish_importance({heads, 1}, batch, {}, sums.data(), importances.data(), stream.get());
  };
  cudaGraph_t graph        = nullptr;
  cudaGraphExec_t prepared = nullptr;
  check(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), "capture");
  all();
  check(cudaStreamEndCapture(stream.get(), &graph), "capture");
  check(cudaGraphInstantiate(&prepared, graph, 0), "instantiate");
  for (std::vector<std::int64_t> const& cuts :
       {std::vector<std::int64_t>{0, 100, 300}, std::vector<std::int64_t>{0, 0, 1},
        std::vector<std::int64_t>{0, 300, 300}}) {
    check(cudaMemcpy(first_queries.data(), cuts.data(), 3 * sizeof(std::int64_t),
                     cudaMemcpyHostToDevice),
          "copy");
    check(cudaGraphLaunch(prepared, stream.get()), "replay");
    stream.wait();
    auto const replayed_out = out.to_host();
    auto const replayed     = importances.to_host();
    check(cudaMemset(out.data(), 0, out.size() * sizeof(__half)), "memset");
    check(cudaMemset(importances.data(), 0, importances.size() * sizeof(float)), "memset");
    check(cudaDeviceSynchronize(), "memset");
    all();
    stream.wait();
    auto const plain_out = out.to_host();
    auto const plain     = importances.to_host();
    bool same            = true;
    for (std::size_t i = 0; i < static_cast<std::size_t>(cuts[2]) * heads * dim; ++i) {
      same = same && to_f32(plain_out[i]) == to_f32(replayed_out[i]);
    }
    for (std::size_t i = 0; i < static_cast<std::size_t>(cuts[2]); ++i) {
      same = same && plain[i] == replayed[i];
    }
    CAPTURE(cuts[1], cuts[2]);
    CHECK(same);
  }
  cudaGraphExecDestroy(prepared);
  cudaGraphDestroy(graph);
}
