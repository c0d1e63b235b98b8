// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! A launch that fails is reported by the call that made it, by its name, and by no other.
#include <diffkv/core/launch.cuh>
#include <diffkv/pool/init_ring.cuh>

#include <string>

#include "support/catch.hpp"
#include "support/device.hpp"

namespace {

using namespace diffkv;

__global__ void mark_kernel(std::uint32_t* out)
{
  if (threadIdx.x == 0) { out[blockIdx.x] = 7; }
}

//! What an operation of the library looks like from the outside.
void write_marks(detail::launch_shape const& shape, std::uint32_t* out, cudaStream_t stream)
{
  detail::launch(mark_kernel, shape, stream, out);
}

//! What a call throws; without a throw, empty.
struct failure {
  cudaError_t code = cudaSuccess;
  std::string text{};
};
template <class Call>
failure failure_of(Call&& call)
{
  try {
    call();
  } catch (cuda_error const& e) {
    return {e.code(), e.what()};
  }
  return {};
}

std::uint32_t const all_bits = 0xFFFF'FFFFu;

}  // namespace

TEST_CASE("launch: one that cannot be fails at its own call, which it names, and leaves no error",
          "[core][small]")
{
  test::device_stream stream;
  test::device_array<std::uint32_t> const marks{4};
  detail::launch_shape const impossible[] = {
    {1, 2048},            // threads
    {1, 0},               // no thread
    {1, 32, 1u << 20},    // more shared memory than a CTA can have
    {1, 32, 100u << 10},  // more than it has without being asked for
    {0xFFFF'FFFFu, 32},   // CTAs
    {1, 32, 1u << 20, true}};
  for (detail::launch_shape const& shape : impossible) {
    CAPTURE(shape.grid, shape.threads, shape.shared_bytes);
    failure const seen = failure_of([&] { write_marks(shape, marks.data(), stream.get()); });
    CHECK(seen.code != cudaSuccess);
    CHECK_THAT(seen.text, test::contains("write_marks"));
    CHECK_THAT(seen.text, test::contains(std::to_string(shape.threads) + " threads"));
    CHECK_THAT(seen.text, test::contains(std::to_string(shape.shared_bytes) + " bytes"));
    CHECK_THAT(seen.text, test::contains(cudaGetErrorName(seen.code)));
    CHECK(cudaGetLastError() == cudaSuccess);
    // Nothing ran, and what comes next does.
    CHECK(marks.to_host() == std::vector<std::uint32_t>(4, all_bits));
    test::device_array<std::uint32_t> const next{4};
    CHECK_NOTHROW(write_marks({4, 32}, next.data(), stream.get()));
    stream.wait();
    CHECK(next.to_host() == std::vector<std::uint32_t>(4, 7u));
  }
}

TEST_CASE("launch: no CTA launches nothing", "[core][small]")
{
  test::device_stream stream;
  test::device_array<std::uint32_t> const marks{1};
  CHECK_NOTHROW(write_marks({0, 4096}, marks.data(), stream.get()));
  stream.wait();
  CHECK(marks.to_host()[0] == all_bits);
}

TEST_CASE("launch: an older error of somebody else is neither reported nor taken away",
          "[core][small]")
{
  test::device_stream stream;
  test::device_array<std::uint32_t> const marks{1};
  static_cast<void>(cudaSetDevice(999));
  CHECK_NOTHROW(write_marks({1, 32}, marks.data(), stream.get()));
  CHECK(cudaGetLastError() == cudaErrorInvalidDevice);
  stream.wait();
  CHECK(marks.to_host()[0] == 7);
}

TEST_CASE("launch: an operation in a capture that has ended badly throws, and works after it",
          "[core]")
{
  test::device_stream stream;
  auto ring = make_free_ring(5, true, cuda_async_resource{stream.get()}, stream.get());
  stream.wait();
  std::uint64_t const other = 77;
  auto const tail           = [&] {
    std::uint64_t value = 0;
    test::check(cudaMemcpy(&value, ring.ref().tail, sizeof value, cudaMemcpyDeviceToHost), "tail");
    return value;
  };
  test::check(cudaMemcpy(ring.ref().tail, &other, sizeof other, cudaMemcpyHostToDevice), "tail");

  test::check(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), "capture");
  CHECK(cudaStreamSynchronize(stream.get()) != cudaSuccess);  // not allowed: the capture is void
  static_cast<void>(cudaGetLastError());
  failure const seen = failure_of([&] { init_free_ring(ring.ref(), stream.get()); });
  CHECK(seen.code == cudaErrorStreamCaptureInvalidated);
  CHECK_THAT(seen.text, test::contains("init_free_ring"));
  CHECK(cudaGetLastError() == cudaSuccess);
  cudaGraph_t graph = nullptr;
  CHECK(cudaStreamEndCapture(stream.get(), &graph) == cudaErrorStreamCaptureInvalidated);
  static_cast<void>(cudaGetLastError());

  CHECK(tail() == other);
  CHECK_NOTHROW(init_free_ring(ring.ref(), stream.get()));
  stream.wait();
  CHECK(tail() == 5);
}

TEST_CASE(
  "launch: kernels overlap where their code waits, and what is launched either way is the same",
  "[core]")
{
  // Code made for GPUs before 9.0 alone has no wait, even compiled anew for a later one.
  CHECK((!detail::all_code_waits() || detail::waits_for_previous(mark_kernel)));
  test::device_stream stream;
  test::device_array<std::uint32_t> const marks{4};
  detail::launch<false>(mark_kernel, {4, 32, 0, true}, stream.get(), marks.data());
  stream.wait();
  CHECK(marks.to_host() == std::vector<std::uint32_t>{7, 7, 7, 7});
}
