// The command line as a user meets it: help, options that cannot work, prompts, output, Ctrl-C.
#include <sys/ioctl.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/json.h"
#include "integration/model_copy.h"
#include "integration/run_yoke.h"

namespace yoke::integration {
namespace {

using Args = std::vector<std::string>;

// `yoke COMMAND DEMO MORE...`
Args Demo(const std::string& command, const Args& more = {}) {
  Args args = {command, DemoFolder()};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

Args operator+(Args a, const Args& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

struct Refusal {
  Args args;
  std::vector<std::string> named;
};

void ExpectEachRefused(const std::vector<Refusal>& refusals) {
  for (const Refusal& refusal : refusals) {
    std::string line;
    for (const std::string& arg : refusal.args) line += arg + " ";
    SCOPED_TRACE(line);
    ExpectRefused(RunYoke(refusal.args), refusal.named);
  }
}

// ---- Help ----

// The names below "Subcommands:" of yoke --help.
Args Commands() {
  std::istringstream help(RunYoke({"--help"}).out);
  Args commands;
  bool listed = false;
  for (std::string line; std::getline(help, line);) {
    if (listed && line.starts_with("  ")) commands.push_back(line.substr(2, line.find(' ', 2) - 2));
    listed |= line == "Subcommands:";
  }
  return commands;
}

TEST(CliTest, HelpOfEveryCommandHasAnExample) {
  Args commands = Commands();
  for (const char* command : {"run", "inspect", "eval", "verify"}) {
    EXPECT_NE(std::find(commands.begin(), commands.end(), command), commands.end()) << command;
  }
  EXPECT_EQ(std::find(commands.begin(), commands.end(), "rank"), commands.end());
  commands.push_back("");
  for (const std::string& command : commands) {
    SCOPED_TRACE(command);
    const Outcome help = RunYoke(command.empty() ? Args{"--help"} : Args{command, "--help"});
    EXPECT_EQ(help.exit_code, 0);
    EXPECT_EQ(help.err, "");
    EXPECT_NE(help.out.find("Example"), std::string::npos) << help.out;
    EXPECT_NE(help.out.find("yoke " + command), std::string::npos) << help.out;
  }
}

TEST(CliTest, SaysItsVersion) {
  const Outcome version = RunYoke({"--version"});
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_TRUE(version.out.starts_with("yoke ")) << version.out;
  EXPECT_EQ(version.err, "");
}

// ---- Options that cannot work ----

TEST(CliTest, UnknownCommandsAndOptionsAreNamed) {
  ExpectEachRefused({{{}, {"--help"}},
                     {{"frobnicate"}, {"frobnicate"}},
                     {{"--frobnicate"}, {"frobnicate"}},
                     {{"run", "--frobnicate"}, {"--frobnicate"}},
                     {{"run", "one", "two"}, {"two"}},
                     {Demo("eval"), {"--text"}},
                     {{"run", "--bad\n\x1b[2J"}, {"--bad"}}});
}

TEST(CliTest, NumbersOutsideTheirLimitsAreRefusedByName) {
  const Args run = Demo("run", {"-p", "And"});
  ExpectEachRefused({
      {run + Args{"--ranks", "0"}, {"--ranks", "1 to 8", "0"}},
      {run + Args{"--ranks", "9"}, {"--ranks", "1 to 8", "9"}},
      {run + Args{"--ranks", "-1"}, {"--ranks", "-1"}},
      {run + Args{"--ranks", "two"}, {"--ranks", "two"}},
      {run + Args{"--threads", "0"}, {"--threads", "0"}},
      {run + Args{"--threads", "-1"}, {"--threads", "-1"}},
      {run + Args{"--threads", "257"}, {"--threads", "257"}},
      {run + Args{"--chunk", "7"}, {"--chunk", "16", "7"}},
      {run + Args{"--chunk", "0"}, {"--chunk"}},
      {run + Args{"--chunk", "1048576"}, {"--chunk"}},
      {run + Args{"--ctx", "0"}, {"--ctx", "0"}},
      {run + Args{"--ctx", "-5"}, {"--ctx", "-5"}},
      {run + Args{"--ctx", "1000000"}, {"--ctx", "1000000"}},
      {run + Args{"-n", "0"}, {"-n", "0"}},
      {run + Args{"--temp", "-0.5"}, {"--temp", "-0.5"}},
      {run + Args{"--temp", "nan"}, {"--temp", "nan"}},
      {run + Args{"--temp", "hot"}, {"--temp", "hot"}},
      {run + Args{"--top-p", "0"}, {"--top-p"}},
      {run + Args{"--top-p", "1.5"}, {"--top-p", "1.5"}},
      {run + Args{"--top-p", "nan"}, {"--top-p", "nan"}},
      {run + Args{"--min-p", "2"}, {"--min-p", "2"}},
      {run + Args{"--top-k", "-1"}, {"--top-k", "-1"}},
      {run + Args{"--seed", "-1"}, {"--seed", "-1"}},
      {run + Args{"--trunk", "q4"}, {"--trunk", "q4"}},
      {run + Args{"--backend", "gpu"}, {"--backend", "gpu"}},
      {Demo("inspect", {"--ranks", "9"}), {"--ranks", "9"}},
      {Demo("inspect", {"--trunk", "q4"}), {"--trunk", "q4"}},
      {Demo("verify", {"--ranks", ""}), {"--ranks"}},
      {Demo("verify", {"--ranks", "1,x"}), {"--ranks", "1,x"}},
      {Demo("verify", {"--ranks", "1,9"}), {"--ranks", "9"}},
      {Demo("verify", {"--bound", "0"}), {"--bound"}},
      {Demo("verify", {"--bound", "nan"}), {"--bound"}},
  });
}

// ---- Prompts and texts ----

TEST(CliTest, PromptsThatCannotWorkAreRefused) {
  const model::TempFolder folder;
  folder.Write("empty", "");
  folder.Write("latin1", "caf\xE9 noir");
  std::string text;
  for (int i = 0; i < 5000; ++i) text += "word ";
  folder.Write("long", text);
  ExpectEachRefused({
      {Demo("run", {"-p", ""}), {"prompt is empty"}},
      {Demo("run", {"-f", folder.PathOf("empty")}), {"prompt is empty"}},
      {Demo("run"), {"prompt is empty"}},  // from stdin
      {Demo("run", {"-p", "caf\xE9 noir"}), {"UTF-8", "prompt", "offset 3"}},
      {Demo("run", {"-f", folder.PathOf("latin1")}),
       {"UTF-8", folder.PathOf("latin1"), "offset 3"}},
      {Demo("run", {"-f", folder.PathOf("none")}), {folder.PathOf("none"), "No such file"}},
      {Demo("run", {"-f", folder.path()}), {folder.path()}},
      {Demo("run", {"-p", "a", "-f", folder.PathOf("long")}), {"-p", "-f"}},
      {Demo("run", {"-p", "one two three four", "--ctx", "3"}), {"--ctx", "the context is 3"}},
      {Demo("run", {"-f", folder.PathOf("long")}), {"--ctx", "4096"}},
      {Demo("eval", {"--text", folder.PathOf("none")}), {folder.PathOf("none"), "No such file"}},
      {Demo("eval", {"--text", folder.path()}), {folder.path()}},
      {Demo("eval", {"--text", folder.PathOf("empty")}), {folder.PathOf("empty"), "two tokens"}},
      {Demo("eval", {"--text", folder.PathOf("latin1")}), {folder.PathOf("latin1"), "UTF-8"}},
      {Demo("eval", {"--text", folder.PathOf("long"), "--window", "1"}), {"--window", "1"}},
      {Demo("eval", {"--text", folder.PathOf("long"), "--window", "9999"}), {"--window", "9999"}},
  });
  ExpectRefused(RunYoke(Demo("run"), "caf\xE9 noir"), {"UTF-8", "prompt"});
  ExpectRefused(RunYoke(Demo("run", {"--ctx", "3"}), "one two three four"), {"--ctx"});
}

// ---- Output ----

TEST(CliTest, OutputThatCannotBeWrittenIsAnError) {
  const model::TempFolder folder;
  folder.Write("text", "In the beginning God created the heaven and the earth.");
  const Args cases[] = {
      {"--help"},
      {"run", "--help"},
      {"--version"},
      Demo("inspect"),
      Demo("inspect", {"--json"}),
      Demo("run", {"-p", "And", "-n", "3"}),
      Demo("run", {"-p", "And", "-n", "3", "--json"}),
      Demo("eval", {"--text", folder.PathOf("text")}),
  };
  for (const Args& args : cases) {
    SCOPED_TRACE(args.front() + " " + args.back());
    if (std::filesystem::exists("/dev/full")) {
      ExpectRefused(RunYoke(args, "", "/dev/full"), {"cannot write", "No space left"});
    }
    ExpectRefused(RunYoke(args, "", "-"), {"cannot write"});  // closed
  }
}

TEST(CliTest, AReaderThatLeavesEndsTheRun) {
  for (const char* ranks : {"1", "2"}) {
    YokeProcess run({.args = Demo("run", {"-p", "And", "-n", "100000", "--ranks", ranks})});
    ASSERT_TRUE(run.WaitForOutput(4));
    run.CloseStdout();
    const uint64_t begin_ns = NowNs();
    const Outcome outcome = run.Finish();
    EXPECT_LT(NowNs() - begin_ns, 5 * kSecondNs);
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_EQ(outcome.err, "yoke: cannot write the output: Broken pipe\n");
  }
}

Json ParseOutput(const Outcome& outcome) {
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  Result<Json> json = ParseJson(outcome.out, 1 << 24);
  EXPECT_TRUE(json) << json.error().message() << " in " << outcome.out;
  return json ? std::move(json).value() : Json();
}

TEST(CliTest, RunPrintsAReportAsJson) {
  const Json json =
      ParseOutput(RunYoke(Demo("run", {"-p", "And it came to pass", "-n", "12", "--ranks", "2",
                                       "--threads", "1", "--seed", "7", "--json"})));
  for (const char* key :
       {"prompt_tokens_per_s", "decode_tokens_per_s", "first_token_ms", "ms_per_token", "load_s"}) {
    const Result<double> number = JsonNumber(json, key);
    ASSERT_TRUE(number) << number.error().message();
    EXPECT_GT(number.value(), 0) << key;
  }
  EXPECT_EQ(json["generated_tokens"], 12);
  EXPECT_EQ(json["tokens"].size(), 12u);
  EXPECT_GE(json["prompt_tokens"], 3);
  EXPECT_FALSE(json["text"].get<std::string>().empty());
  EXPECT_EQ(json["stop"], "length");
  EXPECT_EQ(json["seed"], 7);
  EXPECT_EQ(json["num_ranks"], 2);
  EXPECT_EQ(json["threads_per_rank"], 1);
  EXPECT_EQ(json["fabric"], "shm");
  EXPECT_EQ(json["backend"], "cpu");
  EXPECT_EQ(json["trunk"], "native");
  ASSERT_EQ(json["ranks"].size(), 2u);
  for (const Json& rank : json["ranks"]) {
    for (const char* key :
         {"compute_ms_per_token", "collectives_ms_per_token", "waiting_ms_per_token",
          "collectives_per_token", "weight_bytes_per_token", "fabric_bytes_per_token",
          "peak_memory_bytes", "own_memory_bytes"}) {
      const Result<double> number = JsonNumber(rank, key);
      ASSERT_TRUE(number) << number.error().message();
      EXPECT_GT(number.value(), 0) << key;
    }
  }
}

TEST(CliTest, TheSameSeedMakesTheSameText) {
  const auto text = [](const char* seed, const Args& more = {}) {
    return RunYoke(Demo("run", {"-p", "In the", "-n", "16", "--seed", seed}) + more).out;
  };
  const std::string first = text("1");
  EXPECT_GT(first.size(), 10u);
  EXPECT_EQ(text("1"), first);
  EXPECT_NE(text("2"), first);
  // Neither the form of the output nor where the prompt comes from changes it.
  const Json json =
      ParseOutput(RunYoke(Demo("run", {"-p", "In the", "-n", "16", "--seed", "1", "--json"})));
  EXPECT_EQ(json["text"].get<std::string>() + "\n", first);
  const model::TempFolder folder;
  folder.Write("prompt", "In the");
  EXPECT_EQ(RunYoke(Demo("run", {"-f", folder.PathOf("prompt"), "-n", "16", "--seed", "1"})).out,
            first);
  EXPECT_EQ(RunYoke(Demo("run", {"-n", "16", "--seed", "1"}), "In the").out, first);
}

TEST(CliTest, TheTextGoesToStdoutAndTheReportToStderr) {
  const Outcome run = RunYoke(Demo("run", {"-p", "And", "-n", "5", "--ranks", "2"}));
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_EQ(run.out.find("tokens/s"), std::string::npos) << run.out;
  for (const char* part : {"tokens/s", "first token", "compute", "waiting", "peak memory",
                           "shared memory", "rank 1"}) {
    EXPECT_NE(run.err.find(part), std::string::npos) << part << " in " << run.err;
  }
  EXPECT_EQ((run.out + run.err).find('\x1b'), std::string::npos);  // no terminal, no colours
}

TEST(CliTest, AFullContextStopsTheRun) {
  const Json json = ParseOutput(
      RunYoke(Demo("run", {"-p", "And", "-n", "100", "--ctx", "20", "--temp", "0", "--json"})));
  EXPECT_EQ(json["stop"], "context full");
  EXPECT_EQ(json["prompt_tokens"].get<int>() + json["generated_tokens"].get<int>(), 21);
}

TEST(CliTest, InspectPrintsJson) {
  const Json json = ParseOutput(RunYoke(Demo("inspect", {"--json", "--ranks", "3"})));
  EXPECT_EQ(json["architecture"], "kimi-k3");
  EXPECT_EQ(json["weights"], true);
  EXPECT_EQ(json["layers"], 8);
  EXPECT_EQ(json["kda_layers"].get<int>() + json["mla_layers"].get<int>(), 8);
  for (const char* key : {"params_total", "params_active", "bytes_per_token", "tensors"}) {
    EXPECT_GT(json[key], 0) << key;
  }
  ASSERT_EQ(json["ranks"].size(), 3u);
  const Json& one = json["ranks"]["1"][0];
  EXPECT_EQ(one["total_bytes"].get<uint64_t>(), one["bytes"]["f32"].get<uint64_t>() +
                                                    one["bytes"]["bf16"].get<uint64_t>() +
                                                    one["bytes"]["mxfp4"].get<uint64_t>());
  for (const Json& rank : json["ranks"]["2"]) {
    EXPECT_LT(rank["total_bytes"].get<double>(), 0.6 * one["total_bytes"].get<double>());
  }
}

TEST(CliTest, InspectNeedsNoWeights) {
  const std::string config = std::string(YOKE_SOURCE_DIR) + "/tests/data/kimi-k3-config.json";
  const model::TempFolder folder;
  std::filesystem::copy_file(config, folder.PathOf("config.json"));
  const Outcome inspect = RunYoke({"inspect", folder.path(), "--ranks", "2"});
  EXPECT_EQ(inspect.exit_code, 0) << inspect.err;
  EXPECT_NE(inspect.out.find("137 GB"), std::string::npos) << inspect.out;
  ExpectRefused(RunYoke({"run", folder.path(), "-p", "a"}), {"no weights", folder.path()});
}

TEST(CliTest, EvalPrintsJson) {
  const model::TempFolder folder;
  folder.Write("text", "In the beginning God created the heaven and the earth.");
  const Json json = ParseOutput(
      RunYoke(Demo("eval", {"--text", folder.PathOf("text"), "--window", "16", "--json"})));
  EXPECT_GT(json["perplexity"], 1);
  EXPECT_GT(json["bits_per_byte"], 0);
  EXPECT_GT(json["scored_tokens"], 5);
  EXPECT_EQ(json["bytes"], 54);
  EXPECT_EQ(json["window"], 16);
}

// ---- Ctrl-C ----

TEST(CliTest, CtrlCEndsARunCleanly) {
  for (const int signal_number : {SIGINT, SIGTERM}) {
    for (const bool whole_group : {false, true}) {  // a terminal sends it to the ranks as well
      SCOPED_TRACE(testing::Message() << "signal " << signal_number << ", group " << whole_group);
      YokeProcess run({.args = Demo("run", {"-p", "And it came to pass", "-n", "100000", "--temp",
                                            "0", "--ranks", "2"})});
      ASSERT_TRUE(run.WaitForOutput(10));
      const uint64_t begin_ns = NowNs();
      kill(whole_group ? -run.pid() : run.pid(), signal_number);
      const Outcome outcome = run.Finish();
      EXPECT_LT(NowNs() - begin_ns, 5 * kSecondNs);
      EXPECT_EQ(outcome.exit_code, 130);
      EXPECT_TRUE(outcome.err.ends_with("yoke: interrupted\n")) << outcome.err;
      EXPECT_NE(outcome.err.find("stopped: interrupted"), std::string::npos) << outcome.err;
    }
  }
}

// The process has read all input so far and sleeps until there is more.
bool IsWaitingForInput(const YokeProcess& run) {
  int unread = 0;
  if (ioctl(run.stdin_fd(), FIONREAD, &unread) != 0 || unread != 0) return false;
  std::ifstream file("/proc/" + std::to_string(run.pid()) + "/stat");
  std::string pid, name, state;
  file >> pid >> name >> state;
  return state == "S";
}

TEST(CliTest, CtrlCEndsTheReadingOfAPrompt) {
  if (!std::filesystem::exists("/proc/self/stat")) GTEST_SKIP() << "needs /proc";
  YokeProcess run({.args = Demo("run", {"-n", "5"})});
  run.Write("And it came");
  ASSERT_TRUE(Within(kDeadlineNs, [&] { return IsWaitingForInput(run); }));
  kill(run.pid(), SIGINT);
  // The input stays open, and nobody sends a second signal.
  ASSERT_TRUE(run.WaitForEnd());
  const Outcome outcome = run.Finish();
  EXPECT_EQ(outcome.exit_code, 130);
  EXPECT_EQ(outcome.err, "yoke: interrupted\n");
  EXPECT_EQ(outcome.out, "");
}

// ---- Nothing stays ----

std::vector<std::string> OurSharedMemoryNames() {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm", ignored)) {
    if (entry.path().filename().string().find("yoke") != std::string::npos) {
      names.push_back(entry.path());
    }
  }
  return names;
}

TEST(CliTest, SharedMemoryNeverHasAName) {
  YokeProcess run(
      {.args = Demo("run", {"-p", "And", "-n", "100000", "--temp", "0", "--ranks", "2"})});
  ASSERT_TRUE(run.WaitForOutput(4));
  EXPECT_EQ(OurSharedMemoryNames(), Args{});  // while it is in use
  kill(run.pid(), SIGINT);
  EXPECT_EQ(run.Finish().exit_code, 130);
  EXPECT_EQ(OurSharedMemoryNames(), Args{});
}

}  // namespace
}  // namespace yoke::integration
