// Printing for people: colours and progress bars on a terminal only, numbers with units.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace yoke::app {

// True when the stream is a terminal and NO_COLOR is not set.
bool StdoutIsTerminal();
bool StderrIsTerminal();

// Writes to stdout at once. A full disk or a closed pipe is an error.
Status WriteOut(std::string_view text);

// "\033[2m" ... around text when the stream is a terminal.
std::string Dim(std::string_view text, bool on_terminal);
std::string Bold(std::string_view text, bool on_terminal);

// A line on stderr that is drawn over and over; nothing when stderr is no terminal.
class ProgressBar {
 public:
  explicit ProgressBar(std::string label);
  ~ProgressBar();  // wipes it
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  // `note` stands behind the bar.
  void Show(double fraction, std::string_view note);

 private:
  std::string label_;
  bool drawn_ = false;
  uint64_t last_ns_ = 0;
};

std::string FormatBytes(uint64_t bytes);      // 12.3 MB (powers of 1000)
std::string FormatCount(uint64_t count);      // 2,779.5 B, 4.1 M
std::string Fixed(double value, int digits);  // 3.14
std::string Grouped(uint64_t value);          // 497,220

}  // namespace yoke::app
