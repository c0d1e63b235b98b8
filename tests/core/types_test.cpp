// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "support/catch.hpp"

#include <diffkv/core/error.hpp>
#include <diffkv/core/types.hpp>

#include <string>
#include <type_traits>

TEST_CASE("types: a page id cannot pass for a token", "[core]")
{
  STATIC_REQUIRE_FALSE(std::is_convertible_v<std::uint32_t, diffkv::page_id>);
  STATIC_REQUIRE_FALSE(std::is_convertible_v<diffkv::page_id, std::uint32_t>);
  STATIC_REQUIRE(sizeof(diffkv::page_id) == 4);
}

TEST_CASE("types: tier_counts reads by tier, adds up and compares", "[core]")
{
  diffkv::tier_counts const counts{3, 5};
  CHECK(counts.of(diffkv::tier::high) == 3);
  CHECK(counts.of(diffkv::tier::low) == 5);
  CHECK(counts.sum() == 8);
  CHECK(counts == diffkv::tier_counts{3, 5});
  CHECK(counts != diffkv::tier_counts{3, 4});
  CHECK(counts != diffkv::tier_counts{4, 5});
}

TEST_CASE("types: tiers have names", "[core]")
{
  CHECK(std::string{name(diffkv::tier::high)} == "high");
  CHECK(std::string{name(diffkv::tier::low)} == "low");
  CHECK(std::string{name(diffkv::tier::pruned)} == "pruned");
}

TEST_CASE("error: DIFFKV_EXPECTS throws its message, and builds it only then", "[core]")
{
  int built          = 0;
  auto const message = [&] {
    ++built;
    return std::string{"window: 0 must be 1 or more"};
  };
  CHECK_NOTHROW(DIFFKV_EXPECTS(1 + 1 == 2, message()));
  CHECK(built == 0);
  CHECK_THROWS_WITH(DIFFKV_EXPECTS(1 + 1 == 3, message()), "diffkv: window: 0 must be 1 or more");
  CHECK_THROWS_AS(DIFFKV_EXPECTS(false, message()), std::invalid_argument);
}
