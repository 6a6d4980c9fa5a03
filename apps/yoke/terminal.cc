#include "terminal.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "sys/process.h"

namespace yoke::app {
namespace {

constexpr int kBarWidth = 30;
constexpr uint64_t kRedrawNs = 50'000'000;

bool IsTerminal(int fd) {
  return isatty(fd) == 1 && std::getenv("NO_COLOR") == nullptr;
}

std::string Scaled(double value, const char* const units[], int num_units) {
  int unit = 0;
  while (value >= 999.5 && unit + 1 < num_units) {
    value /= 1000;
    ++unit;
  }
  return Fixed(value, unit == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2) + " " + units[unit];
}

}  // namespace

bool StdoutIsTerminal() {
  return IsTerminal(STDOUT_FILENO);
}
bool StderrIsTerminal() {
  return IsTerminal(STDERR_FILENO);
}

Status WriteOut(std::string_view text) {
  errno = 0;
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) {
    return Ok{};
  }
  return Error(ErrorCode::kInvalidArgument,
               std::string("cannot write the output: ") + std::strerror(errno));
}

std::string Dim(std::string_view text, bool on_terminal) {
  return on_terminal ? "\033[2m" + std::string(text) + "\033[0m" : std::string(text);
}

std::string Bold(std::string_view text, bool on_terminal) {
  return on_terminal ? "\033[1m" + std::string(text) + "\033[0m" : std::string(text);
}

ProgressBar::ProgressBar(std::string label) : label_(std::move(label)) {}

ProgressBar::~ProgressBar() {
  if (drawn_) std::fputs("\r\033[K", stderr);
}

void ProgressBar::Show(double fraction, std::string_view note) {
  const uint64_t now_ns = NowNs();
  if (!StderrIsTerminal() || now_ns < last_ns_ + kRedrawNs) return;
  last_ns_ = now_ns;
  drawn_ = true;
  const double shown = std::clamp(std::isfinite(fraction) ? fraction : 0.0, 0.0, 1.0);
  const int filled = static_cast<int>(shown * kBarWidth);
  std::string bar;
  for (int i = 0; i < kBarWidth; ++i) bar += i < filled ? "█" : "░";
  const std::string line =
      "\r\033[K" + label_ + " " + bar + " " + Fixed(100 * shown, 0) + " %  " + std::string(note);
  std::fputs(line.c_str(), stderr);
  std::fflush(stderr);
}

std::string Fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.*f", digits, value);
  return text;
}

std::string FormatBytes(uint64_t bytes) {
  static const char* const kUnits[] = {"B", "kB", "MB", "GB", "TB"};
  return Scaled(static_cast<double>(bytes), kUnits, 5);
}

std::string FormatCount(uint64_t count) {
  if (count >= 1'000'000'000) {
    const auto tenths = static_cast<uint64_t>(std::llround(static_cast<double>(count) / 1e8));
    return Grouped(tenths / 10) + "." + std::to_string(tenths % 10) + " B";
  }
  static const char* const kUnits[] = {"", "k", "M"};
  return Scaled(static_cast<double>(count), kUnits, 3);
}

std::string Grouped(uint64_t value) {
  const std::string digits = std::to_string(value);
  std::string grouped;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) grouped += ',';
    grouped += digits[i];
  }
  return grouped;
}

}  // namespace yoke::app
