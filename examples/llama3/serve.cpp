// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/serve.hpp"

#include "llama3/chat_template.hpp"
#include "llama3/generate.hpp"  // check_prompt
#include "llama3/time_account.hpp"
#include "llama3/utf8_stream.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>  // max, min
#include <optional>
#include <stdexcept>  // invalid_argument

namespace llama3 {
namespace {

[[nodiscard]] std::string text_of(std::vector<token_id> const& ids, tokenizer const& words)
{
  utf8_stream stream;
  std::string text;
  for (token_id const id : ids) {
    if (!words.is_control(id)) { text += stream.push(words.token_bytes(id)); }
  }
  return text + stream.finish();
}

[[nodiscard]] sampling sampling_of(sampler_options const& options)
{
  sampling how;
  how.temperature = static_cast<float>(options.temperature);
  how.top_p       = static_cast<float>(options.top_p);
  how.seed        = options.seed;
  return how;
}

}  // namespace

std::vector<generation_request> make_requests(program_options const& options,
                                              tokenizer const& words, int context)
{
  std::optional<chat_template> chat;
  if (!options.raw) { chat = load_chat_template(options.model, words); }
  std::vector<generation_request> requests;
  for (std::string const& text : options.requests) {
    generation_request r;
    r.id         = requests.size() + 1;
    r.prompt     = chat ? chat->render(words, text) : words.with_bos(words.encode(text));
    r.max_tokens = options.max_tokens;
    r.how        = sampling_of(options.sampling);
    r.how.seed += requests.size();  // equal prompts get answers of their own
    try {
      check_prompt(r.prompt.size() + 1, {options.max_tokens, context});
    } catch (std::invalid_argument const&) {
      throw std::invalid_argument(
        fmt::format("prompt {}: its {} tokens leave no room for an answer in a context of {}", r.id,
                    r.prompt.size(), context));
    }
    requests.push_back(std::move(r));
  }
  return requests;
}

int longest_sequence(std::vector<generation_request> const& requests, int context)
{
  int longest = 0;
  for (generation_request const& r : requests) {
    auto const prompt = static_cast<int>(r.prompt.size());
    int const fresh   = std::max(1, r.max_tokens);
    longest           = std::max(longest, fresh < context - prompt ? prompt + fresh : context);
  }
  return longest;
}

double serving_report::tokens_per_second() const
{
  return seconds > 0.0 ? new_tokens / seconds : 0.0;
}

serving_report serve(batch_runner& runs, tokenizer const& words,
                     std::vector<token_id> const& stop_ids,
                     std::vector<generation_request> const& requests,
                     std::function<void(request_answer const&)> const& on_answer)
{
  serving_report report;
  report.requests = static_cast<int>(requests.size());
  report.slots    = runs.num_slots();
  report.pages    = runs.num_pages();
  scheduler_callbacks callbacks;
  callbacks.on_finish = [&](served_request const& served) {
    auto const count = static_cast<int>(served.tokens.size());
    report.new_tokens += count;
    report.no_memory += served.reason == request_end::no_memory ? 1 : 0;
    on_answer({served.id, text_of(served.tokens, words), served.reason, count, served.preemptions});
  };
  scheduler batch{runs, stop_ids, callbacks};
  for (generation_request const& r : requests) {
    report.prompt_tokens += static_cast<int>(r.prompt.size());
    batch.submit(r);
  }
  {
    timed const clock{report.seconds};
    while (batch.advance()) {}
  }
  report.peak_batch  = batch.peak_running();
  report.steps       = batch.steps();
  report.preemptions = batch.preemptions();
  return report;
}

std::string as_text(request_answer const& a)
{
  std::string head = fmt::format("[{}] {} tokens, {}", a.id, a.new_tokens, name_of(a.reason));
  if (a.preemptions > 0) { head += fmt::format(", preempted {} times", a.preemptions); }
  return head + "\n" + a.text + "\n";
}

std::string as_text(serving_report const& r)
{
  std::string text = fmt::format(
    "\ndiffkv: {} requests, {} prompt tokens, {} new tokens in {:.2f} s: {:.1f} tokens/s\n",
    r.requests, r.prompt_tokens, r.new_tokens, r.seconds, r.tokens_per_second());
  text += fmt::format("  {:<16} {}\n", "device", r.device);
  text += fmt::format("  {:<16} {} in a pool of {} pages\n", "formats", r.formats, r.pages);
  text += fmt::format("  {:<16} {} at the same time, in {} slots; {} steps\n", "sequences",
                      r.peak_batch, r.slots, r.steps);
  text += fmt::format("  {:<16} {}; {} answers ended for want of memory\n", "preemptions",
                      r.preemptions, r.no_memory);
  return text;
}

std::string as_json(request_answer const& a)
{
  return nlohmann::json{{"index", a.id},
                        {"text", a.text},
                        {"finish", std::string{name_of(a.reason)}},
                        {"new_tokens", a.new_tokens},
                        {"preemptions", a.preemptions}}
    .dump();
}

std::string as_json(serving_report const& r)
{
  return nlohmann::json{{"device", r.device},
                        {"formats", r.formats},
                        {"requests", r.requests},
                        {"no_memory", r.no_memory},
                        {"prompt_tokens", r.prompt_tokens},
                        {"new_tokens", r.new_tokens},
                        {"seconds", r.seconds},
                        {"tokens_per_second", r.tokens_per_second()},
                        {"slots", r.slots},
                        {"peak_batch", r.peak_batch},
                        {"steps", r.steps},
                        {"preemptions", r.preemptions},
                        {"pages", r.pages}}
    .dump();
}

}  // namespace llama3
