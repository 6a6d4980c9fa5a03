// What this process costs and what the machine gives it, on Linux and macOS.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <ctime>
#include <string>
#include <string_view>

#include "base/check.h"
#include "sys/mapped_file.h"
#include "sys/process.h"

#ifdef __APPLE__
#include <mach/mach.h>
#else
#include <sched.h>
#endif

namespace yoke {

#ifdef __APPLE__

uint64_t PeakRssBytes() {
  struct rusage usage = {};
  YOKE_CHECK(::getrusage(RUSAGE_SELF, &usage) == 0);
  return static_cast<uint64_t>(usage.ru_maxrss);  // bytes, on this system
}

uint64_t AnonymousRssBytes() {
  task_vm_info_data_t info = {};
  mach_msg_type_number_t count = TASK_VM_INFO_COUNT;
  const kern_return_t result =
      ::task_info(::mach_task_self(), TASK_VM_INFO, reinterpret_cast<task_info_t>(&info), &count);
  YOKE_CHECK(result == KERN_SUCCESS);
  return info.internal;
}

int NumCores() {
  return std::max(1, static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)));
}

uint64_t NowNs() {
  return ::clock_gettime_nsec_np(CLOCK_UPTIME_RAW);
}

#else

namespace {

constexpr uint64_t kSmallFileBytesMax = 64 << 10;

// A file of the kernel's, or "" where this kernel or container lacks it.
std::string ReadKernelFile(const std::string& path) {
  Result<std::string> text = ReadTextFile(path, kSmallFileBytesMax);
  return text ? std::move(text).value() : std::string();
}

// The whole number behind the blanks at the front of text, or 0.
uint64_t LeadingNumber(std::string_view text) {
  text.remove_prefix(std::min(text.size(), text.find_first_not_of(" \t")));
  uint64_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

// "VmHWM:     1234 kB" of /proc/self/status, in bytes.
uint64_t StatusBytes(std::string_view key) {
  const std::string status = ReadKernelFile("/proc/self/status");
  const size_t at = status.find(key);
  if (at == std::string::npos) return 0;
  return LeadingNumber(std::string_view(status).substr(at + key.size())) * 1024;
}

// Cores' worth of time that the control group (version 2) allows, rounded up; 0 for no limit.
// cpu.max: "200000 100000" or "max 100000", in microseconds of time per period.
uint64_t QuotaCores() {
  constexpr std::string_view kPrefix = "0::";
  std::string group = ReadKernelFile("/proc/self/cgroup");
  if (!group.starts_with(kPrefix)) return 0;
  group.erase(0, kPrefix.size());
  group.resize(std::min(group.size(), group.find('\n')));
  const std::string limit = ReadKernelFile("/sys/fs/cgroup" + group + "/cpu.max");
  const size_t blank = limit.find(' ');
  if (blank == std::string::npos) return 0;
  const uint64_t quota = LeadingNumber(limit);
  const uint64_t period = LeadingNumber(std::string_view(limit).substr(blank));
  return period == 0 ? 0 : (quota + period - 1) / period;
}

}  // namespace

// Not ru_maxrss, which a child takes over from the process that forked it.
uint64_t PeakRssBytes() {
  return StatusBytes("VmHWM:");
}

uint64_t AnonymousRssBytes() {
  return StatusBytes("RssAnon:") + StatusBytes("RssShmem:");
}

int NumCores() {
  cpu_set_t allowed;
  // Fails on machines of more than 1024 cores, whose set is larger.
  int cores = ::sched_getaffinity(0, sizeof(allowed), &allowed) == 0
                  ? CPU_COUNT(&allowed)
                  : static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  const uint64_t quota = QuotaCores();
  if (quota > 0 && quota < static_cast<uint64_t>(cores)) cores = static_cast<int>(quota);
  return std::max(1, cores);
}

uint64_t NowNs() {
  struct timespec now = {};
  YOKE_CHECK(::clock_gettime(CLOCK_MONOTONIC, &now) == 0);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

#endif

}  // namespace yoke
