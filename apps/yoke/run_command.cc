// yoke run: text from a prompt, then a report.
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <iterator>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/json.h"
#include "cli.h"
#include "engine/generate.h"
#include "model/kimi_k3_shard.h"
#include "model/model_info.h"
#include "report.h"
#include "sys/mapped_file.h"
#include "sys/process.h"
#include "terminal.h"

namespace yoke::app {
namespace {

constexpr size_t kPromptBytesMax = 64 << 20;

struct RunOptions {
  ModelOptions model;
  std::string prompt;
  std::string file;
  int64_t num_tokens = 256;
  std::optional<int64_t> context;  // else the model's
  engine::SamplingOptions sampling;
  int64_t top_k = 40;
  std::optional<int64_t> seed;  // else a random one
  CLI::Option* prompt_given = nullptr;
  CLI::Option* file_given = nullptr;
};

Result<std::string> ReadStdin() {
  std::string text;
  std::vector<char> buffer(65536);
  while (std::feof(stdin) == 0) {
    text.append(buffer.data(), std::fread(buffer.data(), 1, buffer.size(), stdin));
    if (Interrupted()) return Error(ErrorCode::kCancelled, "interrupted");
    if (std::ferror(stdin) != 0) {
      return Error(ErrorCode::kInvalidArgument,
                   std::string("cannot read the prompt from stdin: ") + std::strerror(errno));
    }
    if (text.size() > kPromptBytesMax) {
      return Error(ErrorCode::kInvalidArgument, "the prompt on stdin is longer than 64 MiB");
    }
  }
  return text;
}

Result<std::string> ReadPrompt(const RunOptions& options) {
  if (options.prompt_given->count() > 0 && options.file_given->count() > 0) {
    return Error(ErrorCode::kInvalidArgument, "give a prompt with -p or with -f, not both");
  }
  if (options.prompt_given->count() > 0) return options.prompt;
  if (options.file_given->count() > 0) return ReadTextFile(options.file, kPromptBytesMax);
  if (isatty(STDIN_FILENO) == 1) {
    return Error(ErrorCode::kInvalidArgument,
                 "no prompt: give one with -p TEXT, -f FILE or on stdin");
  }
  return ReadStdin();
}

Result<engine::GenerateOptions> MakeGenerateOptions(const RunOptions& options,
                                                    const model::KimiK3Config& config) {
  const auto context_max = static_cast<int64_t>(config.context_max);
  if (options.num_tokens < 1) {
    return Error(ErrorCode::kInvalidArgument,
                 "-n must be at least 1, but is " + std::to_string(options.num_tokens));
  }
  const int64_t context = options.context.value_or(context_max);
  if (context < 1 || context > context_max) {
    return Error(ErrorCode::kInvalidArgument, "--ctx must be 1 to the model's " +
                                                  std::to_string(context_max) + ", but is " +
                                                  std::to_string(context));
  }
  if (options.seed.value_or(0) < 0) {
    return Error(ErrorCode::kInvalidArgument,
                 "--seed must be 0 or more, but is " + std::to_string(*options.seed));
  }
  if (options.top_k < 0 || options.top_k > 1'000'000) {
    return Error(ErrorCode::kInvalidArgument,
                 "--top-k must be 0 (off) or more, but is " + std::to_string(options.top_k));
  }
  engine::GenerateOptions generate;
  generate.num_tokens = static_cast<size_t>(options.num_tokens);
  generate.context = static_cast<size_t>(context);
  generate.sampling = options.sampling;
  generate.sampling.top_k = static_cast<uint32_t>(options.top_k);
  generate.sampling.seed =
      options.seed ? static_cast<uint64_t>(*options.seed) : std::random_device{}();
  YOKE_RETURN_IF_ERROR(engine::CheckSampling(generate.sampling));
  return generate;
}

// The text goes out as it comes; with --json it waits for the object.
Status Run(const RunOptions& options) {
  YOKE_TRY(const std::string folder, ModelFolder(options.model.model));
  YOKE_TRY(const engine::GroupOptions group_options,
           MakeGroupOptions(options.model, folder, options.model.num_ranks));
  YOKE_TRY(const model::ModelInfo info, model::OpenModel(folder));
  YOKE_TRY(const engine::GenerateOptions generate, MakeGenerateOptions(options, info.config));
  YOKE_RETURN_IF_ERROR(model::ShardKimiK3(info.config, group_options.shares));
  YOKE_TRY(const std::string prompt, ReadPrompt(options));
  Result<std::vector<int>> tokens = info.tokenizer.EncodeWithSpecials(prompt);
  if (!tokens) {
    return std::move(tokens).error().Wrap(options.file.empty() ? "prompt" : options.file);
  }
  YOKE_RETURN_IF_ERROR(engine::CheckPrompt(tokens.value(), generate, info));

  YOKE_TRY(const auto group, StartGroup(group_options));
  const bool json = options.model.json;
  Status written = Ok{};
  const auto write = [&written](std::string_view text) {
    if (written) written = WriteOut(text);
    return written.has_value();
  };
  const bool tty = StdoutIsTerminal();
  if (!json && tty) write(Dim(prompt, true));
  std::string text;
  const Result<engine::GenerateReport> generated =
      engine::Generate(*group, info, tokens.value(), generate, [&](std::string_view part) {
        text += part;
        return json || write(part);
      });
  // Also before an error, which then has a line of its own.
  if (!json && (generated || tty || !text.empty())) write("\n");
  if (!generated) return generated.error();
  const engine::GenerateReport& report = generated.value();
  if (json) {
    Json object = ReportToJson(report, *group);
    object["text"] = text;
    object["seed"] = generate.sampling.seed;
    write(DumpJson(object) + "\n");
  }
  YOKE_RETURN_IF_ERROR(written);
  if (!json) std::fputs(ReportToText(report, *group, StderrIsTerminal()).c_str(), stderr);
  YOKE_RETURN_IF_ERROR(group->Stop());
  if (report.stop == engine::StopReason::kInterrupted) {
    return Error(ErrorCode::kCancelled, "interrupted");
  }
  return Ok{};
}

}  // namespace

void AddRunCommand(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<RunOptions>();  // shared: lives as long as the callback
  CLI::App* command = app.add_subcommand("run", "Continue a prompt");
  AddModelOptions(*command, options->model);
  options->prompt_given = command->add_option("-p,--prompt", options->prompt, "the prompt");
  options->file_given =
      command->add_option("-f,--file", options->file, "read the prompt from a file");
  command->add_option("-n,--tokens", options->num_tokens, "tokens to generate (default 256)");
  command->add_option("--ranks", options->model.num_ranks,
                      "rank processes that share the model, 1 to 8 (default 1)");
  command->add_option("--ctx", options->context, "positions at most (default: the model's limit)");
  command->add_option("--temp", options->sampling.temperature,
                      "0: always the likeliest token (default 0.8)");
  command->add_option("--top-k", options->top_k,
                      "choose among the K likeliest; 0: all (default 40)");
  command->add_option("--top-p", options->sampling.top_p,
                      "choose among the likeliest that reach P together (default 0.95)");
  command->add_option("--min-p", options->sampling.min_p,
                      "leave out tokens less likely than P times the likeliest (default 0)");
  command->add_option("--seed", options->seed, "the same seed gives the same text");
  command->footer(
      "Examples:\n"
      "  yoke run -p \"And it came to pass\" -n 60\n"
      "  yoke run models/demo-k3 --ranks 2 --temp 0 -f prompt.txt\n"
      "  echo \"The LORD said\" | yoke run --json --seed 1");
  command->callback([options, &exit_code] {
    const Status status = Run(*options);
    exit_code = status ? kExitOk : Fail(status.error());
  });
}

}  // namespace yoke::app
