// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! How far a long piece of work is: told by who does it, shown on standard error.
//! Read next: llama3/model.hpp, llama3/session.hpp.

#include <functional>  // function
#include <string>

namespace llama3 {

//! Told after each step, such as a layer of a prompt, how many of them are done.
using progress_callback = std::function<void(int done, int all)>;

//! On a terminal one line that is written anew; elsewhere (a file, a log) one line per tenth.
[[nodiscard]] progress_callback progress_on_stderr(std::string const& what);

//! The text to write when `done` of `all` steps are done, after `shown` of them were last shown;
//! empty: nothing to write yet.
[[nodiscard]] std::string progress_text(std::string const& what, int done, int all, int shown,
                                        bool is_terminal);

}  // namespace llama3
