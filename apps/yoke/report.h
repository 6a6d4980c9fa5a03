// The report after a run, for people and as JSON.
#pragma once

#include <string>

#include "base/json.h"
#include "engine/generate.h"
#include "engine/rank_group.h"

namespace yoke::app {

std::string ReportToText(const engine::GenerateReport& report, const engine::RankGroup& group,
                         bool on_terminal);
Json ReportToJson(const engine::GenerateReport& report, const engine::RankGroup& group);

}  // namespace yoke::app
