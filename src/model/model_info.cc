#include "model/model_info.h"

#include <filesystem>
#include <utility>

#include "model/checkpoint.h"
#include "model/inventory.h"
#include "model/limits.h"
#include "sys/mapped_file.h"

namespace yoke::model {
Result<KimiK3Config> ReadConfig(const std::string& folder) {
  std::error_code ignored;
  if (!std::filesystem::exists(folder, ignored)) {
    return Error(ErrorCode::kNotFound,
                 "no model at " + folder + ": expected a folder with config.json and weights");
  }
  if (!std::filesystem::is_directory(folder, ignored)) {
    return Error(ErrorCode::kInvalidArgument,
                 folder + " is not a folder; expected a model folder with config.json");
  }
  const std::string path = folder + "/config.json";
  if (!std::filesystem::exists(path, ignored)) {
    return Error(ErrorCode::kNotFound, folder + " holds no config.json: not a model folder");
  }
  YOKE_TRY(const std::string text, ReadTextFile(path, kConfigBytesMax));
  Result<KimiK3Config> config = ParseKimiK3Config(text);
  if (!config) return std::move(config).error().Wrap(path);
  return config;
}

Result<ModelInfo> OpenModel(const std::string& folder) {
  YOKE_TRY(KimiK3Config config, ReadConfig(folder));
  YOKE_TRY(const Checkpoint checkpoint, Checkpoint::Open(folder));
  YOKE_RETURN_IF_ERROR(CheckInventory(checkpoint, config));
  YOKE_TRY(Tokenizer tokenizer, Tokenizer::Load(folder));
  if (tokenizer.vocab_size() > config.vocab_size) {
    return Error(ErrorCode::kCorrupt,
                 folder + ": the tokenizer has " + std::to_string(tokenizer.vocab_size()) +
                     " ids, the model only " + std::to_string(config.vocab_size));
  }
  // A chat turn ends with config.json's eos token, a plain text with the tokenizer's [EOS]: either
  // is the end.
  if (const int eos = tokenizer.SpecialId("[EOS]"); eos >= 0) config.eos_tokens.push_back(eos);
  return ModelInfo{folder, std::move(config), std::move(tokenizer)};
}

}  // namespace yoke::model
