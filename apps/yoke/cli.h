// What every command shares: how options are read, how errors end the program, how it prints.
#pragma once

#include <CLI/CLI.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "engine/rank_group.h"
#include "engine/rank_options.h"
#include "model/weight_loader.h"

namespace yoke::app {

constexpr int kExitOk = 0;
constexpr int kExitFailed = 1;    // it was tried and went wrong: a rank died, results differ
constexpr int kExitBadInput = 2;  // a file, an option or a prompt that can never work
constexpr int kExitInterrupted = 130;

// One line "yoke: ..." on stderr, whatever the message holds; the exit code that fits.
int Fail(const Error& error);

// The options of every command that runs a model.
struct ModelOptions {
  std::string model;  // folder; empty: the demo model
  std::string trunk = "native";
  std::string backend = "cpu";
  int64_t num_ranks = 1;
  std::optional<int64_t> num_threads;  // of each rank; else the cores, divided by the ranks
  int64_t chunk = 256;                 // prompt tokens in a step
  bool json = false;
};
void AddModelOptions(CLI::App& command, ModelOptions& options);
void AddModelArgument(CLI::App& command, std::string& model);

// The folder to use: as given, or the demo model where it is installed or built.
Result<std::string> ModelFolder(const std::string& model);
// Options that are checked; every error names its option.
Status CheckRanks(int64_t num_ranks);
Result<model::TrunkFormat> ParseTrunk(const std::string& trunk);
Result<engine::GroupOptions> MakeGroupOptions(const ModelOptions& options,
                                              const std::string& folder, int64_t num_ranks);
// Starts the ranks, with a progress bar on a terminal.
Result<std::unique_ptr<engine::RankGroup>> StartGroup(const engine::GroupOptions& options);

// Each command adds itself and, when chosen, leaves its exit code.
void AddRunCommand(CLI::App& app, int& exit_code);
void AddInspectCommand(CLI::App& app, int& exit_code);
void AddEvalCommand(CLI::App& app, int& exit_code);
void AddVerifyCommand(CLI::App& app, int& exit_code);
// Not for people: the process of one rank.
void AddRankCommand(CLI::App& app, int& exit_code);

}  // namespace yoke::app
