// yoke rank JSON: the process of one rank, started by the supervisor.
#include <memory>
#include <string>

#include "cli.h"
#include "engine/rank_process.h"

namespace yoke::app {

void AddRankCommand(CLI::App& app, int& exit_code) {
  auto json = std::make_shared<std::string>();  // shared: lives as long as the callback
  CLI::App* command = app.add_subcommand("rank", "");
  command->group("");  // not in --help
  command->add_option("OPTIONS", *json)->required();
  command->callback([json, &exit_code] {
    const Result<engine::RankOptions> options = engine::RankOptionsFromJson(*json);
    exit_code = options ? engine::RunRank(options.value()) : Fail(options.error());
  });
}

}  // namespace yoke::app
