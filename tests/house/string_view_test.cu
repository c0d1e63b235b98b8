// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! A test in a .cu file: Catch2's main comes from the host compiler, and both agree on what can be
//! printed, whatever C++ standard Catch2 was built with.
#include "support/catch.hpp"

#include <string>
#include <string_view>

TEST_CASE("catch: a string_view is compared in a file that nvcc compiles", "[house]")
{
  std::string const owner = "diffkv";
  std::string_view const view{owner};
  REQUIRE(view == std::string_view{"diffkv"});
  REQUIRE(Catch::Detail::stringify(view) == "\"diffkv\"");
}
