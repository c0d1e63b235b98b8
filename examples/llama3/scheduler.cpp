// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/scheduler.hpp"

#include <algorithm>  // any_of, find, max, min, none_of, stable_partition, upper_bound
#include <stdexcept>  // invalid_argument
#include <string>
#include <utility>  // move

namespace llama3 {
namespace {

[[nodiscard]] std::size_t as_size(int n) { return static_cast<std::size_t>(n); }

//! Inserts by arrival.
template <class Sequences, class Sequence>
void insert_in_order(Sequences& into, Sequence s)
{
  auto const place =
    std::upper_bound(into.begin(), into.end(), s,
                     [](Sequence const& a, Sequence const& b) { return a.arrival < b.arrival; });
  into.insert(place, std::move(s));
}

}  // namespace

std::string_view name_of(request_end reason) noexcept
{
  switch (reason) {
    case request_end::stop:
      return "stop";
    case request_end::length:
      return "length";
    case request_end::no_memory:
      break;
  }
  return "no_memory";
}

scheduler::scheduler(batch_runner& runs, std::vector<token_id> stop_ids,
                     scheduler_callbacks callbacks)
  : runs_{runs}, stop_ids_{std::move(stop_ids)}, callbacks_{std::move(callbacks)}
{
  for (int slot = runs.num_slots(); slot-- > 0;) {
    free_slots_.push_back(static_cast<std::uint32_t>(slot));
  }
  free_pages_ = runs.free_pages();
}

void scheduler::submit(generation_request request)
{
  auto const refuse = [&](std::string const& why) {
    throw std::invalid_argument("request " + std::to_string(request.id) + ": " + why);
  };
  std::size_t const prompt = request.prompt.size();
  std::size_t const room   = as_size(runs_.max_tokens());
  if (prompt == 0) { refuse("the prompt is empty"); }
  if (request.max_tokens < 0) {
    refuse("the number of new tokens must be 0 or more, not " + std::to_string(request.max_tokens));
  }
  if (prompt + 1 > room) {
    refuse("the prompt has " + std::to_string(prompt) + " tokens, a sequence at most " +
           std::to_string(room) + ": there is no room for an answer");
  }
  std::size_t const longest = std::min(prompt + as_size(request.max_tokens), room);
  // Without its last token it may have to be read again.
  std::size_t const longest_prompt = std::max(prompt, longest - 1);
  if (longest_prompt > as_size(runs_.max_prompt_tokens())) {
    refuse("prompt and answer may have to be read as one prompt of " +
           std::to_string(longest_prompt) + " tokens, which may have " +
           std::to_string(runs_.max_prompt_tokens()) +
           ": shorten the prompt or ask for fewer new tokens");
  }
  std::uint64_t const pages = runs_.most_pages(static_cast<int>(prompt));
  if (pages > runs_.num_pages()) {
    refuse("a prompt of " + std::to_string(prompt) + " tokens needs " + std::to_string(pages) +
           " pages, the pool has " + std::to_string(runs_.num_pages()));
  }
  sequence s;
  s.arrival     = arrivals_++;
  s.id          = request.id;
  s.ids         = std::move(request.prompt);
  s.prompt_size = prompt;
  s.longest     = longest;
  s.how         = request.how;
  waiting_.push_back(std::move(s));
}

bool scheduler::advance()
{
  if (batch_must_change()) {
    while (outstanding_ > 0) { collect(); }
    change_batch();
  }
  launch_steps();
  if (outstanding_ > 0) { collect(); }
  return !waiting_.empty() || !running_.empty();
}

// ---- the batch changes -------------------------------------------------------------------------

bool scheduler::batch_must_change() const
{
  return !can_step() || any_refused() || num_admissible(free_pages_) > 0;
}

void scheduler::change_batch()
{
  bool const released = release_ended();
  if (any_refused()) {
    // What was released may be enough: they try again before anyone is preempted or admitted.
    if (!released) { make_room(); }
  } else {
    admit();
  }
  batch_.clear();
  for (sequence const& s : running_) { batch_.push_back(s.slot); }
}

bool scheduler::any_refused() const
{
  return std::any_of(running_.begin(), running_.end(),
                     [](sequence const& s) { return s.refused && !s.ended; });
}

//! @return whether there were any
bool scheduler::release_ended()
{
  auto const first_ended = std::stable_partition(running_.begin(), running_.end(),
                                                 [](sequence const& s) { return !s.ended; });
  if (first_ended == running_.end()) { return false; }
  std::vector<std::uint32_t> slots;
  for (auto s = first_ended; s != running_.end(); ++s) { slots.push_back(s->slot); }
  running_.erase(first_ended, running_.end());
  runs_.release(slots);
  free_slots_.insert(free_slots_.end(), slots.begin(), slots.end());
  free_pages_ = runs_.free_pages();
  return true;
}

//! For sequences that were refused, when nobody ended.
void scheduler::make_room()
{
  if (running_.size() > 1) {
    for (std::size_t i = running_.size(); i-- > 0;) {  // the youngest first
      if (runs_.most_pages(running_[i].length()) <= runs_.num_pages()) {
        preempt(i);
        return;
      }
    }
  }
  end(running_.back(), request_end::no_memory);
  release_ended();
}

void scheduler::preempt(std::size_t victim)
{
  sequence s = std::move(running_[victim]);
  running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(victim));
  runs_.release({s.slot});
  free_slots_.push_back(s.slot);
  free_pages_ = runs_.free_pages();
  ++s.preemptions;
  ++preemptions_;
  wait_again(std::move(s));
}

//! Back to its place in the queue, which is in front of all that came later.
void scheduler::wait_again(sequence s)
{
  s.refused = false;
  insert_in_order(waiting_, std::move(s));
}

// ---- admission ---------------------------------------------------------------------------------

//! Pages that it takes at most for some more tokens.
std::uint64_t scheduler::growth(sequence const& s) const
{
  int const later = std::min(s.length() + headroom_tokens, static_cast<int>(s.longest));
  return runs_.most_pages(std::max(s.length(), later)) - runs_.most_pages(s.length());
}

//! How many from the front of the queue may be read now, as one group.
std::size_t scheduler::num_admissible(std::uint64_t free_pages) const
{
  std::size_t const most =
    std::min({waiting_.size(), free_slots_.size(), as_size(runs_.max_prompts())});
  if (most == 0) { return 0; }
  std::uint64_t pages = 0;  // of the group, and of everyone's headroom
  for (sequence const& s : running_) { pages += growth(s); }
  int tokens = 0;
  for (std::size_t i = 0; i < most; ++i) {
    sequence const& s = waiting_[i];
    tokens += s.length();
    pages += runs_.most_pages(s.length()) + growth(s);
    bool const is_alone = i == 0 && running_.empty();
    if (!is_alone && (tokens > runs_.max_prompt_tokens() || pages > free_pages)) { return i; }
  }
  return most;
}

//! Group by group: prompts take fewer pages once they are read, so the next one may find room.
void scheduler::admit()
{
  while (std::size_t const count = num_admissible(free_pages_)) {
    std::vector<sequence> group;
    for (std::size_t i = 0; i < count; ++i) {
      group.push_back(std::move(waiting_.front()));
      waiting_.pop_front();
    }
    std::size_t const before = running_.size();
    std::size_t const asked  = waiting_.size();
    read(std::move(group));
    release_ended();
    if (running_.size() == before && waiting_.size() > asked) { return; }
  }
}

void scheduler::read(std::vector<sequence> group)
{
  std::vector<prompt_request> prompts;
  std::vector<sequence> readable;
  for (sequence& s : group) {
    if (s.is_full()) {  // no token was asked for
      end(s, request_end::length);
      continue;
    }
    s.slot = free_slots_.back();
    free_slots_.pop_back();
    prompts.push_back({s.slot, s.ids, s.how});
    readable.push_back(std::move(s));
  }
  if (prompts.empty()) { return; }
  bool const is_alone                            = running_.empty();
  std::vector<std::optional<token_id>> const got = runs_.read_prompts(prompts);
  free_pages_                                    = runs_.free_pages();
  for (std::size_t i = 0; i < readable.size(); ++i) {
    sequence& s = readable[i];
    if (got[i]) {
      take(s, *got[i]);
      insert_in_order(running_, std::move(s));
    } else {
      free_slots_.push_back(s.slot);
      wait_again(std::move(s));
    }
  }
  peak_running_ = std::max(peak_running_, num_running());
  if (is_alone && running_.empty()) {  // the whole pool was not enough
    end(waiting_.front(), request_end::no_memory);
    waiting_.pop_front();
  }
}

// ---- steps -------------------------------------------------------------------------------------

//! Whether everyone in the batch has a token to come beyond those that are on their way.
bool scheduler::can_step() const
{
  auto const launched = as_size(outstanding_);
  return std::none_of(running_.begin(), running_.end(), [launched](sequence const& s) {
    return s.ended || s.ids.size() + launched >= s.longest;
  });
}

void scheduler::launch_steps()
{
  while (!running_.empty() && outstanding_ < runs_.max_steps_ahead() && can_step()) {
    runs_.step(batch_);
    ++outstanding_;
    ++steps_;
  }
}

void scheduler::collect()
{
  step_result const result = runs_.collect();
  --outstanding_;
  free_pages_ = result.free_pages;
  for (std::size_t i = 0; i < running_.size(); ++i) {
    sequence& s = running_[i];
    if (s.ended) { continue; }  // the step was launched before that was seen
    s.refused = !result.tokens[i].has_value();
    if (!s.refused) { take(s, *result.tokens[i]); }
  }
}

void scheduler::take(sequence& s, token_id token)
{
  if (std::find(stop_ids_.begin(), stop_ids_.end(), token) != stop_ids_.end()) {
    end(s, request_end::stop);
    return;
  }
  s.ids.push_back(token);
  if (callbacks_.on_token) { callbacks_.on_token(s.id, token); }
  if (s.is_full()) { end(s, request_end::length); }
}

void scheduler::end(sequence& s, request_end reason)
{
  s.ended = true;
  if (!callbacks_.on_finish) { return; }
  served_request served;
  served.id = s.id;
  served.tokens.assign(s.ids.begin() + static_cast<std::ptrdiff_t>(s.prompt_size), s.ids.end());
  served.reason      = reason;
  served.preemptions = s.preemptions;
  callbacks_.on_finish(served);
}

}  // namespace llama3
