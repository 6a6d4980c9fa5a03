// yoke eval: perplexity and bits per byte of a text.
#include <cmath>
#include <memory>
#include <string>

#include "base/json.h"
#include "cli.h"
#include "engine/teacher_force.h"
#include "model/kimi_k3_shard.h"
#include "model/model_info.h"
#include "sys/mapped_file.h"
#include "sys/process.h"
#include "terminal.h"

namespace yoke::app {
namespace {

constexpr size_t kTextBytesMax = size_t{1} << 30;

struct EvalOptions {
  ModelOptions model;
  std::string file;
  int64_t window = 512;
};

Status Eval(const EvalOptions& options) {
  YOKE_TRY(const std::string folder, ModelFolder(options.model.model));
  YOKE_TRY(const engine::GroupOptions group_options,
           MakeGroupOptions(options.model, folder, options.model.num_ranks));
  YOKE_TRY(const model::ModelInfo info, model::OpenModel(folder));
  const auto context_max = static_cast<int64_t>(info.config.context_max);
  if (options.window < 2 || options.window > context_max) {
    return Error(ErrorCode::kInvalidArgument, "--window must be 2 to the model's context " +
                                                  std::to_string(context_max) + ", but is " +
                                                  std::to_string(options.window));
  }
  YOKE_RETURN_IF_ERROR(model::ShardKimiK3(info.config, group_options.shares));
  YOKE_TRY(const std::string text, ReadTextFile(options.file, kTextBytesMax));
  Result<std::vector<int>> tokens = info.tokenizer.Encode(text);
  if (!tokens) return std::move(tokens).error().Wrap(options.file);
  if (tokens.value().size() < 2) {
    return Error(ErrorCode::kInvalidArgument,
                 options.file + " has fewer than two tokens: nothing to score");
  }

  YOKE_TRY(const auto group, StartGroup(group_options));
  ProgressBar bar("scoring");
  YOKE_TRY(const engine::Perplexity perplexity,
           engine::ScoreText(*group, tokens.value(), static_cast<size_t>(options.window),
                             [&bar](size_t done, size_t total) {
                               bar.Show(static_cast<double>(done) / static_cast<double>(total),
                                        Grouped(done) + " of " + Grouped(total) + " tokens");
                               return !Interrupted();
                             }));
  YOKE_RETURN_IF_ERROR(group->Stop());

  // The unscored first tokens of windows count as bytes by their share of the tokens.
  const double scored_share =
      static_cast<double>(perplexity.num_tokens) / static_cast<double>(tokens.value().size());
  const double bits_per_byte =
      perplexity.nll_sum / std::log(2.0) / (static_cast<double>(text.size()) * scored_share);
  const double tokens_per_second = static_cast<double>(perplexity.num_tokens) / perplexity.seconds;
  if (options.model.json) {
    const Json json = {{"perplexity", perplexity.Value()},
                       {"bits_per_byte", bits_per_byte},
                       {"bits_per_token", perplexity.BitsPerToken()},
                       {"nll_sum", perplexity.nll_sum},
                       {"scored_tokens", perplexity.num_tokens},
                       {"bytes", text.size()},
                       {"window", options.window},
                       {"tokens_per_s", tokens_per_second}};
    return WriteOut(DumpJson(json) + "\n");
  }
  return WriteOut("perplexity     " + Fixed(perplexity.Value(), 4) + " a token\n" +
                  "bits per byte  " + Fixed(bits_per_byte, 4) + "\n" + "scored         " +
                  Grouped(perplexity.num_tokens) + " tokens of " + Grouped(text.size()) +
                  " bytes, windows of " + std::to_string(options.window) + "\n" +
                  "speed          " + Fixed(tokens_per_second, 1) + " tokens/s\n");
}

}  // namespace

void AddEvalCommand(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<EvalOptions>();  // shared: lives as long as the callback
  CLI::App* command = app.add_subcommand("eval", "Perplexity and bits per byte of a text");
  AddModelOptions(*command, options->model);
  command->add_option("--text", options->file, "the text file")->required();
  command->add_option("--ranks", options->model.num_ranks, "rank processes, 1 to 8 (default 1)");
  command->add_option("--window", options->window,
                      "tokens scored together, each window from a fresh state (default 512)");
  command->footer(
      "Example:\n"
      "  yoke eval models/demo-k3 --text tests/golden/heldout.txt --ranks 2");
  command->callback([options, &exit_code] {
    const Status status = Eval(*options);
    exit_code = status ? kExitOk : Fail(status.error());
  });
}

}  // namespace yoke::app
