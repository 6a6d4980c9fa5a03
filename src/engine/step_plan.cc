#include "engine/step_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/wire.h"
#include "fabric/board.h"

namespace yoke::engine {
namespace {

constexpr size_t kResultFloatsMax = size_t{1} << 31;

Status GetBool(WireReader& reader, bool& value) {
  uint8_t byte = 0;
  YOKE_RETURN_IF_ERROR(reader.Get(byte));
  if (byte > 1) return Error(ErrorCode::kCorrupt, "step message: a flag is neither 0 nor 1");
  value = byte == 1;
  return Ok{};
}

Result<PlanItem> ParseItem(WireReader& reader) {
  PlanItem item;
  uint8_t want = 0;
  YOKE_RETURN_IF_ERROR(reader.Get(item.sequence));
  YOKE_RETURN_IF_ERROR(reader.Get(item.position));
  YOKE_RETURN_IF_ERROR(GetBool(reader, item.prefill));
  YOKE_RETURN_IF_ERROR(reader.Get(want));
  YOKE_RETURN_IF_ERROR(reader.Get(item.top));
  YOKE_RETURN_IF_ERROR(reader.GetAll(item.tokens, kPlanTokensMax));
  YOKE_RETURN_IF_ERROR(reader.GetAll(item.targets, kPlanTokensMax));
  item.want = static_cast<Want>(want);
  if (want > static_cast<uint8_t>(Want::kLogProbs) || item.top > kTopMax || item.tokens.empty() ||
      (item.want == Want::kLogProbs && item.targets.size() != item.tokens.size())) {
    return Error(ErrorCode::kCorrupt, "step message: an item's fields contradict each other");
  }
  return item;
}

}  // namespace

std::vector<std::byte> StepPlan::Serialize() const {
  WireWriter writer;
  writer.Put(step);
  writer.Put(static_cast<uint8_t>(stop));
  writer.PutAll(std::span(release));
  writer.Put(static_cast<uint32_t>(items.size()));
  for (const PlanItem& item : items) {
    writer.Put(item.sequence);
    writer.Put(item.position);
    writer.Put(static_cast<uint8_t>(item.prefill));
    writer.Put(static_cast<uint8_t>(item.want));
    writer.Put(item.top);
    writer.PutAll(std::span(item.tokens));
    writer.PutAll(std::span(item.targets));
  }
  return std::move(writer.bytes());
}

Result<StepPlan> StepPlan::Parse(std::span<const std::byte> bytes) {
  WireReader reader(bytes);
  StepPlan plan;
  uint32_t num_items = 0;
  YOKE_RETURN_IF_ERROR(reader.Get(plan.step));
  YOKE_RETURN_IF_ERROR(GetBool(reader, plan.stop));
  YOKE_RETURN_IF_ERROR(reader.GetAll(plan.release, kPlanItemsMax));
  YOKE_RETURN_IF_ERROR(reader.Get(num_items));
  if (num_items > kPlanItemsMax) {
    return Error(ErrorCode::kCorrupt, "step message: " + std::to_string(num_items) +
                                          " items, more than " + std::to_string(kPlanItemsMax));
  }
  for (uint32_t i = 0; i < num_items; ++i) {
    YOKE_TRY(PlanItem item, ParseItem(reader));
    plan.items.push_back(std::move(item));
  }
  YOKE_RETURN_IF_ERROR(reader.End());
  return plan;
}

size_t StepPlan::NumTokens() const {
  size_t count = 0;
  for (const PlanItem& item : items) count += item.tokens.size();
  return count;
}

bool StepPlan::HasPrefill() const {
  return std::any_of(items.begin(), items.end(), [](const PlanItem& item) { return item.prefill; });
}

bool Likelier(const Candidate& a, const Candidate& b) {
  const bool a_is_number = !std::isnan(a.logit);
  const bool b_is_number = !std::isnan(b.logit);
  if (a_is_number != b_is_number) return a_is_number;
  if (a_is_number && a.logit != b.logit) return a.logit > b.logit;
  return a.token < b.token;
}

double LogSum::Value() const {
  return max + std::log(sum);
}

LogSum Merge(std::span<const LogSum> parts) {
  LogSum all = {.max = -std::numeric_limits<double>::infinity(), .sum = 0};
  for (const LogSum& part : parts) all.max = std::max(all.max, part.max);
  for (const LogSum& part : parts) {
    if (part.sum != 0) all.sum += part.sum * std::exp(part.max - all.max);
  }
  return all;
}

Error NotFiniteError() {
  return Error(ErrorCode::kCorrupt,
               "the model's logits are not finite numbers: damaged weights, or values beyond f32");
}

std::vector<std::byte> StepResult::Serialize() const {
  WireWriter writer;
  writer.PutAll(std::span(ranks));
  writer.Put(static_cast<uint32_t>(items.size()));
  for (const ItemResult& item : items) {
    writer.PutAll(std::span(item.top));
    writer.Put(item.log_sum_exp);
    writer.PutAll(std::span(item.rows));
    writer.PutAll(std::span(item.log_probs));
  }
  return std::move(writer.bytes());
}

Result<StepResult> StepResult::Parse(std::span<const std::byte> bytes) {
  WireReader reader(bytes);
  StepResult result;
  uint32_t num_items = 0;
  YOKE_RETURN_IF_ERROR(reader.GetAll(result.ranks, fabric::kRanksMax));
  YOKE_RETURN_IF_ERROR(reader.Get(num_items));
  if (num_items > kPlanItemsMax) {
    return Error(ErrorCode::kCorrupt, "step result: too many items");
  }
  for (uint32_t i = 0; i < num_items; ++i) {
    ItemResult item;
    YOKE_RETURN_IF_ERROR(reader.GetAll(item.top, kTopMax));
    YOKE_RETURN_IF_ERROR(reader.Get(item.log_sum_exp));
    YOKE_RETURN_IF_ERROR(reader.GetAll(item.rows, kResultFloatsMax));
    YOKE_RETURN_IF_ERROR(reader.GetAll(item.log_probs, kResultFloatsMax));
    result.items.push_back(std::move(item));
  }
  YOKE_RETURN_IF_ERROR(reader.End());
  return result;
}

}  // namespace yoke::engine
