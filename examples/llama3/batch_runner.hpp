// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! What a scheduler asks of whoever runs the model for many sequences at the same time.
//! Read before this: llama3/sampling_options.hpp.  Read next: llama3/scheduler.hpp.
#include "llama3/sampling_options.hpp"
#include "llama3/token_id.hpp"

#include <cstdint>
#include <optional>
#include <vector>

namespace llama3 {

//! A sequence to begin in a free slot.
struct prompt_request {
  std::uint32_t slot = 0;
  std::vector<token_id> ids{};  //!< at least one
  sampling how{};
};

//! What came of one step.
struct step_result {
  //! One for each sequence of the step's batch; nothing: there was no page for it, the sequence is as it
  //! was before, and the next step tries the same token again.
  std::vector<std::optional<token_id>> tokens{};
  std::uint64_t free_pages = 0;  //!< after it
};

//! Runs sequences in slots. Steps are launched one behind the other, and looked at later.
class batch_runner {
 public:
  virtual ~batch_runner() = default;

  [[nodiscard]] virtual int num_slots() const = 0;
  //! Sequences, and tokens of all of them, that one call of read_prompts takes.
  [[nodiscard]] virtual int max_prompts() const       = 0;
  [[nodiscard]] virtual int max_prompt_tokens() const = 0;
  //! Longest sequence.
  [[nodiscard]] virtual int max_tokens() const = 0;
  //! Pages that a sequence of so many tokens takes at most, and those of the whole pool.
  [[nodiscard]] virtual std::uint64_t most_pages(int num_tokens) const = 0;
  [[nodiscard]] virtual std::uint64_t num_pages() const                = 0;

  //! Begins sequences: reads their prompts and chooses their first tokens.
  //! @return one for each prompt; nothing: there were not enough pages, its slot stays free
  //! @pre no step is waiting to be collected
  [[nodiscard]] virtual std::vector<std::optional<token_id>> read_prompts(
    std::vector<prompt_request> const& prompts) = 0;

  //! Launches one step: each of these sequences takes in the token chosen last and chooses the next.
  virtual void step(std::vector<std::uint32_t> const& slots) = 0;
  //! Waits for the oldest step that was not collected yet.
  //! @throws std::runtime_error if a sequence has no logit to choose from; so does read_prompts
  [[nodiscard]] virtual step_result collect() = 0;
  //! Steps that may wait to be collected.
  [[nodiscard]] virtual int max_steps_ahead() const = 0;

  //! Ends sequences and gives their pages back.
  //! @pre no step is waiting to be collected
  virtual void release(std::vector<std::uint32_t> const& slots) = 0;
  //! @pre no step is waiting to be collected
  [[nodiscard]] virtual std::uint64_t free_pages() = 0;
};

}  // namespace llama3
