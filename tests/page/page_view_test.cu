// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! Pages written on the device by the mapping of page_view equal those of the host twin, byte by byte.
#include <diffkv/host/page_codec.hpp>
#include <diffkv/page/page_layout.hpp>
#include <diffkv/page/page_view.hpp>
#include <diffkv/quant/vector_codec.hpp>

#include <random>
#include <vector>

#include "support/catch.hpp"
#include "support/device.hpp"

namespace {

using namespace diffkv;

//! What no element of the vector maps to holds code 0.
__device__ void write_padding(page_view const& view, page_geometry const& geometry, int token)
{
  code_spec const key   = geometry.format.key;
  code_spec const value = geometry.format.value;
  for (int e = 0; e < stored_elements(geometry.head_dim, key.groups); ++e) {
    if (!is_padding(key, geometry.head_dim, e)) { continue; }
    code_place place = stored_key_place(key, geometry.head_dim, token, e);
    place.byte += geometry.key_codes;
    view.set_code(place, key.bits, 0);
  }
  for (int e = 0; e < stored_elements(geometry.head_dim, value.groups); ++e) {
    if (!is_padding(value, geometry.head_dim, e)) { continue; }
    code_place place = stored_value_place(value, geometry.head_dim, token, e);
    place.byte += geometry.value_codes;
    view.set_code(place, value.bits, 0);
  }
}

//! One thread writes all tokens of one page: neighbouring tokens share bytes.
__global__ void write_page_kernel(std::byte* page, page_geometry geometry, float const* key,
                                  float const* value)
{
  page_view const view{page, &geometry};
  for (int token = 0; token < geometry.tokens_per_page; ++token) {
    coded_vector coded;
    encode_vector(key + token * geometry.head_dim, geometry.head_dim, geometry.format.key, coded);
    for (int d = 0; d < geometry.head_dim; ++d) {
      view.set_code(geometry.key_code(token, d), geometry.format.key.bits, coded.codes[d]);
    }
    for (int g = 0; geometry.format.key.is_quantised() && g < geometry.format.key.groups; ++g) {
      view.set_key_affine(token, g, coded.groups[g]);
    }
    encode_vector(value + token * geometry.head_dim, geometry.head_dim, geometry.format.value,
                  coded);
    for (int d = 0; d < geometry.head_dim; ++d) {
      view.set_code(geometry.value_code(token, d), geometry.format.value.bits, coded.codes[d]);
    }
    for (int g = 0; geometry.format.value.is_quantised() && g < geometry.format.value.groups; ++g) {
      view.set_value_affine(token, g, coded.groups[g]);
    }
    write_padding(view, geometry, token);
    view.set_score(token, 0.25f * static_cast<float>(token));
    view.set_position(token, 1000 + token);
  }
}

void compare(format_spec format, int head_dim)
{
  page_geometry const geometry =
    make_page_geometry(format, head_dim, best_page_bytes(head_dim, format));
  auto const numbers =
    static_cast<std::size_t>(geometry.tokens_per_page) * static_cast<std::size_t>(head_dim);
  std::mt19937 engine{3};
  std::normal_distribution<float> normal;
  std::vector<float> key(numbers);
  std::vector<float> value(numbers);
  for (std::size_t i = 0; i < numbers; ++i) {
    key[i]   = normal(engine);
    value[i] = normal(engine);
  }
  std::vector<std::byte> wanted(geometry.page_bytes, std::byte{0xFF});
  host::page_codec const codec{geometry};
  page_view const view{wanted.data(), &geometry};
  for (int token = 0; token < geometry.tokens_per_page; ++token) {
    codec.write_key(wanted.data(), token,
                    key.data() + static_cast<std::ptrdiff_t>(token) * head_dim);
    codec.write_value(wanted.data(), token,
                      value.data() + static_cast<std::ptrdiff_t>(token) * head_dim);
    view.set_score(token, 0.25f * static_cast<float>(token));
    view.set_position(token, 1000 + token);
  }
  test::device_stream stream;
  test::device_array<std::byte> const page{geometry.page_bytes};  // filled with 0xFF
  test::device_array<float> const device_key{key};
  test::device_array<float> const device_value{value};
  write_page_kernel<<<1, 1, 0, stream.get()>>>(page.data(), geometry, device_key.data(),
                                               device_value.data());
  stream.wait();
  CHECK(page.to_host() == wanted);
}

}  // namespace

TEST_CASE("page_view: device and host write the same page, byte for byte", "[page]")
{
  for (int head_dim : {64, 80, 96, 112, 128, 256}) {
    for (int key_bits : {16, 8, 4, 2}) {
      for (int value_bits : {16, 8, 4, 2, 1}) {
        CAPTURE(head_dim, key_bits, value_bits);
        compare({{key_bits, 1}, {value_bits, 1}}, head_dim);
      }
    }
    for (int groups : {2, 4}) {
      format_spec const format{{8, groups}, {4, groups}};
      if (!is_legal(format, head_dim)) { continue; }
      CAPTURE(head_dim, groups);
      compare(format, head_dim);
    }
  }
}

TEST_CASE("page_layout: a kernel sees the geometry at compile time", "[page]")
{
  using layout              = page_layout<k4v2, 128, 7168>;
  constexpr page_geometry g = layout::geometry;
  static_assert(g.key_code(17, 5) == make_page_geometry(k4v2::spec, 128, 7168).key_code(17, 5));
  compare(layout::format_type::spec, layout::head_dim);
}
