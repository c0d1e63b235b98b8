// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Where the time went: seconds per kind of work, for the report.

#include <chrono>  // steady_clock

namespace llama3 {

//! Seconds spent in a model since the account was last cleared, each on one entry.
struct time_account {
  double matrices{0.0};   //!< products with weights
  double attention{0.0};  //!< inside the attention_backend: writing K and V too
  double other{0.0};      //!< embedding, norms, RoPE, SwiGLU
  double device{0.0};     //!< not split up further: a graph on the GPU does all of it

  [[nodiscard]] double total() const noexcept { return matrices + attention + other + device; }

  time_account& operator+=(time_account const& more) noexcept
  {
    matrices += more.matrices;
    attention += more.attention;
    other += more.other;
    device += more.device;
    return *this;
  }
};

//! Adds the seconds of its own life to one entry of an account.
class timed {
 public:
  explicit timed(double& seconds) noexcept : seconds_{seconds} {}
  timed(timed const&)            = delete;
  timed& operator=(timed const&) = delete;
  ~timed()
  {
    seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }

 private:
  double& seconds_;
  std::chrono::steady_clock::time_point begin_{std::chrono::steady_clock::now()};
};

}  // namespace llama3
