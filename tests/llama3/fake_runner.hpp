// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! A batch_runner without a model, for tests: tokens follow from what a sequence holds, pages are
//! counted as a cache counts them, and use that batch_runner does not allow throws std::logic_error.
#include "llama3/batch_runner.hpp"

#include <cstdint>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

namespace llama3::test {

//! What follows these ids: within 0 .. 96.
[[nodiscard]] inline token_id fake_token(std::vector<token_id> const& ids, sampling const& how)
{
  std::uint64_t hash = 0xcbf29ce484222325u ^ how.seed;
  for (token_id const id : ids) { hash = (hash ^ static_cast<std::uint64_t>(id)) * 0x100000001b3u; }
  return static_cast<token_id>((hash >> 32) % 97);
}

[[nodiscard]] constexpr std::uint64_t fake_pages(int num_tokens, int tokens_per_page) noexcept
{
  return static_cast<std::uint64_t>((num_tokens + tokens_per_page - 1) / tokens_per_page);
}

struct fake_setup {
  int num_slots           = 4;
  int max_prompts         = 8;
  int max_prompt_tokens   = 100;
  int max_tokens          = 100;
  int max_steps_ahead     = 3;
  int tokens_per_page     = 8;
  std::uint64_t num_pages = 1000;
  int keep_one_of         = 1;  //!< of so many tokens one stays, the others are pruned; 1: all stay
  int refuse_one_of       = 0;  //!< of so many claims one is refused for no reason; 0: none
  std::uint32_t seed      = 0;  //!< of those
};

class fake_runner final : public batch_runner {
 public:
  explicit fake_runner(fake_setup const& setup)
    : setup_{setup}, free_pages_{setup.num_pages}, random_{setup.seed}
  {}

  [[nodiscard]] int num_slots() const override { return setup_.num_slots; }
  [[nodiscard]] int max_prompts() const override { return setup_.max_prompts; }
  [[nodiscard]] int max_prompt_tokens() const override { return setup_.max_prompt_tokens; }
  [[nodiscard]] int max_tokens() const override { return setup_.max_tokens; }
  [[nodiscard]] int max_steps_ahead() const override { return setup_.max_steps_ahead; }
  [[nodiscard]] std::uint64_t num_pages() const override { return setup_.num_pages; }
  [[nodiscard]] std::uint64_t most_pages(int num_tokens) const override
  {
    return fake_pages(num_tokens, setup_.tokens_per_page);
  }

  [[nodiscard]] std::vector<std::optional<token_id>> read_prompts(
    std::vector<prompt_request> const& prompts) override
  {
    expect(results_.empty(), "read_prompts while steps are outstanding");
    expect(!prompts.empty() && static_cast<int>(prompts.size()) <= setup_.max_prompts,
           "a group of " + std::to_string(prompts.size()) + " prompts");
    groups_.push_back(static_cast<int>(prompts.size()));
    std::vector<std::optional<token_id>> first;
    std::vector<bool> admitted;
    int tokens = 0;
    for (prompt_request const& p : prompts) {  // all claim before any is compressed
      auto const length = static_cast<int>(p.ids.size());
      tokens += length;
      expect(length >= 1 && length <= setup_.max_tokens, "length of a prompt");
      expect(p.slot < static_cast<std::uint32_t>(setup_.num_slots), "no such slot");
      expect(sequences_.count(p.slot) == 0, "the slot is in use");
      admitted.push_back(claim(most_pages(length)));
      if (admitted.back()) {
        sequences_[p.slot] = {p.ids, p.how, length};
        first.emplace_back(choose(sequences_[p.slot]));
      } else {
        first.emplace_back();
      }
    }
    expect(tokens <= setup_.max_prompt_tokens, "too many tokens in a group");
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      auto const length = static_cast<int>(prompts[i].ids.size());
      if (admitted[i]) { free_pages_ += most_pages(length) - held(length); }
    }
    return first;
  }

  void step(std::vector<std::uint32_t> const& slots) override
  {
    expect(outstanding() < setup_.max_steps_ahead, "too many steps ahead");
    expect(!slots.empty(), "a step of nobody");
    expect(std::set<std::uint32_t>(slots.begin(), slots.end()).size() == slots.size(),
           "a slot twice in a batch");
    idle_launches_ += results_.empty() ? 1 : 0;
    ++steps_;
    step_result result;
    for (std::uint32_t const slot : slots) {
      expect(sequences_.count(slot) == 1, "a step of an empty slot");
      sequence& s = sequences_[slot];
      expect(s.num_held < setup_.max_tokens, "a sequence longer than max_tokens");
      if (claim(held(s.num_held + 1) - held(s.num_held))) {
        ++s.num_held;
        result.tokens.emplace_back(choose(s));
      } else {
        result.tokens.emplace_back();
      }
    }
    result.free_pages = free_pages_;
    results_.push_back(result);
  }

  [[nodiscard]] step_result collect() override
  {
    expect(!results_.empty(), "collect without a step");
    step_result result = results_.front();
    results_.pop_front();
    return result;
  }

  void release(std::vector<std::uint32_t> const& slots) override
  {
    expect(results_.empty(), "release while steps are outstanding");
    for (std::uint32_t const slot : slots) {
      expect(sequences_.count(slot) == 1, "release of an empty slot");
      free_pages_ += held(sequences_[slot].num_held);
      sequences_.erase(slot);
    }
  }

  [[nodiscard]] std::uint64_t free_pages() override
  {
    expect(results_.empty(), "free_pages while steps are outstanding");
    return free_pages_;
  }

  [[nodiscard]] int outstanding() const noexcept { return static_cast<int>(results_.size()); }
  [[nodiscard]] std::uint64_t steps() const noexcept { return steps_; }
  //! Steps that were launched when none before them was outstanding.
  [[nodiscard]] int idle_launches() const noexcept { return idle_launches_; }
  //! Sizes of the groups that prompts were read in.
  [[nodiscard]] std::vector<int> const& groups() const noexcept { return groups_; }

 private:
  struct sequence {
    std::vector<token_id> ids;  // with the token chosen last
    sampling how;
    int num_held;  // without it
  };

  static void expect(bool right, std::string const& what)
  {
    if (!right) { throw std::logic_error("fake_runner: " + what); }
  }

  [[nodiscard]] static token_id choose(sequence& s)
  {
    token_id const next = fake_token(s.ids, s.how);
    s.ids.push_back(next);
    return next;
  }

  [[nodiscard]] std::uint64_t held(int num_tokens) const
  {
    return fake_pages((num_tokens + setup_.keep_one_of - 1) / setup_.keep_one_of,
                      setup_.tokens_per_page);
  }

  //! All or nothing.
  [[nodiscard]] bool claim(std::uint64_t pages)
  {
    bool const unlucky =
      setup_.refuse_one_of > 0 && random_() % static_cast<std::uint32_t>(setup_.refuse_one_of) == 0;
    if (unlucky || pages > free_pages_) { return false; }
    free_pages_ -= pages;
    return true;
  }

  fake_setup setup_;
  std::uint64_t free_pages_;
  std::mt19937 random_;
  std::map<std::uint32_t, sequence> sequences_;
  std::deque<step_result> results_;
  std::uint64_t steps_ = 0;
  int idle_launches_   = 0;
  std::vector<int> groups_;
};

}  // namespace llama3::test
