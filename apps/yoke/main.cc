// yoke: one binary, one file for each command.
#include <CLI/CLI.hpp>
#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <sstream>
#include <string>

#include "cli.h"
#include "sys/process.h"
#include "terminal.h"

namespace {

// A standard stream that is closed would be the next file that we open, and our text would go
// there. The filler has the wrong direction, so that using the stream is still an error.
void FillStandardStreams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (fcntl(fd, F_GETFD) >= 0) continue;
    if (open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) < 0) {
      _exit(yoke::app::kExitFailed);
    }
  }
}

int PrintHelp(const CLI::App& app, const CLI::Success& help) {
  std::ostringstream text;
  app.exit(help, text, text);
  const yoke::Status written = yoke::app::WriteOut(text.str());
  return written ? yoke::app::kExitOk : yoke::app::Fail(written.error());
}

// The one place that meets CLI11's exceptions.
int ParseAndRun(CLI::App& app, int argc, char** argv, const int& exit_code) {
  try {
    app.parse(argc, argv);
    // Not left to CLI11, which would say this of a misspelt command too.
    if (app.get_subcommands().empty()) {
      return yoke::app::Fail(
          {yoke::ErrorCode::kInvalidArgument, "a command is missing (yoke --help lists them)"});
    }
  } catch (const CLI::Success& help) {  // or the version
    return PrintHelp(app, help);
  } catch (const CLI::ParseError& error) {
    return yoke::app::Fail({yoke::ErrorCode::kInvalidArgument,
                            std::string(error.what()) + " (yoke --help, yoke COMMAND --help)"});
  }
  return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  FillStandardStreams();
  std::signal(SIGPIPE, SIG_IGN);  // a reader that has gone is an error of the write
  CLI::App app(
      "Runs one giant language model on several ranks as if they were one machine.\n"
      "Examples:\n"
      "  yoke run -p \"In the beginning\"        the demo model, one rank\n"
      "  yoke run MODEL --ranks 2 -f FILE     half of every large matrix in each of two ranks\n"
      "  yoke verify MODEL --ranks 1,2,3,4    proof that the rank count does not change the result",
      "yoke");
  app.set_version_flag("--version", std::string("yoke ") + YOKE_VERSION);
  app.require_subcommand(0, 1);
  yoke::CatchInterrupts();
  int exit_code = yoke::app::kExitOk;
  yoke::app::AddRunCommand(app, exit_code);
  yoke::app::AddInspectCommand(app, exit_code);
  yoke::app::AddEvalCommand(app, exit_code);
  yoke::app::AddVerifyCommand(app, exit_code);
  yoke::app::AddRankCommand(app, exit_code);
  return ParseAndRun(app, argc, argv, exit_code);
}
