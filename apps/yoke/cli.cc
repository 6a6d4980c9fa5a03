#include "cli.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <utility>

#include "fabric/board.h"
#include "sys/process.h"
#include "terminal.h"

namespace yoke::app {
namespace {

Error BadOption(const std::string& name, const std::string& expected, const std::string& came) {
  return Error(ErrorCode::kInvalidArgument, name + " must be " + expected + ", but is " + came);
}

// Messages repeat what files and users say; on a terminal that must stay one line of text.
std::string OneLine(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < ' ' || c == 127) c = '?';
  }
  return text;
}

}  // namespace

int Fail(const Error& error) {
  std::fprintf(stderr, "yoke: %s\n", OneLine(error.message()).c_str());
  switch (error.code()) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kNotFound:
    case ErrorCode::kCorrupt:
    case ErrorCode::kUnsupported:
      return kExitBadInput;
    case ErrorCode::kCancelled:
      return kExitInterrupted;
    case ErrorCode::kUnavailable:
    case ErrorCode::kDeadlineExceeded:
      return kExitFailed;
  }
  return kExitFailed;
}

void AddModelArgument(CLI::App& command, std::string& model) {
  command.add_option("MODEL", model,
                     "folder with config.json, safetensors and tiktoken.model\n"
                     "(none: the demo model that comes with yoke)");
}

void AddModelOptions(CLI::App& command, ModelOptions& options) {
  AddModelArgument(command, options.model);
  command.add_option("--threads", options.num_threads,
                     "threads of each rank (default: the cores, divided by the ranks)");
  command.add_option("--chunk", options.chunk,
                     "prompt tokens in one step, a multiple of 16 (default 256)");
  command.add_option("--trunk", options.trunk,
                     "weights outside the experts: native (as stored) or q8_0");
  command.add_option("--backend", options.backend,
                     "cpu (fast) or reference (slow, double precision)");
  command.add_flag("--json", options.json, "print one JSON object instead of text");
}

Result<std::string> ModelFolder(const std::string& model) {
  if (!model.empty()) return model;
  std::vector<std::string> candidates = {"models/demo-k3"};
  if (Result<std::string> self = SelfPath(); self) {
    const std::filesystem::path folder = std::filesystem::path(self.value()).parent_path();
    candidates.push_back((folder / "../share/yoke/models/demo-k3").lexically_normal());
    // build/PRESET/apps/yoke/yoke in a checkout
    candidates.push_back((folder / "../../../../models/demo-k3").lexically_normal());
  }
  for (const std::string& candidate : candidates) {
    std::error_code ignored;
    if (std::filesystem::exists(candidate + "/config.json", ignored)) return candidate;
  }
  return Error(ErrorCode::kNotFound, "the demo model is not where it should be (" +
                                         candidates.back() + "); name a model folder");
}

Status CheckRanks(int64_t num_ranks) {
  if (num_ranks >= 1 && num_ranks <= fabric::kRanksMax) return Ok{};
  return BadOption("--ranks", "1 to " + std::to_string(fabric::kRanksMax),
                   std::to_string(num_ranks));
}

Result<model::TrunkFormat> ParseTrunk(const std::string& trunk) {
  if (trunk == "native") return model::TrunkFormat::kAsStored;
  if (trunk == "q8_0") return model::TrunkFormat::kQ8_0;
  return BadOption("--trunk", "native or q8_0", trunk);
}

Result<engine::GroupOptions> MakeGroupOptions(const ModelOptions& options,
                                              const std::string& folder, int64_t num_ranks) {
  YOKE_RETURN_IF_ERROR(CheckRanks(num_ranks));
  const int64_t threads =
      options.num_threads.value_or(std::max<int64_t>(1, NumCores() / num_ranks));
  if (threads < 1 || threads > 256) {
    return BadOption("--threads", "1 to 256", std::to_string(threads));
  }
  if (options.chunk < 16 || options.chunk > 65536 || options.chunk % 16 != 0) {
    return BadOption("--chunk", "a multiple of 16 from 16 to 65536", std::to_string(options.chunk));
  }
  YOKE_TRY(const model::TrunkFormat trunk, ParseTrunk(options.trunk));
  if (options.backend != "cpu" && options.backend != "reference") {
    return BadOption("--backend", "cpu or reference", options.backend);
  }
  return engine::GroupOptions{.model_folder = folder,
                              .shares = std::vector<size_t>(static_cast<size_t>(num_ranks), 1),
                              .threads_per_rank = static_cast<size_t>(threads),
                              .tokens_max = static_cast<size_t>(options.chunk),
                              .trunk = trunk,
                              .backend = options.backend == "reference"
                                             ? engine::BackendKind::kReference
                                             : engine::BackendKind::kCpu};
}

Result<std::unique_ptr<engine::RankGroup>> StartGroup(const engine::GroupOptions& options) {
  YOKE_TRY(const std::string self, SelfPath());
  ProgressBar bar("loading");
  return engine::RankGroup::Start(
      self, options,
      {.on_progress =
           [&bar](const engine::LoadProgress& progress) {
             bar.Show(static_cast<double>(progress.loaded_bytes) /
                          static_cast<double>(std::max<uint64_t>(1, progress.total_bytes)),
                      FormatBytes(progress.loaded_bytes));
           },
       .on_spawned = nullptr});
}

}  // namespace yoke::app
