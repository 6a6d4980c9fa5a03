#include "engine/teacher_force.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "sys/process.h"

namespace yoke::engine {
namespace {

// Where one script is, as steps go by.
struct Cursor {
  const Script* script;
  uint64_t sequence;
  size_t position = 0;
  std::vector<float>* rows;

  bool Done() const { return position == script->tokens.size(); }
};

// The next part of a script: a prompt chunk or one decode token.
PlanItem NextItem(const Cursor& cursor, size_t chunk) {
  const Script& script = *cursor.script;
  const bool prefill = cursor.position < script.prompt_len;
  const size_t count = prefill ? std::min(chunk, script.prompt_len - cursor.position) : 1;
  const auto begin = script.tokens.begin() + static_cast<std::ptrdiff_t>(cursor.position);
  return {.sequence = cursor.sequence,
          .position = static_cast<uint32_t>(cursor.position),
          .prefill = prefill,
          .want = Want::kAllRows,
          .top = 0,
          .tokens = {begin, begin + static_cast<std::ptrdiff_t>(count)},
          .targets = {}};
}

Status RunTogether(RankGroup& group, std::vector<Cursor> cursors, size_t chunk) {
  StepPlan release;
  for (;;) {
    StepPlan plan;
    std::vector<Cursor*> in_step;
    size_t room = group.options().tokens_max;
    for (Cursor& cursor : cursors) {
      if (cursor.Done()) continue;
      PlanItem item = NextItem(cursor, chunk);
      if (item.tokens.size() > room) continue;  // the next step has room
      room -= item.tokens.size();
      plan.items.push_back(std::move(item));
      in_step.push_back(&cursor);
    }
    if (plan.items.empty()) break;
    std::vector<size_t> counts;
    for (const PlanItem& item : plan.items) counts.push_back(item.tokens.size());
    YOKE_TRY(const StepResult result, group.Step(std::move(plan)));
    YOKE_CHECK(result.items.size() == in_step.size());
    for (size_t i = 0; i < in_step.size(); ++i) {
      const std::vector<float>& rows = result.items[i].rows;
      const auto finite = [](float logit) { return std::isfinite(logit); };
      if (!std::all_of(rows.begin(), rows.end(), finite)) return NotFiniteError();
      in_step[i]->rows->insert(in_step[i]->rows->end(), rows.begin(), rows.end());
      in_step[i]->position += counts[i];
    }
  }
  for (const Cursor& cursor : cursors) release.release.push_back(cursor.sequence);
  YOKE_TRY(const StepResult done, group.Step(std::move(release)));
  return Ok{};
}

size_t ArgMax(std::span<const float> row) {
  return static_cast<size_t>(std::max_element(row.begin(), row.end()) - row.begin());
}

// Largest minus second largest.
double TopGap(std::span<const float> row) {
  const size_t best = ArgMax(row);
  float second = -INFINITY;
  for (size_t i = 0; i < row.size(); ++i) {
    if (i != best) second = std::max(second, row[i]);
  }
  return static_cast<double>(row[best]) - static_cast<double>(second);
}

}  // namespace

Result<std::vector<std::vector<float>>> TeacherForce(RankGroup& group,
                                                     std::span<const Script> scripts,
                                                     const ForceOptions& options) {
  const size_t chunk = std::min(options.chunk, group.options().tokens_max);
  std::vector<std::vector<float>> rows(scripts.size());
  std::vector<Cursor> cursors;
  for (size_t i = 0; i < scripts.size(); ++i) {
    cursors.push_back({.script = &scripts[i], .sequence = i, .rows = &rows[i]});
    if (options.together) continue;
    YOKE_RETURN_IF_ERROR(RunTogether(group, {cursors.back()}, chunk));
  }
  if (options.together) YOKE_RETURN_IF_ERROR(RunTogether(group, std::move(cursors), chunk));
  return rows;
}

double Perplexity::BitsPerToken() const {
  return nll_sum / static_cast<double>(num_tokens) / std::log(2.0);
}
double Perplexity::Value() const {
  return std::exp(nll_sum / static_cast<double>(num_tokens));
}

Result<Perplexity> ScoreText(RankGroup& group, std::span<const int> tokens, size_t window,
                             const std::function<bool(size_t, size_t)>& on_progress) {
  Perplexity sum;
  const uint64_t begin_ns = NowNs();
  const size_t chunk = group.options().tokens_max / 16 * 16;
  uint64_t sequence = 0;
  for (size_t begin = 0; begin < tokens.size(); begin += window, ++sequence) {
    const std::span<const int> part =
        tokens.subspan(begin, std::min(window, tokens.size() - begin));
    for (size_t i = 0; i + 1 < part.size(); i += chunk) {
      const size_t count = std::min(chunk, part.size() - 1 - i);
      const auto first = part.begin() + static_cast<std::ptrdiff_t>(i);
      StepPlan plan;
      plan.items.push_back(
          {.sequence = sequence,
           .position = static_cast<uint32_t>(i),
           .prefill = true,
           .want = Want::kLogProbs,
           .top = 0,
           .tokens = {first, first + static_cast<std::ptrdiff_t>(count)},
           .targets = {first + 1, first + 1 + static_cast<std::ptrdiff_t>(count)}});
      YOKE_TRY(const StepResult result, group.Step(std::move(plan)));
      for (const float log_prob : result.items.at(0).log_probs) {
        sum.nll_sum -= static_cast<double>(log_prob);
      }
      if (!std::isfinite(sum.nll_sum)) return NotFiniteError();
      sum.num_tokens += count;
      if (!on_progress(begin + i + count, tokens.size())) {
        return Error(ErrorCode::kCancelled, "interrupted");
      }
    }
    if (part.size() < 2) continue;
    StepPlan release;
    release.release.push_back(sequence);
    YOKE_TRY(const StepResult done, group.Step(std::move(release)));
  }
  sum.seconds = static_cast<double>(NowNs() - begin_ns) * 1e-9;
  return sum;
}

bool Comparison::Agree() const {
  return num_positions > 0 && num_argmax_differ == num_near_ties &&
         100 * num_near_ties <= num_positions;
}

void Compare(std::span<const float> reference, std::span<const float> other, size_t vocab_size,
             double logit_bound, Comparison& comparison) {
  YOKE_CHECK(reference.size() == other.size());
  for (size_t begin = 0; begin < reference.size(); begin += vocab_size) {
    const std::span<const float> a = reference.subspan(begin, vocab_size);
    const std::span<const float> b = other.subspan(begin, vocab_size);
    bool finite = true;
    for (size_t i = 0; i < vocab_size; ++i) {
      const double diff = std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
      finite &= std::isfinite(diff);
      comparison.diff_max = std::max(comparison.diff_max, std::isfinite(diff) ? diff : INFINITY);
    }
    // The same NaN on both sides is no agreement.
    comparison.bitwise &= finite && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
    ++comparison.num_positions;
    if (finite && ArgMax(a) == ArgMax(b)) continue;
    ++comparison.num_argmax_differ;
    if (finite && TopGap(a) < 4 * logit_bound) ++comparison.num_near_ties;
  }
}

}  // namespace yoke::engine
