// yoke: one binary, one file for each command.
#include <CLI/CLI.hpp>

#include <cstdio>
#include <string>

#include "cli.h"
#include "sys/process.h"

namespace {

// The one place that meets CLI11's exceptions.
int ParseAndRun(CLI::App& app, int argc, char** argv, const int& exit_code) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::CallForVersion& version) {
    return app.exit(version);
  } catch (const CLI::ParseError& error) {
    std::string message = error.what();
    if (const size_t end = message.find('\n'); end != std::string::npos) message.resize(end);
    std::fprintf(stderr, "yoke: %s (yoke --help, yoke COMMAND --help)\n", message.c_str());
    return yoke::app::kExitBadInput;
  }
  return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Runs one giant language model on several ranks as if they were one machine.\n"
      "Examples:\n"
      "  yoke run -p \"In the beginning\"        the demo model, one rank\n"
      "  yoke run MODEL --ranks 2 -f FILE     half of every large matrix in each of two ranks\n"
      "  yoke verify MODEL --ranks 1,2,3,4    proof that the rank count does not change the result",
      "yoke");
  app.set_version_flag("--version", std::string("yoke ") + YOKE_VERSION);
  app.require_subcommand(1);
  yoke::CatchInterrupts();
  int exit_code = yoke::app::kExitOk;
  yoke::app::AddRunCommand(app, exit_code);
  yoke::app::AddInspectCommand(app, exit_code);
  yoke::app::AddEvalCommand(app, exit_code);
  yoke::app::AddVerifyCommand(app, exit_code);
  yoke::app::AddRankCommand(app, exit_code);
  return ParseAndRun(app, argc, argv, exit_code);
}
