#include "report.h"

#include <algorithm>
#include <vector>

#include "terminal.h"

namespace yoke::app {
namespace {

using engine::GenerateReport;
using engine::RankGroup;
using engine::RankReport;
using engine::RankStats;

double Ratio(double a, double b) {
  return b > 0 ? a / b : 0;
}
double Count(size_t n) {
  return static_cast<double>(n);
}

// Milliseconds of one decode step, per rank.
struct StepTimes {
  double compute, collectives, waiting;
};
StepTimes TimesOf(const RankStats& decode, size_t num_steps) {
  const double ns_to_ms = Ratio(1e-6, Count(num_steps));
  return {static_cast<double>(decode.compute_ns) * ns_to_ms,
          static_cast<double>(decode.collective_ns) * ns_to_ms,
          static_cast<double>(decode.waiting_ns) * ns_to_ms};
}

double TokensPerSecond(const GenerateReport& report) {
  return Ratio(Count(report.num_decode_steps), report.decode_seconds);
}
double BytesPerStep(const RankReport& rank, const GenerateReport& report) {
  return Ratio(static_cast<double>(rank.decode.weight_bytes), Count(report.num_decode_steps));
}

std::string Line(const char* label, const std::string& text, bool on_terminal) {
  std::string padded = label;
  padded.resize(12, ' ');
  return Dim(padded, on_terminal) + text + "\n";
}

}  // namespace

std::string ReportToText(const GenerateReport& report, const RankGroup& group, bool on_terminal) {
  const engine::GroupOptions& options = group.options();
  std::string out = "\n";
  out += Line("prompt",
              std::to_string(report.num_prompt_tokens) + " tokens, " +
                  Fixed(Ratio(Count(report.num_prompt_tokens), report.prompt_seconds), 1) +
                  " tokens/s; first token after " + Fixed(1e3 * report.prompt_seconds, 1) + " ms",
              on_terminal);
  out += Line("decode",
              std::to_string(report.num_decode_steps) + " tokens, " +
                  Bold(Fixed(TokensPerSecond(report), 1) + " tokens/s", on_terminal) +
                  "; stopped: " + std::string(ToString(report.stop)),
              on_terminal);
  out += Line("ranks",
              std::to_string(group.num_ranks()) + " x " + std::to_string(options.threads_per_rank) +
                  (options.threads_per_rank == 1 ? " thread" : " threads") +
                  (group.num_ranks() > 1 ? ", fabric: shared memory" : "") + ", backend: " +
                  (options.backend == engine::BackendKind::kCpu ? "cpu" : "reference") +
                  ", loaded in " + Fixed(group.load_seconds(), 2) + " s",
              on_terminal);
  if (report.num_decode_steps == 0) return out;
  for (size_t r = 0; r < report.ranks.size(); ++r) {
    const RankReport& rank = report.ranks[r];
    const StepTimes ms = TimesOf(rank.decode, report.num_decode_steps);
    out += Line(("rank " + std::to_string(r)).c_str(),
                "ms a token: compute " + Fixed(ms.compute, 2) + ", collectives " +
                    Fixed(ms.collectives, 2) + ", waiting " + Fixed(ms.waiting, 2) + "; reads " +
                    FormatBytes(static_cast<uint64_t>(BytesPerStep(rank, report))) +
                    " a token; peak memory " + FormatBytes(rank.decode.rss_peak_bytes),
                on_terminal);
  }
  return out;
}

Json ReportToJson(const GenerateReport& report, const RankGroup& group) {
  const engine::GroupOptions& options = group.options();
  Json json;
  json["prompt_tokens"] = report.num_prompt_tokens;
  json["generated_tokens"] = report.num_generated;
  json["tokens"] = report.tokens;
  json["stop"] = ToString(report.stop);
  json["prompt_tokens_per_s"] = Ratio(Count(report.num_prompt_tokens), report.prompt_seconds);
  json["decode_tokens_per_s"] = TokensPerSecond(report);
  json["first_token_ms"] = 1e3 * report.prompt_seconds;
  json["ms_per_token"] = Ratio(1e3 * report.decode_seconds, Count(report.num_decode_steps));
  json["load_s"] = group.load_seconds();
  json["num_ranks"] = group.num_ranks();
  json["threads_per_rank"] = options.threads_per_rank;
  json["fabric"] = group.num_ranks() > 1 ? "shm" : "none";
  json["backend"] = options.backend == engine::BackendKind::kCpu ? "cpu" : "reference";
  json["trunk"] = options.trunk == model::TrunkFormat::kQ8_0 ? "q8_0" : "native";
  json["ranks"] = Json::array();
  for (const RankReport& rank : report.ranks) {
    const StepTimes ms = TimesOf(rank.decode, report.num_decode_steps);
    const double steps = std::max(1.0, Count(report.num_decode_steps));
    const RankStats& latest = report.num_decode_steps > 0 ? rank.decode : rank.prompt;
    json["ranks"].push_back({
        {"compute_ms_per_token", ms.compute},
        {"collectives_ms_per_token", ms.collectives},
        {"waiting_ms_per_token", ms.waiting},
        {"collectives_per_token", static_cast<double>(rank.decode.num_collectives) / steps},
        {"weight_bytes_per_token", BytesPerStep(rank, report)},
        {"fabric_bytes_per_token", static_cast<double>(rank.decode.fabric_bytes) / steps},
        {"peak_memory_bytes", latest.rss_peak_bytes},
        {"own_memory_bytes", latest.rss_own_bytes},
    });
  }
  return json;
}

}  // namespace yoke::app
