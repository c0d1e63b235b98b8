// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! What a policy is: which tier a token deserves at the prompt, and what one generation step does.
//! Read before this: policy/importance.hpp.  Read next: policy/threshold_step.hpp.
//!
//! A policy is a trivially copyable functor; every function is host and device, has no side effect,
//! and sees one row at a time. Tokens are numbered from 1; N counts every token seen, pruned ones and
//! the one being reserved included. Members:
//!
//!     using row_parameters = ...;                          // trivially copyable, made by prepare
//!     int  prompt_queries(N)                               // Q: the last Q prompt queries count
//!     row_parameters prepare(prompt_view)                  // once per row and prompt; no allocation
//!     tier classify(importance, i, N, thresholds, row_parameters)
//!     float priority(importance, i, N)                     // the least goes first
//!     step_decision step(step_view)                        // one generation step of one row
//!
//! And, if it has demands of its own, on the host:
//!
//!     void validate(max_tokens) const                      // throws invalid_argument; kv_cache asks
//!
//! And, if `step` looks at the least low token only where the leaving token is demoted, and at the
//! least high one only where the leaving token stays or there is none, so that a step need not look
//! the others up in memory:
//!
//!     using leaving_first = ...;                           // the policy itself, by its name
//!
//! By its name, as a policy that derives from it and steps otherwise must not say so unawares.
//!
//! Laws (tests/policy/contract.hpp checks them for any policy):
//!   - classify and step are pure; classify never sees a token of the window or of count 0;
//!   - a token of greater importance, all else equal, never gets a lesser tier (in step: the leaving
//!     token);
//!   - the importance given to classify, step and priority is a number: what surrounds the policy
//!     (policy/prompt_tiers.hpp, compaction/step_plan.hpp) keeps tokens whose importance is NaN;
//!   - priority may be asked about a token that cannot leave, as one of importance 0 and number 1, say: the
//!     answer is dropped;
//!   - step names a victim only if it was present in the view;
//!   - with leaving_first, step decides the same where the tokens that it says it ignores are absent;
//!   - where `has_low` is false nothing goes to the low tier (use `without_low`).
#include <diffkv/core/types.hpp>
#include <diffkv/policy/importance.hpp>
#include <diffkv/policy/thresholds.hpp>

#include <type_traits>

namespace diffkv {

//! A prompt's row before its tokens are classified.
struct prompt_view {
  float const* importances =
    nullptr;                    //!< [num_tokens], token i at i - 1; the window's are not read
  std::int32_t num_tokens = 0;  //!< N
  std::int32_t window     = 0;  //!< W: the last W tokens are high whatever their importance
  thresholds limits{};
  bool has_low = true;
};

//! A token that a step may move.
struct token_view {
  bool present        = false;
  float importance    = 0.0f;
  std::int32_t number = 0;  //!< i, counted from 1
};

//! A row at a generation step, before anything moves.
struct step_view {
  std::int32_t num_tokens = 0;  //!< N, the token being reserved included
  std::int32_t window     = 0;
  tier_counts counts{};  //!< stored tokens, the new one not yet included
  thresholds limits{};
  bool has_low = true;
  token_view leaving{};     //!< t_c = token N - W, if it exists and has been scored
  token_view least_high{};  //!< least important of the high part outside the window, t_c excluded
  token_view least_low{};
};

//! Who gives up its place. The new token always enters the high part.
enum class step_action : std::uint8_t {
  grow,            //!< nobody: the new token takes a new high slot
  prune_leaving,   //!< t_c is dropped, the new token takes its slot
  demote_leaving,  //!< t_c goes to the low part, the new token takes its slot
  prune_high,      //!< the least important high token is dropped, the new token takes its slot
  demote_high      //!< the least important high token goes low, the new token takes its slot
};

struct step_decision {
  step_action action = step_action::grow;
  //! The least important low token is dropped: a demoted token takes its slot, else the low part's
  //! last token does.
  bool prune_low = false;

  friend DIFFKV_HOST_DEVICE constexpr bool operator==(step_decision a, step_decision b) noexcept
  {
    return a.action == b.action && a.prune_low == b.prune_low;
  }
};

//! In a cache without low tier what would be low is high.
[[nodiscard]] DIFFKV_HOST_DEVICE constexpr tier without_low(tier t, bool has_low) noexcept
{
  return t == tier::low && !has_low ? tier::high : t;
}

//! Strict on both sides: equality is low.
[[nodiscard]] DIFFKV_HOST_DEVICE constexpr tier between(float importance, float high,
                                                        float low) noexcept
{
  return importance > high ? tier::high : importance < low ? tier::pruned : tier::low;
}

//! No per-row parameters.
struct no_parameters {};

template <class T, class = void>
struct is_policy : std::false_type {};
template <class T>
struct is_policy<
  T,
  std::enable_if_t<
    std::is_trivially_copyable_v<T> && std::is_trivially_copyable_v<typename T::row_parameters> &&
    std::is_same_v<decltype(std::declval<T const&>().prompt_queries(std::int32_t{})),
                   std::int32_t> &&
    std::is_same_v<decltype(std::declval<T const&>().prepare(prompt_view{})),
                   typename T::row_parameters> &&
    std::is_same_v<decltype(std::declval<T const&>().classify(
                     0.0f, std::int32_t{}, std::int32_t{}, thresholds{},
                     std::declval<typename T::row_parameters const&>())),
                   tier> &&
    std::is_same_v<
      decltype(std::declval<T const&>().priority(0.0f, std::int32_t{}, std::int32_t{})), float> &&
    std::is_same_v<decltype(std::declval<T const&>().step(step_view{})), step_decision>>>
  : std::true_type {};
template <class T>
inline constexpr bool is_policy_v = is_policy<T>::value;

template <class T, class = void>
struct has_validate : std::false_type {};
template <class T>
struct has_validate<T, std::void_t<decltype(std::declval<T const&>().validate(std::int32_t{}))>>
  : std::true_type {};

//! Whether a policy says of itself, not of a base, that it decides about the leaving token first.
template <class T, class = void>
struct decides_leaving_first : std::false_type {};
template <class T>
struct decides_leaving_first<T, std::void_t<typename T::leaving_first>>
  : std::is_same<typename T::leaving_first, T> {};
template <class T>
inline constexpr bool decides_leaving_first_v = decides_leaving_first<T>::value;

//! Asks a policy whether it can serve sequences of up to `max_tokens` tokens.
//! @throws invalid_argument naming what it lacks
template <class Policy>
void validate_policy(Policy const& policy, std::int32_t max_tokens)
{
  static_assert(is_policy_v<Policy>, "Policy must fulfil policy/contract.hpp");
  if constexpr (has_validate<Policy>::value) { policy.validate(max_tokens); }
}

}  // namespace diffkv
