// What the supervisor knows of a model folder before any rank starts: everything but weights.
#pragma once

#include <string>

#include "base/result.h"
#include "model/config.h"
#include "model/tokenizer.h"

namespace yoke::model {

struct ModelInfo {
  std::string folder;
  KimiK3Config config;
  Tokenizer tokenizer;
};

// config.json alone.
Result<KimiK3Config> ReadConfig(const std::string& folder);

// Configuration, tokenizer, and the checkpoint's headers against the inventory, so that every
// fault of the files is found here, by one process, with one message.
Result<ModelInfo> OpenModel(const std::string& folder);

}  // namespace yoke::model
