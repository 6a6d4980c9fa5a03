// Every yoke command that README.md and --help show runs, from the root of the checkout.
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace yoke {
namespace {

// Lines of ```sh blocks that start with "yoke ".
std::vector<std::string> ReadmeCommands() {
  std::ifstream in(std::string(YOKE_SOURCE_DIR) + "/README.md");
  std::vector<std::string> commands;
  bool in_block = false;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("```")) {
      in_block = line == "```sh";
    } else if (in_block && line.starts_with("yoke ")) {
      commands.push_back(line);
    }
  }
  return commands;
}

TEST(ReadmeTest, EveryYokeCommandRuns) {
  const std::vector<std::string> commands = ReadmeCommands();
  ASSERT_GE(commands.size(), 5u);
  const std::string folder = std::filesystem::path(YOKE_BINARY).parent_path();
  for (const std::string& command : commands) {
    const std::string line = "cd '" YOKE_SOURCE_DIR "' && PATH='" + folder + "':\"$PATH\" && " +
                             command + " >/dev/null </dev/null";
    const int status = std::system(line.c_str());
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << command;
  }
}

}  // namespace
}  // namespace yoke
