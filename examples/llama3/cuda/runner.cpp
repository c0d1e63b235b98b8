// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/cuda/runner.hpp"

#include <algorithm>    // max, min
#include <stdexcept>    // runtime_error
#include <type_traits>  // remove_pointer_t
#include <utility>      // move

namespace llama3 {
namespace {

[[nodiscard]] std::size_t as_size(int n) { return static_cast<std::size_t>(n); }

//! @throws std::runtime_error if there was nothing to choose, as the CPU's sampler does
[[nodiscard]] token_id checked(token_id chosen)
{
  if (chosen == nothing_to_choose) {
    throw std::runtime_error(
      "no token to choose: all logits of a sequence are NaN or -inf, so the model's output is "
      "broken");
  }
  return chosen;
}

}  // namespace

runner::runner(device_model& of, std::unique_ptr<device_cache> cache,
               device_cache_setup const& setup, int num_ids)
  : model_{of},
    cache_{std::move(cache)},
    setup_{setup},
    num_ids_{num_ids},
    stream_{of.stream()},
    events_(depth)
{
  auto const make = [&](auto& array, std::int64_t size) {
    using element = std::remove_pointer_t<decltype(array.data())>;
    array         = make_cleared_array<element>(size, stream_);
  };
  std::int64_t const slots = setup.num_slots;
  std::int64_t const rows  = most_rows();
  make(tokens_, slots);
  make(positions_, slots);
  make(options_, slots);
  make(ids_, rows);
  make(chosen_, rows);
  make(batch_positions_, rows);
  make(next_positions_, rows);
  make(batch_options_, rows);
  make(batch_, rows + 1);
  make(refusals_, rows + 1);
  make(logits_, rows * of.config().vocab_size);
  make(free_pages_, 1);
  make(step_number_, 1);
  reported_tokens_ = pinned_array<token_id>{as_size(depth * most_rows())};
  reported_pages_  = pinned_array<std::uint64_t>{as_size(depth)};
}

runner::~runner() { static_cast<void>(cudaStreamSynchronize(stream_)); }

int runner::most_rows() const noexcept { return std::max(setup_.num_slots, setup_.prompts); }

void runner::expect_nothing_waits(std::string const& operation) const
{
  DIFFKV_EXPECTS(waiting_.empty(), operation + ": " + std::to_string(waiting_.size()) +
                                     " steps wait to be collected, none may");
}

int runner::padded(int count) noexcept
{
  if (count > 8) { return (count + 7) / 8 * 8; }
  int size = 1;
  while (size < count) { size *= 2; }
  return size;
}

std::uint64_t runner::most_pages(int num_tokens) const
{
  return llama3::most_pages(cache_->options(), num_tokens);
}

std::vector<bool> runner::admit(std::vector<prompt_request> const& prompts)
{
  std::vector<std::uint32_t> slots;
  std::vector<std::int32_t> lengths;
  for (prompt_request const& p : prompts) {
    slots.push_back(p.slot);
    lengths.push_back(static_cast<std::int32_t>(p.ids.size()));
  }
  auto const count         = static_cast<std::uint32_t>(slots.size());
  auto const device_slots  = to_device(slots, stream_);
  auto const device_length = to_device(lengths, stream_);
  prompt_batch batch;
  batch.slots   = {device_slots.data(), nullptr, count};
  batch.lengths = device_length.data();
  cache_->admit(batch, {refusals_.data(), refusals_.data() + 1}, stream_);
  std::vector<std::uint32_t> const refused = to_host(refusals_.data(), count + 1u, stream_);
  std::vector<bool> admitted(prompts.size(), true);
  for (std::uint32_t i = 0; i < refused[0]; ++i) { admitted[refused[i + 1]] = false; }
  return admitted;
}

std::vector<std::optional<token_id>> runner::read_prompts(
  std::vector<prompt_request> const& prompts, progress_callback const& progress)
{
  std::vector<std::optional<token_id>> first(prompts.size());
  if (prompts.empty()) { return first; }
  std::size_t num_tokens = 0;
  for (prompt_request const& p : prompts) { num_tokens += p.ids.size(); }
  expect_nothing_waits("read_prompts");
  DIFFKV_EXPECTS(prompts.size() <= as_size(setup_.prompts),
                 "read_prompts: " + std::to_string(prompts.size()) + " prompts, at most " +
                   std::to_string(setup_.prompts) + " may come together");
  int const most_tokens = std::min(setup_.prompt_tokens, model_.max_tokens());
  DIFFKV_EXPECTS(num_tokens <= as_size(most_tokens),
                 "read_prompts: prompts of " + std::to_string(num_tokens) +
                   " tokens, together they may have " + std::to_string(most_tokens));
  std::vector<bool> const admitted = admit(prompts);

  std::vector<std::uint32_t> slots;
  std::vector<std::int32_t> lengths, positions, last_rows;
  std::vector<std::int64_t> first_tokens{0};
  std::vector<token_id> ids;
  std::vector<sampling> options;
  int longest = 0;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    if (!admitted[i]) { continue; }
    auto const length = static_cast<std::int32_t>(prompts[i].ids.size());
    slots.push_back(prompts[i].slot);
    lengths.push_back(length);
    options.push_back(prompts[i].how);
    for (std::int32_t t = 0; t < length; ++t) { positions.push_back(t); }
    ids.insert(ids.end(), prompts[i].ids.begin(), prompts[i].ids.end());
    first_tokens.push_back(static_cast<std::int64_t>(ids.size()));
    last_rows.push_back(static_cast<std::int32_t>(ids.size()) - 1);
    longest = std::max(longest, length);
  }
  auto const count = static_cast<int>(slots.size());
  if (count == 0) { return first; }

  auto const device_slots     = to_device(slots, stream_);
  auto const device_lengths   = to_device(lengths, stream_);
  auto const device_positions = to_device(positions, stream_);
  auto const device_last_rows = to_device(last_rows, stream_);
  auto const device_first     = to_device(first_tokens, stream_);
  auto const device_ids       = to_device(ids, stream_);
  auto const device_options   = to_device(options, stream_);
  prompt_batch batch;
  batch.slots        = {device_slots.data(), nullptr, static_cast<std::uint32_t>(count)};
  batch.lengths      = device_lengths.data();
  batch.first_tokens = device_first.data();
  batch.num_tokens   = static_cast<int>(ids.size());
  batch.longest      = longest;
  model_.run(
    {batch.num_tokens, device_ids.data(), device_positions.data()},
    [&](int layer, __half const* q, __half const* k, __half const* v, __half* out) {
      cache_->attend_prompt(batch, q, k, v, out, stream_);
      cache_->store_prompt(layer, batch, k, v, stream_);
    },
    progress);
  model_.logits(device_last_rows.data(), count, logits_.data());
  // The first token stands behind the prompt, at a position that is its length.
  sample(logits_.data(), count, model_.config().vocab_size, num_ids_, device_options.data(),
         device_lengths.data(), chosen_.data(), stream_);
  begin_states(device_slots.data(), count, chosen_.data(), device_lengths.data(),
               device_options.data(), {tokens_.data(), positions_.data(), options_.data()},
               stream_);
  std::vector<token_id> const chosen = to_host(chosen_.data(), as_size(count), stream_);
  std::size_t next                   = 0;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    if (admitted[i]) { first[i] = checked(chosen[next++]); }
  }
  return first;
}

void runner::run_step(int capacity)
{
  diffkv::batch_ref const batch{batch_.data() + 1, batch_.data(),
                                static_cast<std::uint32_t>(capacity)};
  diffkv::refusals_ref const refusals{refusals_.data(), refusals_.data() + 1};
  slot_states const states{tokens_.data(), positions_.data(), options_.data()};
  batch_rows const rows{ids_.data(), batch_positions_.data(), next_positions_.data(),
                        batch_options_.data()};
  load_batch(batch, states, rows, stream_);
  cache_->step(batch, refusals, stream_);
  cache_->plan(batch, stream_);
  model_.run({capacity, rows.ids, rows.positions},
             [&](int layer, __half const* q, __half const* k, __half const* v, __half* out) {
               cache_->append(layer, batch, k, v, stream_);
               cache_->attend(layer, q, out, stream_);
             });
  model_.logits(nullptr, capacity, logits_.data());
  sample(logits_.data(), capacity, model_.config().vocab_size, num_ids_, rows.options,
         rows.next_positions, chosen_.data(), stream_);
  cache_->statistics(free_pages_.data(), nullptr, stream_);
  store_batch(batch, chosen_.data(), refusals, free_pages_.data(), states,
              {reported_tokens_.data(), reported_pages_.data(), step_number_.data(),
               static_cast<std::uint32_t>(depth), static_cast<std::uint32_t>(most_rows())},
              stream_);
}

void runner::step(std::vector<std::uint32_t> const& slots)
{
  DIFFKV_EXPECTS(
    static_cast<int>(waiting_.size()) < depth,
    "step: " + std::to_string(waiting_.size()) + " steps wait to be collected, no more may");
  DIFFKV_EXPECTS(slots.size() <= as_size(setup_.num_slots),
                 "step: " + std::to_string(slots.size()) + " sequences, there are " +
                   std::to_string(setup_.num_slots) + " slots");
  if (slots != current_) {
    std::vector<std::uint32_t> batch{static_cast<std::uint32_t>(slots.size())};
    batch.insert(batch.end(), slots.begin(), slots.end());
    copy_to_device(batch, batch_.data(), stream_);  // waits: the batch does not change often
    current_ = slots;
  }
  int const capacity = std::min(padded(static_cast<int>(slots.size())), setup_.num_slots);
  if (!use_graphs_) {
    run_step(capacity);
  } else {
    std::pair const key{graph_family_, capacity};
    auto found = graphs_.find(key);
    if (found == graphs_.end()) {
      found = graphs_.emplace(key, step_graph{stream_, [&] { run_step(capacity); }}).first;
    }
    found->second.launch(stream_);
  }
  std::size_t const place = (num_collected_ + waiting_.size()) % as_size(depth);
  events_[place].record(stream_);
  waiting_.push_back(static_cast<int>(slots.size()));
}

step_result runner::collect()
{
  DIFFKV_EXPECTS(!waiting_.empty(), "collect: no step was launched");
  std::size_t const place = num_collected_ % as_size(depth);
  events_[place].wait();
  int const count = waiting_.front();
  waiting_.erase(waiting_.begin());
  ++num_collected_;
  token_id const* const tokens = reported_tokens_.data() + place * as_size(most_rows());
  step_result result;
  for (int b = 0; b < count; ++b) {
    token_id const id = tokens[b];
    result.tokens.push_back(id == step_reports::refused ? std::nullopt
                                                        : std::optional<token_id>{checked(id)});
  }
  result.free_pages = reported_pages_[place];
  return result;
}

void runner::release(std::vector<std::uint32_t> const& slots)
{
  if (slots.empty()) { return; }
  expect_nothing_waits("release");
  auto const there = to_device(slots, stream_);
  cache_->release({there.data(), nullptr, static_cast<std::uint32_t>(slots.size())}, stream_);
}

std::uint64_t runner::free_pages()
{
  cache_->statistics(free_pages_.data(), nullptr, stream_);
  return to_host(free_pages_.data(), 1, stream_).front();
}

diffkv::sequence_usage runner::usage(std::uint32_t slot)
{
  // Cleared, as what lies between the members is copied with them.
  auto all = make_cleared_array<diffkv::sequence_usage>(setup_.num_slots, stream_);
  cache_->statistics(nullptr, all.data(), stream_);
  return to_host(all.data() + slot, 1, stream_).front();
}

void runner::set_token(std::uint32_t slot, token_id id)
{
  llama3::set_token(slot, id, {tokens_.data(), positions_.data(), options_.data()}, stream_);
}

}  // namespace llama3
