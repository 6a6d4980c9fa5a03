// yoke verify: proof, on the user's own model and machine, that neither the number of ranks nor the
// way a prompt is cut or batched changes what the model says.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "cli.h"
#include "engine/teacher_force.h"
#include "model/kimi_k3_shard.h"
#include "model/model_info.h"
#include "sys/process.h"
#include "terminal.h"

namespace yoke::app {
namespace {

// Ours; long enough for the longest case.
constexpr std::string_view kText =
    "In the morning four machines stood on one table, and none of them could hold the whole of "
    "the work. So they took a yoke, and each of them drew a part of the weight: the first took the "
    "first rows, and the second took the second rows, and the third and the fourth took what was "
    "left. And when each had drawn its part they laid the parts together, always in the same "
    "order, so that the sum was one sum and not four. Then said the first machine, How shall we "
    "know that the sum is right? And the second answered, Let one of us do the work alone, and "
    "let us see whether the words are the same. And they did so, for short words and for long "
    "words, for words given at once and for words given a few at a time, for one question and for "
    "many questions together; and the words were the same. And the third machine said, It is "
    "good; but if one of us should fall by the way, let the others say so, and not wait for ever. "
    "And it was so. ";

struct VerifyOptions {
  ModelOptions model;
  std::string ranks = "1,2,3,4";
  double bound = engine::kLogitBound;
};

struct Variant {
  const char* name;
  engine::ForceOptions options;
};

struct Line {
  std::string name;
  engine::Comparison comparison;
  const char* Verdict() const {
    return comparison.bitwise ? "bitwise" : comparison.Agree() ? "agree" : "differ";
  }
};

using Logits = std::vector<std::vector<float>>;

Result<std::vector<int64_t>> ParseRanks(const std::string& text) {
  std::vector<int64_t> ranks;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    int64_t value = 0;
    const auto [stop, error] = std::from_chars(text.data() + begin, text.data() + end, value);
    if (error != std::errc() || stop != text.data() + end) {
      return Error(ErrorCode::kInvalidArgument,
                   "--ranks must be numbers like 1,2,4, but is " + text);
    }
    ranks.push_back(value);
    begin = end + 1;
  }
  return ranks;
}

constexpr size_t kPromptLens[] = {1, 5, 16, 33, 100, 190};  // around the cuts
constexpr int64_t kChunkMin = 192;  // of --chunk, so that a whole prompt fits a step

// Prompts of several lengths, each with some tokens to decode.
std::vector<engine::Script> MakeScripts(const std::vector<int>& tokens, size_t context_max) {
  constexpr size_t kDecoded = 12;
  std::vector<engine::Script> scripts;
  for (const size_t prompt_len : kPromptLens) {
    const size_t length = std::min({prompt_len + kDecoded, tokens.size(), context_max});
    if (length < 2) continue;
    const auto begin =
        tokens.begin() + static_cast<std::ptrdiff_t>(scripts.size() % (tokens.size() - length + 1));
    scripts.push_back({.tokens = {begin, begin + static_cast<std::ptrdiff_t>(length)},
                       .prompt_len = std::min(prompt_len, length - 1)});
  }
  return scripts;
}

engine::Comparison CompareAll(const Logits& reference, const Logits& other, size_t vocab_size,
                              double bound) {
  engine::Comparison comparison;
  for (size_t i = 0; i < reference.size(); ++i) {
    engine::Compare(reference[i], other[i], vocab_size, bound, comparison);
  }
  return comparison;
}

std::string ToText(const Line& line, bool tty) {
  const engine::Comparison& c = line.comparison;
  std::string name = line.name;
  name.resize(std::max<size_t>(name.size(), 44), ' ');
  std::string out = name + "  largest logit difference ";
  char diff[32];
  std::snprintf(diff, sizeof(diff), "%9.2e", c.diff_max);
  out += std::string(diff) + "  " + Bold(line.Verdict(), tty);
  if (c.num_argmax_differ > 0) {
    out += " (" + std::to_string(c.num_argmax_differ) + " of " + std::to_string(c.num_positions) +
           " positions choose another token, " + std::to_string(c.num_near_ties) +
           " of them near-ties)";
  }
  return out + "\n";
}

class Verifier {
 public:
  Verifier(const VerifyOptions& options, size_t vocab_size, std::vector<engine::Script> scripts)
      : options_(options), vocab_size_(vocab_size), scripts_(std::move(scripts)) {}

  // All variants with one number of ranks.
  Status RunRanks(const std::string& folder, int64_t num_ranks) {
    YOKE_TRY(const engine::GroupOptions group_options,
             MakeGroupOptions(options_.model, folder, num_ranks));
    YOKE_TRY(const auto group, StartGroup(group_options));
    const auto whole = static_cast<size_t>(options_.model.chunk);
    const Variant variants[] = {
        {"one at a time, whole prompts", {.chunk = whole, .together = false}},
        {"one at a time, prompts cut at 16", {.chunk = 16, .together = false}},
        {"one at a time, prompts cut at 64", {.chunk = 64, .together = false}},
        {"all in one step, prompts cut at 16", {.chunk = 16, .together = true}},
    };
    const std::string ranks =
        std::to_string(num_ranks) + (num_ranks == 1 ? " rank,  " : " ranks, ");
    Logits base;
    for (const Variant& variant : variants) {
      YOKE_TRY(Logits logits, engine::TeacherForce(*group, scripts_, variant.options));
      if (Interrupted()) return Error(ErrorCode::kCancelled, "interrupted");
      if (base.empty()) {
        base = std::move(logits);
        if (first_.empty()) {
          first_ = base;
          first_ranks_ = num_ranks;
          continue;
        }
        YOKE_RETURN_IF_ERROR(Report({ranks + "against " + std::to_string(first_ranks_),
                                     CompareAll(first_, base, vocab_size_, options_.bound)},
                                    /*must_be_bitwise=*/false));
        continue;
      }
      YOKE_RETURN_IF_ERROR(
          Report({ranks + variant.name, CompareAll(base, logits, vocab_size_, options_.bound)},
                 /*must_be_bitwise=*/true));
    }
    return group->Stop();
  }

  bool passed() const { return passed_; }
  const Json& lines() const { return lines_; }

 private:
  Status Report(const Line& line, bool must_be_bitwise) {
    const engine::Comparison& c = line.comparison;
    passed_ &= c.bitwise || (c.Agree() && !must_be_bitwise);
    lines_.push_back({{"case", line.name},
                      {"verdict", line.Verdict()},
                      {"expected", must_be_bitwise ? "bitwise" : "agree"},
                      {"diff_max", c.diff_max},
                      {"positions", c.num_positions},
                      {"argmax_differ", c.num_argmax_differ},
                      {"near_ties", c.num_near_ties}});
    return options_.model.json ? Status(Ok{}) : WriteOut(ToText(line, StdoutIsTerminal()));
  }

  const VerifyOptions& options_;
  const size_t vocab_size_;
  const std::vector<engine::Script> scripts_;
  Logits first_;
  int64_t first_ranks_ = 0;
  bool passed_ = true;
  Json lines_ = Json::array();
};

// True when everything is as it must be.
Result<bool> Verify(const VerifyOptions& options) {
  YOKE_TRY(const std::vector<int64_t> ranks, ParseRanks(options.ranks));
  YOKE_TRY(const std::string folder, ModelFolder(options.model.model));
  YOKE_TRY(const model::ModelInfo info, model::OpenModel(folder));
  for (const int64_t num_ranks : ranks) {  // before anything runs
    YOKE_TRY(const engine::GroupOptions group_options,
             MakeGroupOptions(options.model, folder, num_ranks));
    YOKE_RETURN_IF_ERROR(model::ShardKimiK3(info.config, group_options.shares));
  }
  if (!(options.bound > 0 && std::isfinite(options.bound))) {
    return Error(ErrorCode::kInvalidArgument, "--bound must be above 0");
  }
  if (options.model.chunk < kChunkMin) {
    return Error(ErrorCode::kInvalidArgument, "--chunk must be at least " +
                                                  std::to_string(kChunkMin) +
                                                  " here, so that whole prompts fit, but is " +
                                                  std::to_string(options.model.chunk));
  }
  YOKE_TRY(const std::vector<int> tokens, info.tokenizer.Encode(kText));
  Verifier verifier(options, info.config.vocab_size, MakeScripts(tokens, info.config.context_max));
  for (const int64_t num_ranks : ranks) {
    YOKE_RETURN_IF_ERROR(verifier.RunRanks(folder, num_ranks));
  }
  if (options.model.json) {
    const Json json = {
        {"passed", verifier.passed()}, {"bound", options.bound}, {"cases", verifier.lines()}};
    YOKE_RETURN_IF_ERROR(WriteOut(DumpJson(json) + "\n"));
  } else {
    YOKE_RETURN_IF_ERROR(WriteOut(verifier.passed() ? "verified\n" : "NOT verified\n"));
  }
  return verifier.passed();
}

}  // namespace

void AddVerifyCommand(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<VerifyOptions>();  // shared: lives as long as the callback
  CLI::App* command = app.add_subcommand(
      "verify", "Prove that ranks, prompt cuts and batching do not change the result");
  AddModelOptions(*command, options->model);
  command->add_option("--ranks", options->ranks, "rank counts to compare (default 1,2,3,4)");
  command->add_option("--bound", options->bound,
                      "largest logit difference expected between rank counts (default 0.001)");
  command->footer(
      "With one number of ranks, results must be the same bits. Between rank counts they must\n"
      "agree: every position chooses the same token, but for near-ties (top-2 gap below 4 x\n"
      "bound) at no more than 1 % of the positions. Exit code 1 otherwise.\n"
      "Example:\n"
      "  yoke verify MODEL --ranks 1,2,4");
  command->callback([options, &exit_code] {
    const Result<bool> passed = Verify(*options);
    exit_code = !passed ? Fail(passed.error()) : passed.value() ? kExitOk : kExitFailed;
  });
}

}  // namespace yoke::app
