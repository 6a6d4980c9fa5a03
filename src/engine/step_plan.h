// What the supervisor tells the ranks to do next, and what comes back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"

namespace yoke::engine {

// Limits that every message is checked against.
constexpr size_t kPlanItemsMax = 4096;
constexpr size_t kPlanTokensMax = 1 << 20;
constexpr size_t kPlanBytesMax = 64 << 20;
constexpr uint32_t kTopMax = 1024;

// What is wanted of a sequence's part of a step.
enum class Want : uint8_t {
  kNothing,   // more of the prompt follows
  kTop,       // the largest logits of the last token, and the log-sum-exp of all
  kLastRow,   // all logits of the last token
  kAllRows,   // all logits of every token
  kLogProbs,  // for every token, log p of its target
};

// Wire: u64 sequence, u32 position, u8 prefill, u8 want, u32 top, tokens, targets (arrays: u32
// count, then i32 each).
struct PlanItem {
  uint64_t sequence = 0;  // new ones begin at position 0
  uint32_t position = 0;  // of the first token; must be where the sequence is
  bool prefill = false;
  Want want = Want::kNothing;
  uint32_t top = 0;  // for kTop
  std::vector<int32_t> tokens;
  std::vector<int32_t> targets;  // for kLogProbs: as many as tokens
};

// Wire: u64 step, u8 stop, released sequences (u32 count, u64 each), u32 item count, items.
struct StepPlan {
  uint64_t step = 0;
  bool stop = false;  // leave, orderly
  std::vector<uint64_t> release;
  std::vector<PlanItem> items;

  std::vector<std::byte> Serialize() const;
  static Result<StepPlan> Parse(std::span<const std::byte> bytes);
  size_t NumTokens() const;
  bool HasPrefill() const;
};

struct Candidate {
  int32_t token = 0;
  float logit = 0;
};
// The order of candidates: descending logits, equal ones by token. What is not a number comes last.
bool Likelier(const Candidate& a, const Candidate& b);

// log(sum exp(logits)), kept as parts that add over vocabulary slices.
struct LogSum {
  double max = 0;
  double sum = 0;  // of exp(logit - max)
  double Value() const;
};
// In the order of the slices, so that it is the same for the same slices.
LogSum Merge(std::span<const LogSum> parts);
// For logits that are infinite or not numbers: whatever follows from them would be nonsense.
Error NotFiniteError();

struct ItemResult {
  std::vector<Candidate> top;    // kTop: descending
  double log_sum_exp = 0;        // kTop
  std::vector<float> rows;       // kLastRow, kAllRows: [num_rows, vocab_size]
  std::vector<float> log_probs;  // kLogProbs: [num_tokens]
};

// One rank's account of a step.
struct RankStats {
  uint64_t compute_ns = 0;
  uint64_t collective_ns = 0;  // moving and adding, without waiting
  uint64_t waiting_ns = 0;     // in collectives, until the last peer's data was there
  uint64_t weight_bytes = 0;   // read from memory
  uint64_t fabric_bytes = 0;   // sent
  uint64_t num_collectives = 0;
  uint64_t rss_peak_bytes = 0;
  uint64_t rss_own_bytes = 0;  // anonymous and shared, without file pages
};

// Wire: ranks (array), u32 item count, for each: top, f64 log_sum_exp, rows, log_probs.
struct StepResult {
  std::vector<RankStats> ranks;
  std::vector<ItemResult> items;

  std::vector<std::byte> Serialize() const;
  static Result<StepResult> Parse(std::span<const std::byte> bytes);
};

}  // namespace yoke::engine
