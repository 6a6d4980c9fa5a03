// Model folders with one fault each: every command that opens them ends with exit code 2 and one
// line that names the fault.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "integration/model_copy.h"
#include "integration/run_yoke.h"

namespace yoke::integration {
namespace {

using model::TensorToWrite;

const std::string kLayer0 = "language_model.model.layers.0.";
const std::string kLayer1 = "language_model.model.layers.1.";
constexpr const char* kConfig = "config.json";

struct Fault {
  std::string name;
  void (*make)(const ModelCopy& model);
  std::vector<std::string> named;  // in the message, besides the folder
};

// Opens the model with `run` and `inspect`, which read it alike.
void ExpectEachRefused(const std::vector<Fault>& faults) {
  for (const Fault& fault : faults) {
    SCOPED_TRACE(fault.name);
    const ModelCopy model;
    fault.make(model);
    std::vector<std::string> named = fault.named;
    named.push_back(model.path());
    ExpectRefused(RunYoke({"inspect", model.path()}), named);
    ExpectRefused(RunYoke({"run", model.path(), "-p", "And", "-n", "2"}), named);
  }
}

TEST(BadModelTest, TheUnspoiltCopyRuns) {
  const ModelCopy model;
  EXPECT_EQ(RunYoke({"inspect", model.path()}).exit_code, 0);
  const Outcome run = RunYoke({"run", model.path(), "-p", "And", "-n", "2"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
}

TEST(BadModelTest, FolderThatIsNoModel) {
  const model::TempFolder empty;
  const model::TempFolder with_file;
  with_file.Write("file", "text");
  const struct {
    std::string path;
    std::vector<std::string> named;
  } cases[] = {
      {empty.PathOf("none"), {empty.PathOf("none"), "no model"}},
      {"none\n\x1b[31m", {"none?", "no model"}},  // one line without control characters
      {empty.path(), {empty.path(), "config.json"}},
      {with_file.PathOf("file"), {with_file.PathOf("file"), "not a folder"}},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.path);
    ExpectRefused(RunYoke({"run", c.path, "-p", "And"}), c.named);
    ExpectRefused(RunYoke({"inspect", c.path}), c.named);
    ExpectRefused(RunYoke({"eval", c.path, "--text", with_file.PathOf("file")}), c.named);
    ExpectRefused(RunYoke({"verify", c.path}), c.named);
  }
}

TEST(BadModelTest, Configuration) {
  ExpectEachRefused({
      {"no JSON", [](const ModelCopy& m) { m.Write(kConfig, "{\"a\": }"); }, {kConfig, "JSON"}},
      {"cut JSON",
       [](const ModelCopy& m) { m.Write(kConfig, m.Read(kConfig).substr(0, 500)); },
       {kConfig, "JSON"}},
      {"empty file", [](const ModelCopy& m) { m.Write(kConfig, ""); }, {kConfig, "JSON"}},
      {"depth bomb",
       [](const ModelCopy& m) { m.Write(kConfig, std::string(500'000, '[')); },
       {kConfig, "levels"}},
      {"too large",
       [](const ModelCopy& m) { m.Write(kConfig, std::string(3 << 20, ' ')); },
       {kConfig}},
      {"a list", [](const ModelCopy& m) { m.Write(kConfig, "[]"); }, {kConfig}},
      {"unknown architecture",
       [](const ModelCopy& m) {
         m.EditJson(kConfig, [](Json& json) { json["architectures"] = {"LlamaForCausalLM"}; });
       },
       {kConfig, "architecture", "LlamaForCausalLM"}},
      {"key missing",
       [](const ModelCopy& m) {
         m.EditJson(kConfig, [](Json& json) { json["text_config"].erase("kv_lora_rank"); });
       },
       {kConfig, "kv_lora_rank"}},
      {"size of zero",
       [](const ModelCopy& m) {
         m.EditJson(kConfig, [](Json& json) { json["text_config"]["vocab_size"] = 0; });
       },
       {kConfig, "vocab_size"}},
      {"absurd size",
       [](const ModelCopy& m) {
         m.EditJson(kConfig, [](Json& json) { json["text_config"]["num_experts"] = 1LL << 40; });
       },
       {kConfig, "num_experts"}},
  });
}

TEST(BadModelTest, ShardFile) {
  ExpectEachRefused({
      {"truncated",
       [](const ModelCopy& m) {
         const std::string shard = m.ShardOf(kLayer0 + "self_attn.q_proj.weight");
         m.Write(shard, m.Read(shard).substr(0, 500'000));
       },
       {"model-00001-of-"}},
      {"truncated in the header",
       [](const ModelCopy& m) {
         const std::string shard = m.ShardOf(kLayer0 + "self_attn.q_proj.weight");
         m.Write(shard, m.Read(shard).substr(0, 100));
       },
       {"model-00001-of-"}},
      {"empty",
       [](const ModelCopy& m) { m.Write(m.ShardOf(kLayer0 + "self_attn.q_proj.weight"), ""); },
       {"model-00001-of-"}},
      {"a header longer than any file",
       [](const ModelCopy& m) {
         m.Write(m.ShardOf(kLayer0 + "self_attn.q_proj.weight"), std::string(64, '\x7f'));
       },
       {"model-00001-of-"}},
      {"a byte too many",
       [](const ModelCopy& m) {
         const std::string shard = m.ShardOf(kLayer0 + "self_attn.q_proj.weight");
         m.Write(shard, m.Read(shard) + "x");
       },
       {"model-00001-of-"}},
      {"missing",
       [](const ModelCopy& m) { m.Remove(m.ShardOf(kLayer0 + "self_attn.q_proj.weight")); },
       {"model-00001-of-", ModelCopy::kIndex}},
  });
}

TEST(BadModelTest, Tensor) {
  ExpectEachRefused({
      {"missing",
       [](const ModelCopy& m) {
         const std::string name = kLayer1 + "block_sparse_moe.experts.3.w1.weight_scale";
         m.EditShard(m.ShardOf(name), [&](std::vector<TensorToWrite>& tensors) {
           std::erase_if(tensors, [&](const TensorToWrite& t) { return t.name == name; });
         });
       },
       {kLayer1 + "block_sparse_moe.experts.3.w1.weight_scale", "missing", "U8 [96, 4]"}},
      {"extra",
       [](const ModelCopy& m) {
         m.EditShard(m.ShardOf(kLayer0 + "self_attn.A_log"),
                     [](std::vector<TensorToWrite>& tensors) {
                       tensors.push_back({"language_model.evil\n\x1b[2J", "U8", {2}, "ab"});
                     });
       },
       {"language_model.evil", "extra"}},
      {"misshapen",
       [](const ModelCopy& m) {
         m.EditTensor(kLayer0 + "mlp.gate_proj.weight",
                      [](TensorToWrite& t) { std::swap(t.shape[0], t.shape[1]); });
       },
       {kLayer0 + "mlp.gate_proj.weight", "[512, 192]", "[192, 512]"}},
      {"of another type",
       [](const ModelCopy& m) {
         m.EditTensor(kLayer0 + "self_attn.q_proj.weight",
                      [](TensorToWrite& t) { t.dtype = "F16"; });
       },
       {kLayer0 + "self_attn.q_proj.weight", "BF16", "F16"}},
  });
}

TEST(BadModelTest, Index) {
  ExpectEachRefused({
      {"names a missing file",
       [](const ModelCopy& m) {
         m.EditJson(ModelCopy::kIndex, [](Json& index) {
           index["weight_map"][kLayer0 + "self_attn.A_log"] = "gone.safetensors";
         });
       },
       {"gone.safetensors", ModelCopy::kIndex}},
      {"names the wrong shard",
       [](const ModelCopy& m) {
         const std::string other = m.ShardOf(kLayer1 + "self_attn.A_log");
         m.EditJson(ModelCopy::kIndex,
                    [&](Json& index) { index["weight_map"][kLayer0 + "self_attn.A_log"] = other; });
       },
       {kLayer0 + "self_attn.A_log", ModelCopy::kIndex}},
      {"leaves the folder",
       [](const ModelCopy& m) {
         m.EditJson(ModelCopy::kIndex, [](Json& index) {
           index["weight_map"][kLayer0 + "self_attn.A_log"] = "../x.safetensors";
         });
       },
       {"../x.safetensors", ModelCopy::kIndex}},
      {"no JSON",
       [](const ModelCopy& m) { m.Write(ModelCopy::kIndex, "weight_map"); },
       {ModelCopy::kIndex, "JSON"}},
      {"without weight_map",
       [](const ModelCopy& m) { m.Write(ModelCopy::kIndex, "{}"); },
       {ModelCopy::kIndex, "weight_map"}},
  });
}

TEST(BadModelTest, Tokenizer) {
  constexpr const char* kRanks = "tiktoken.model";
  constexpr const char* kSpecials = "tokenizer_config.json";
  ExpectEachRefused({
      {"missing", [](const ModelCopy& m) { m.Remove(kRanks); }, {kRanks}},
      {"not base64", [](const ModelCopy& m) { m.Write(kRanks, "?? 0\n"); }, {kRanks}},
      {"without numbers", [](const ModelCopy& m) { m.Write(kRanks, "QQ==\n"); }, {kRanks}},
      {"cut", [](const ModelCopy& m) { m.Write(kRanks, m.Read(kRanks).substr(0, 103)); }, {kRanks}},
      {"no special tokens", [](const ModelCopy& m) { m.Remove(kSpecials); }, {kSpecials}},
      {"special tokens that are no JSON",
       [](const ModelCopy& m) { m.Write(kSpecials, "{"); },
       {kSpecials, "JSON"}},
  });
}

// Only a rank that copies them sees these; its error must come out as if there were no ranks.
TEST(BadModelTest, ValuesThatOnlyLoadingSees) {
  const ModelCopy tail;
  tail.EditTensor(kLayer1 + "self_attn.A_log",
                  [](TensorToWrite& t) { t.bytes.replace(4 * 15, 4, "\x01\x02\x03\x04"); });
  const std::string scales = kLayer1 + "block_sparse_moe.experts.3.w1.weight_scale";
  const ModelCopy nan_scale;
  nan_scale.EditTensor(scales, [](TensorToWrite& t) { t.bytes.back() = '\xFF'; });
  for (const char* ranks : {"1", "2"}) {
    ExpectRefused(RunYoke({"run", tail.path(), "-p", "And", "--ranks", ranks}),
                  {kLayer1 + "self_attn.A_log", "must be zero"});
    ExpectRefused(RunYoke({"run", nan_scale.path(), "-p", "And", "--ranks", ranks}),
                  {scales, "255"});
  }
}

TEST(BadModelTest, LogitsThatAreNotNumbers) {
  const ModelCopy model;
  model.EditTensor("language_model.model.norm.weight",
                   [](TensorToWrite& t) { t.bytes.replace(0, 2, "\xC0\x7F"); });  // a BF16 NaN
  model::TempFolder folder;
  folder.Write("text", "In the beginning");
  for (const char* ranks : {"1", "2"}) {
    ExpectRefused(RunYoke({"run", model.path(), "-p", "And", "--ranks", ranks}), {"not finite"});
  }
  ExpectRefused(RunYoke({"run", model.path(), "-p", "And", "--temp", "0"}), {"not finite"});
  ExpectRefused(RunYoke({"run", model.path(), "-p", "And", "--top-k", "0"}), {"not finite"});
  ExpectRefused(RunYoke({"eval", model.path(), "--text", folder.PathOf("text")}), {"not finite"});
  ExpectRefused(RunYoke({"verify", model.path(), "--ranks", "1,2"}), {"not finite"});
}

// Seven experts, so that eight ranks cannot split the router.
TEST(BadModelTest, MoreRanksThanPartsToSplit) {
  const ModelCopy model;
  model.EditJson(kConfig, [](Json& json) { json["text_config"]["num_experts"] = 7; });
  const auto is_dropped = [](const std::string& name) {
    const size_t at = name.find(".experts.");
    if (at == std::string::npos) return false;
    const std::string number = name.substr(at + 9, name.find('.', at + 9) - at - 9);
    return number.size() > 1 || number[0] > '6';
  };
  std::vector<std::string> shards;
  const Json index = ParseJson(model.Read(ModelCopy::kIndex), 1 << 24).value();
  for (const auto& [tensor, shard] : index["weight_map"].items()) shards.push_back(shard);
  std::sort(shards.begin(), shards.end());
  shards.erase(std::unique(shards.begin(), shards.end()), shards.end());
  for (const std::string& shard : shards) {
    model.EditShard(shard, [&](std::vector<TensorToWrite>& tensors) {
      std::erase_if(tensors, [&](const TensorToWrite& t) { return is_dropped(t.name); });
      for (TensorToWrite& tensor : tensors) {
        if (!tensor.name.ends_with("block_sparse_moe.gate.weight") &&
            !tensor.name.ends_with("e_score_correction_bias")) {
          continue;
        }
        tensor.bytes.resize(tensor.bytes.size() / tensor.shape[0] * 7);
        tensor.shape[0] = 7;
      }
    });
  }
  const std::vector<std::string> named = {"7 experts", "8 ranks", "at most 7"};
  ExpectRefused(RunYoke({"run", model.path(), "-p", "And", "--ranks", "8"}), named);
  ExpectRefused(RunYoke({"verify", model.path(), "--ranks", "1,8"}), named);
  EXPECT_EQ(RunYoke({"run", model.path(), "-p", "And", "-n", "2", "--ranks", "7"}).exit_code, 0);
  const Outcome inspect = RunYoke({"inspect", model.path(), "--ranks", "8"});
  EXPECT_EQ(inspect.exit_code, 0) << inspect.err;
  EXPECT_NE(inspect.out.find("at most 7"), std::string::npos) << inspect.out;
}

}  // namespace
}  // namespace yoke::integration
