// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/progress.hpp"

#include <fmt/format.h>

#include <unistd.h>  // isatty

#include <cstdint>  // int64_t
#include <cstdio>

namespace llama3 {

std::string progress_text(std::string const& what, int done, int all, int shown, bool is_terminal)
{
  auto const tenth = [all](int steps) { return std::int64_t{10} * steps / all; };
  if (is_terminal) { return fmt::format("\r{}: {}/{}{}", what, done, all, done < all ? "" : "\n"); }
  if (tenth(done) == tenth(shown)) { return ""; }
  return fmt::format("{}: {}/{}\n", what, done, all);
}

progress_callback progress_on_stderr(std::string const& what)
{
  return [what, is_terminal = ::isatty(STDERR_FILENO) == 1, shown = 0](int done, int all) mutable {
    std::string const text = progress_text(what, done, all, shown, is_terminal);
    if (text.empty()) { return; }
    shown = done;
    fmt::print(stderr, "{}", text);
    std::fflush(stderr);
  };
}

}  // namespace llama3
