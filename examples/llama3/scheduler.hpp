// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Continuous batching: requests come and go while others are answered. They are admitted when free
//! pages allow, preempted when a claim is refused, and released at their end.
//! Read before this: llama3/batch_runner.hpp.  Read next: llama3/serve.hpp.
#include "llama3/batch_runner.hpp"

#include <cstddef>  // size_t
#include <cstdint>
#include <deque>
#include <functional>
#include <string_view>
#include <vector>

namespace llama3 {

struct generation_request {
  std::uint64_t id = 0;  //!< the caller's own
  std::vector<token_id> prompt{};
  int max_tokens = 0;  //!< new tokens at most
  sampling how{};
};

//! stop: the model ended its answer; length: max_tokens or the longest sequence did; no_memory: not
//! even alone does the sequence get the pages that it needs to go on.
enum class request_end { stop, length, no_memory };

[[nodiscard]] std::string_view name_of(request_end reason) noexcept;

//! A request at its end. Whatever the reason is, all tokens it got are here.
struct served_request {
  std::uint64_t id = 0;
  std::vector<token_id> tokens{};  //!< new ones, without the stop id
  request_end reason = request_end::length;
  int preemptions    = 0;
};

//! What becomes of requests, as soon as it is known. A function may be empty. It may submit further
//! requests, and must not advance the scheduler.
struct scheduler_callbacks {
  std::function<void(std::uint64_t id, token_id token)> on_token{};
  std::function<void(served_request const& request)> on_finish{};
};

//! Serves requests in the order of their arrival, as many at the same time as slots and pages allow.
//!
//! **Steps.** They are launched ahead of being collected for as long as the batch stays the same, so that
//! a GPU never waits for the host in between. How long an answer gets at most is known beforehand, and no
//! step is launched beyond it. A stop id is seen only when its step is collected: what the steps behind it
//! chose for that sequence is dropped. Before the batch changes, all steps are collected.
//!
//! **Admission.** A prompt claims most_pages() until it is compressed. It is let in if those pages are
//! free and, beside them, the pages that all running sequences and itself take at most for
//! `headroom_tokens` more tokens: otherwise its own growth might soon have it preempted, and a prompt would
//! have been read for a few tokens. With nothing running the first in the queue needs no headroom. This is
//! an estimate: the runner may refuse all the same, and the request waits on.
//!
//! **Preemption.** A sequence whose step was refused is as it was before, and tries again. If nobody ended
//! meanwhile, the youngest sequence gives its pages back and returns to its place in the queue with its
//! tokens behind its prompt; when its turn comes, all of that is read as one prompt. The oldest claim first
//! and are preempted last, so they get through. Nobody is admitted until the refused got their pages. A
//! lone sequence that is refused ends with no_memory; so does the youngest, if no running sequence could
//! be read again even by an empty pool (while it runs, it is compressed, and takes less than a prompt).
//!
//! **Every request ends.** Each admission gives its sequence one token for good, and so does each step that
//! is not refused; tokens are never taken back, and there are at most max_tokens for each request. A step
//! that is refused leads to an end, to a preemption or to another step with fewer sequences. Preemptions
//! are no more than admissions. A request that waits while nothing runs is alone with the whole pool: it is
//! admitted, or ends with no_memory. So each round moves towards the end, whoever is chosen as victim.
//!
//! A request's tokens depend on the others only through preemption: a prompt that is read again is
//! compressed as a prompt, where the sequence before was compressed as it grew.
class scheduler {
 public:
  //! About a page of each row, and more steps than the time of reading a prompt again is worth.
  static constexpr int headroom_tokens = 64;

  //! @param runs      must outlive this, and has no sequences of others
  //! @param stop_ids  each ends an answer
  scheduler(batch_runner& runs, std::vector<token_id> stop_ids, scheduler_callbacks callbacks);

  //! Puts a request at the end of the queue.
  //! @throws std::invalid_argument naming what cannot work: no prompt; negative max_tokens; a prompt that
  //!         leaves no room for a token; more pages than the pool has; prompt and answer together too
  //!         long to be read as one prompt, as they are after a preemption
  void submit(generation_request request);

  //! One round: changes the batch if there is reason to, launches steps, collects one.
  //! @return false if nothing is left to do
  bool advance();

  [[nodiscard]] int num_waiting() const noexcept { return static_cast<int>(waiting_.size()); }
  [[nodiscard]] int num_running() const noexcept { return static_cast<int>(running_.size()); }
  [[nodiscard]] std::uint64_t preemptions() const noexcept { return preemptions_; }
  //! Sequences in the largest batch so far.
  [[nodiscard]] int peak_running() const noexcept { return peak_running_; }
  //! Steps launched so far.
  [[nodiscard]] std::uint64_t steps() const noexcept { return steps_; }

 private:
  //! A request on its way.
  struct sequence {
    std::uint64_t arrival = 0;  // the smaller, the older
    std::uint64_t id      = 0;
    std::vector<token_id> ids{};  // prompt, then all tokens it got
    std::size_t prompt_size = 0;
    std::size_t longest     = 0;  // size of `ids` at which it ends
    sampling how{};
    int preemptions    = 0;
    std::uint32_t slot = 0;      // while it runs
    bool refused       = false;  // its step collected last was
    bool ended         = false;

    [[nodiscard]] int length() const noexcept { return static_cast<int>(ids.size()); }
    [[nodiscard]] bool is_full() const noexcept { return ids.size() >= longest; }
  };

  [[nodiscard]] bool batch_must_change() const;
  void change_batch();
  [[nodiscard]] bool any_refused() const;
  bool release_ended();
  void make_room();
  void preempt(std::size_t victim);

  [[nodiscard]] std::uint64_t growth(sequence const& s) const;
  [[nodiscard]] std::size_t num_admissible(std::uint64_t free_pages) const;
  void admit();
  void read(std::vector<sequence> group);
  void wait_again(sequence s);

  [[nodiscard]] bool can_step() const;
  void launch_steps();
  void collect();
  void take(sequence& s, token_id token);
  void end(sequence& s, request_end reason);

  batch_runner& runs_;
  std::vector<token_id> stop_ids_;
  scheduler_callbacks callbacks_;
  std::deque<sequence> waiting_;   // by arrival
  std::vector<sequence> running_;  // by arrival: pages are claimed in the order of the batch
  std::vector<std::uint32_t> free_slots_;
  std::vector<std::uint32_t> batch_;  // slots of running_
  int outstanding_          = 0;      // steps launched and not collected, all of batch_
  std::uint64_t free_pages_ = 0;      // as of the last look
  std::uint64_t arrivals_ = 0, preemptions_ = 0, steps_ = 0;
  int peak_running_ = 0;
};

}  // namespace llama3
