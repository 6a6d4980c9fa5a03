// yoke inspect: what a model is, and what each rank would hold.
#include <filesystem>
#include <memory>
#include <string>

#include "base/json.h"
#include "cli.h"
#include "model/footprint.h"
#include "model/inventory.h"
#include "model/model_info.h"
#include "terminal.h"

namespace yoke::app {
namespace {

struct InspectOptions {
  std::string model;
  std::string trunk = "native";
  int64_t num_ranks = 4;
  bool json = false;
};

struct Inspection {
  std::string folder;
  model::KimiK3Config config;
  model::ModelCounts counts;
  bool has_weights = false;
  std::vector<std::vector<model::RankFootprint>> by_ranks;  // [i]: of i + 1 ranks
  std::string split_limit;                                  // why not more ranks
};

Result<Inspection> Inspect(const InspectOptions& options) {
  YOKE_RETURN_IF_ERROR(CheckRanks(options.num_ranks));
  YOKE_TRY(const model::TrunkFormat trunk, ParseTrunk(options.trunk));
  Inspection result;
  YOKE_TRY(result.folder, ModelFolder(options.model));
  YOKE_TRY(result.config, model::ReadConfig(result.folder));
  // A folder with config.json alone is enough to plan with.
  for (const char* name : {"/model.safetensors.index.json", "/model.safetensors"}) {
    std::error_code ignored;
    result.has_weights |= std::filesystem::exists(result.folder + name, ignored);
  }
  if (result.has_weights) YOKE_RETURN_IF_ERROR(model::OpenModel(result.folder));
  result.counts = model::CountModel(result.config);
  for (int64_t n = 1; n <= options.num_ranks; ++n) {
    auto footprints =
        model::FootprintOf(result.config, std::vector<size_t>(static_cast<size_t>(n), 1), trunk);
    if (!footprints) {
      result.split_limit = footprints.error().message();
      break;
    }
    result.by_ranks.push_back(std::move(footprints).value());
  }
  return result;
}

Json FootprintJson(const model::RankFootprint& footprint) {
  Json json = {{"total_bytes", footprint.total_bytes},
               {"file_bytes", footprint.file_bytes},
               {"bytes_per_token", footprint.bytes_per_token},
               {"state_bytes_per_sequence", footprint.state_bytes},
               {"cache_bytes_per_token", footprint.cache_bytes_per_token}};
  for (const auto& [dtype, bytes] : footprint.bytes_by_dtype) {
    json["bytes"][std::string(ToString(dtype))] = bytes;
  }
  return json;
}

std::string ToJson(const Inspection& in) {
  const model::KimiK3Config& c = in.config;
  Json json = {{"architecture", "kimi-k3"},
               {"folder", in.folder},
               {"weights", in.has_weights},
               {"layers", c.num_layers},
               {"kda_layers", c.NumLayers(model::LayerKind::kKda)},
               {"mla_layers", c.NumLayers(model::LayerKind::kMla)},
               {"model_dim", c.model_dim},
               {"vocab_size", c.vocab_size},
               {"context", c.context_max},
               {"experts", c.num_experts},
               {"experts_per_token", c.experts_per_token},
               {"tensors", in.counts.num_tensors},
               {"vision_tensors", in.counts.num_vision_tensors},
               {"params_total", in.counts.params_total},
               {"params_active", in.counts.params_active},
               {"bytes_per_token", in.counts.bytes_per_token},
               {"expert_bytes_per_token", in.counts.expert_bytes_per_token}};
  for (const auto& ranks : in.by_ranks) {
    Json group = Json::array();
    for (const model::RankFootprint& footprint : ranks) group.push_back(FootprintJson(footprint));
    json["ranks"][std::to_string(ranks.size())] = std::move(group);
  }
  return DumpJson(json) + "\n";
}

std::string Row(const std::string& label, const std::string& value, bool tty) {
  std::string padded = label;
  padded.resize(16, ' ');
  return Dim(padded, tty) + value + "\n";
}

std::string Pad(std::string text, size_t width) {
  return text.size() < width ? std::string(width - text.size(), ' ') + text : text;
}

std::string ToText(const Inspection& in) {
  const bool tty = StdoutIsTerminal();
  const model::KimiK3Config& c = in.config;
  const model::ModelCounts& n = in.counts;
  const std::string kda = std::to_string(c.NumLayers(model::LayerKind::kKda));
  const std::string mla = std::to_string(c.NumLayers(model::LayerKind::kMla));
  std::string out;
  out += Row("model", in.folder + (in.has_weights ? "" : "  (config.json only, no weights)"), tty);
  out += Row("architecture", "Kimi K3", tty);
  out += Row("layers",
             std::to_string(c.num_layers) + ": " + kda + " KDA, " + mla + " gated MLA; " +
                 std::to_string(c.num_dense_layers) + " dense, the others MoE; AttnRes block " +
                 std::to_string(c.attn_res_block),
             tty);
  out += Row("sizes",
             "model " + std::to_string(c.model_dim) + ", heads " + std::to_string(c.kda_num_heads) +
                 " KDA x " + std::to_string(c.kda_head_dim) + " and " +
                 std::to_string(c.mla_num_heads) + " MLA, vocabulary " + Grouped(c.vocab_size) +
                 ", context " + Grouped(c.context_max),
             tty);
  out += Row("experts",
             std::to_string(c.experts_per_token) + " of " + std::to_string(c.num_experts) +
                 " a token, " + std::to_string(c.num_shared_experts) + " shared",
             tty);
  out +=
      Row("tensors",
          Grouped(n.num_tensors) +
              (n.num_vision_tensors > 0 ? " (" + Grouped(n.num_vision_tensors) + " vision)" : ""),
          tty);
  out +=
      Row("parameters",
          FormatCount(n.params_total) + " total, " + FormatCount(n.params_active) + " active", tty);
  out += Row("read a token",
             FormatBytes(n.bytes_per_token) + " as stored (" +
                 FormatBytes(n.expert_bytes_per_token) + " of it experts)",
             tty);
  for (const auto& [dtype, bytes] : in.by_ranks.at(0).at(0).bytes_by_dtype) {
    out += Row(dtype == in.by_ranks[0][0].bytes_by_dtype.begin()->first ? "in memory" : "",
               FormatBytes(bytes) + " " + std::string(ToString(dtype)), tty);
  }
  out +=
      "\n" + Dim("ranks  rank    weights  read a token  state/sequence  cache/token", tty) + "\n";
  for (const auto& ranks : in.by_ranks) {
    for (size_t r = 0; r < ranks.size(); ++r) {
      const model::RankFootprint& f = ranks[r];
      out += Pad(r == 0 ? std::to_string(ranks.size()) : "", 5) + Pad(std::to_string(r), 6) +
             Pad(FormatBytes(f.total_bytes), 11) + Pad(FormatBytes(f.bytes_per_token), 14) +
             Pad(FormatBytes(f.state_bytes), 16) + Pad(FormatBytes(f.cache_bytes_per_token), 13) +
             "\n";
    }
  }
  if (!in.split_limit.empty()) out += in.split_limit + "\n";
  return out;
}

}  // namespace

void AddInspectCommand(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<InspectOptions>();  // shared: lives as long as the callback
  CLI::App* command =
      app.add_subcommand("inspect", "Show what a model is and what each rank would hold");
  AddModelArgument(*command, options->model);
  command->add_option("--ranks", options->num_ranks, "up to how many ranks (default 4)");
  command->add_option("--trunk", options->trunk,
                      "weights outside the experts: native (as stored) or q8_0");
  command->add_flag("--json", options->json, "print one JSON object");
  command->footer(
      "Examples:\n"
      "  yoke inspect\n"
      "  yoke inspect kimi-k3 --ranks 8 --trunk q8_0    (config.json alone is enough)");
  command->callback([options, &exit_code] {
    const Result<Inspection> inspection = Inspect(*options);
    if (!inspection) {
      exit_code = Fail(inspection.error());
      return;
    }
    const Status written =
        WriteOut(options->json ? ToJson(inspection.value()) : ToText(inspection.value()));
    exit_code = written ? kExitOk : Fail(written.error());
  });
}

}  // namespace yoke::app
