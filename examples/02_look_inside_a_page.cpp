// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

// What this teaches: where one token lies in a page.
//   1. A page is six segments; the layout knows every offset at compile time.
//   2. A key is written into the page; its codes lie scattered, in the order that tensor cores
//      want.
//   3. The bytes of one token are exactly those that its format pays for; no other byte changes.
// No GPU is needed. The program ends with 0 if every answer is as it must be.
#include <diffkv/host/page_codec.hpp>
#include <diffkv/page/byte_map.hpp>
#include <diffkv/page/page_layout.hpp>
#include <diffkv/page/page_view.hpp>

#include <cmath>
#include <cstddef>
#include <cstdio>
#include <iostream>
#include <vector>

int main()
{
  bool right = true;

  // --- 1. Keys of 8 bits, values of 4; pages that also suit the low tier of 4 and 2 bits.
  constexpr int head_dim = 64;
  constexpr std::uint32_t page_bytes =
    diffkv::best_page_bytes(head_dim, diffkv::k8v4::spec, diffkv::k4v2::spec);
  using layout = diffkv::page_layout<diffkv::k8v4, head_dim, page_bytes>;
  static_assert(layout::page_bytes == 7168 && layout::tokens_per_page == 64);
  diffkv::print_byte_map(std::cout, layout::geometry);

  // --- 2. Write token 3 into two pages: one full of zero bits, one full of ones.
  int const token = 3;
  std::vector<float> key(head_dim);    // [head_dim] f32
  std::vector<float> value(head_dim);  // [head_dim] f32
  for (std::size_t d = 0; d < head_dim; ++d) {
    key[d]   = std::sin(0.3f * static_cast<float>(d));
    value[d] = std::cos(0.2f * static_cast<float>(d));
  }
  std::vector<std::byte> zeros(page_bytes, std::byte{0x00});  // [page_bytes]
  std::vector<std::byte> ones(page_bytes, std::byte{0xFF});   // [page_bytes]
  diffkv::host::page_codec const codec{layout::geometry};
  for (auto* page : {&zeros, &ones}) {
    codec.write_key(page->data(), token, key.data());
    codec.write_value(page->data(), token, value.data());
    diffkv::page_view const view{page->data(), &layout::geometry};
    view.set_score(token, 0.5f);
    view.set_position(token, 1234);
  }

  // The layout says where a code lies; the affine pair of the token says what it stands for.
  diffkv::page_view const page{zeros.data(), &layout::geometry};
  diffkv::affine const pair = page.key_affine(token, /*group=*/0);
  std::vector<float> read(head_dim);  // [head_dim] f32
  codec.read_key(zeros.data(), token, read.data());
  std::printf("key of token %d: scale %.6f, zero %.4f\n", token, to_f32(pair.scale),
              to_f32(pair.zero));
  for (int d : {0, 1, 2, 3, 4, 16, 32, 63}) {
    diffkv::code_place const place = layout::geometry.key_code(token, d);
    std::uint32_t const code       = page.code(place, 8);
    float const number = diffkv::affine_value(code, to_f32(pair.scale), to_f32(pair.zero));
    std::printf("key of token %d, dim %2d: byte %4u holds %3u, that is %7.4f (was %7.4f)\n", token,
                d, place.byte, code, number, key[static_cast<std::size_t>(d)]);
    right = right && number == read[static_cast<std::size_t>(d)];
  }

  // --- 3. A byte that is still 0x00 in one page and 0xFF in the other was not touched.
  int bytes_of_token = 0;
  for (std::size_t i = 0; i < page_bytes; ++i) {
    bool const untouched = zeros[i] == std::byte{0x00} && ones[i] == std::byte{0xFF};
    bytes_of_token += untouched ? 0 : 1;
  }
  int const expected = head_dim * 8 / 8    // key codes
                       + 4                 // key scale and zero
                       + head_dim * 4 / 8  // value codes
                       + 4                 // value scale and zero
                       + 4 + 4;            // score, position
  std::printf("the token owns %d bytes of the page; 16-bit key and value take %d\n", bytes_of_token,
              head_dim * 4);
  right = right && bytes_of_token == expected;
  right = right && page.score(token) == 0.5f && page.position(token) == 1234;

  std::puts(right ? "every answer is right" : "WRONG");
  return right ? 0 : 1;
}
