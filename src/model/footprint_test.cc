#include "model/footprint.h"

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "fabric/board.h"
#include "fabric/group.h"
#include "fabric/link.h"
#include "model/inventory.h"
#include "model/kimi_k3.h"
#include "model/model_fixture.h"
#include "model/model_info.h"
#include "model/recording_backend.h"

namespace yoke::model {
namespace {

const std::string kDemo = std::string(YOKE_SOURCE_DIR) + "/models/demo-k3";
constexpr TrunkFormat kFormats[] = {TrunkFormat::kAsStored, TrunkFormat::kQ8_0};

std::vector<size_t> Even(size_t num_ranks) {
  return std::vector<size_t>(num_ranks, 1);
}

uint64_t SumOf(const std::vector<RankFootprint>& ranks, uint64_t RankFootprint::*field) {
  return std::accumulate(
      ranks.begin(), ranks.end(), uint64_t{0},
      [field](uint64_t sum, const RankFootprint& rank) { return sum + rank.*field; });
}

// To a peer that is not there: nothing here computes.
class NoLink final : public fabric::Link {
 public:
  std::span<std::byte> TryAcquire() override { return {}; }
  void Post(size_t /*num_bytes*/) override {}
  std::span<const std::byte> TryPoll() override { return {}; }
  void Release() override {}
  Status State() const override { return Ok{}; }
};

// What one rank of the demo model really gives to its backend.
struct Loaded {
  RecordingBackend backend;
  uint64_t file_bytes = 0;
  uint64_t state_bytes = 0;
};

void Load(const std::vector<size_t>& shares, size_t rank, TrunkFormat trunk, Loaded& loaded) {
  const KimiK3Config config = ReadConfig(kDemo).value();
  const Checkpoint checkpoint = Checkpoint::Open(kDemo).value();
  std::vector<KimiK3Shard> shards = ShardKimiK3(config, shares).value();
  WeightLoader loader(checkpoint, loaded.backend, trunk,
                      [&loaded](uint64_t bytes) { loaded.file_bytes = bytes; });
  Result<KimiK3Weights> weights = LoadKimiK3Weights(config, shards[rank], loader);
  ASSERT_TRUE(weights) << weights.error().message();
  std::vector<std::unique_ptr<fabric::Link>> links;
  for (size_t peer = 0; peer < shares.size(); ++peer) {
    links.push_back(peer == rank ? nullptr : std::make_unique<NoLink>());
  }
  fabric::Board board = {};
  fabric::Group group(static_cast<int>(rank), std::move(links), board, {});
  KimiK3 model(config, std::move(shards), std::move(weights).value(), loaded.backend, group, {});
  const auto state = model.NewSequence();
  loaded.state_bytes = sizeof(float) * loaded.backend.buffer_sizes().back();
}

TEST(FootprintTest, IsWhatLoadingGivesToTheBackend) {
  const KimiK3Config config = ReadConfig(kDemo).value();
  for (const std::vector<size_t>& shares :
       {Even(1), Even(2), Even(3), Even(4), Even(8), std::vector<size_t>{3, 1}}) {
    for (const TrunkFormat trunk : kFormats) {
      const auto footprints = FootprintOf(config, shares, trunk).value();
      ASSERT_EQ(footprints.size(), shares.size());
      for (size_t rank = 0; rank < shares.size(); ++rank) {
        SCOPED_TRACE(testing::Message() << "rank " << rank << " of " << shares.size()
                                        << (trunk == TrunkFormat::kQ8_0 ? ", q8_0" : ""));
        const RankFootprint& footprint = footprints[rank];
        Loaded loaded;
        Load(shares, rank, trunk, loaded);
        std::map<DType, uint64_t> bytes_by_dtype;
        uint64_t total_bytes = 0;
        for (const HostMatrix& matrix : loaded.backend.weights()) {
          bytes_by_dtype[matrix.dtype] += matrix.TotalBytes();
          total_bytes += matrix.TotalBytes();
        }
        EXPECT_EQ(footprint.bytes_by_dtype, bytes_by_dtype);
        EXPECT_EQ(footprint.total_bytes, total_bytes);
        EXPECT_EQ(footprint.expert_bytes, bytes_by_dtype[DType::kMxfp4]);
        EXPECT_EQ(footprint.file_bytes, loaded.file_bytes);
        EXPECT_EQ(footprint.state_bytes, loaded.state_bytes);
      }
    }
  }
}

TEST(FootprintTest, OneRankReadsEveryByteOfTheFilesOnce) {
  const KimiK3Config config = ReadConfig(kDemo).value();
  const Checkpoint checkpoint = Checkpoint::Open(kDemo).value();
  uint64_t tail_bytes = 0;  // of A_log, past the heads
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    if (name.ends_with("A_log")) tail_bytes += tensor.bytes.size() - 4 * config.kda_num_heads;
  }
  EXPECT_EQ(FootprintOf(config, Even(1), TrunkFormat::kAsStored).value()[0].file_bytes,
            checkpoint.TotalBytes() - tail_bytes);
}

// Bytes in memory of what is whole on every rank, by name.
uint64_t WholeBytes(const KimiK3Config& config) {
  uint64_t bytes = 0;
  for (const TensorSpec& spec : ListTensors(config, /*with_vision=*/false)) {
    const auto ends_with = [&spec](const char* ending) { return spec.name.ends_with(ending); };
    if (ends_with("q_a_proj.weight") || ends_with("kv_a_proj_with_mqa.weight") ||
        ends_with("f_a_proj.weight")) {
      bytes += 2 * spec.num_params;
    } else if (ends_with("norm.weight") || ends_with("res_proj.weight") ||
               ends_with("e_score_correction_bias")) {
      bytes += 4 * spec.num_params;
    }
  }
  return bytes;
}

TEST(FootprintTest, RanksTogetherHoldEverySlicedPartOnce) {
  const KimiK3Config demo = ReadConfig(kDemo).value();
  const KimiK3Config released = ParseKimiK3Config(DumpJson(ReleasedConfig())).value();
  for (const KimiK3Config& config : {demo, released}) {
    const auto one = FootprintOf(config, Even(1), TrunkFormat::kAsStored).value();
    const uint64_t whole_bytes = WholeBytes(config);
    EXPECT_LT(whole_bytes, one[0].total_bytes / 20);
    SCOPED_TRACE(testing::Message() << config.num_layers << " layers");
    const auto ranks = FootprintOf(config, Even(3), TrunkFormat::kAsStored).value();
    EXPECT_EQ(SumOf(ranks, &RankFootprint::embedding_bytes), one[0].embedding_bytes);
    EXPECT_EQ(SumOf(ranks, &RankFootprint::expert_bytes), one[0].expert_bytes);
    EXPECT_EQ(SumOf(ranks, &RankFootprint::total_bytes), one[0].total_bytes + 2 * whole_bytes);
    EXPECT_EQ(SumOf(ranks, &RankFootprint::state_bytes), one[0].state_bytes);
  }
}

TEST(FootprintTest, BordersInsideABlockKeepTheBlockOnBothSides) {
  const KimiK3Config config = ReadConfig(kDemo).value();
  const auto one = FootprintOf(config, Even(1), TrunkFormat::kAsStored).value();
  // Four ranks cut 96 columns into 24s, which lie in 1, 2, 2 and 1 blocks of the three: w2, a third
  // of the experts, is there twice.
  ASSERT_EQ(config.expert_ffn_dim, 96u);
  const auto four = FootprintOf(config, Even(4), TrunkFormat::kAsStored).value();
  EXPECT_EQ(SumOf(four, &RankFootprint::expert_bytes), one[0].expert_bytes / 3 * 4);
}

TEST(FootprintTest, ReadsPerTokenEverythingButTheEmbeddingAndIdleExperts) {
  const KimiK3Config config = ReadConfig(kDemo).value();
  for (const TrunkFormat trunk : kFormats) {
    const auto ranks = FootprintOf(config, Even(2), trunk).value();
    for (const RankFootprint& rank : ranks) {
      const uint64_t trunk_bytes = rank.total_bytes - rank.expert_bytes - rank.embedding_bytes;
      EXPECT_EQ(rank.bytes_per_token,
                trunk_bytes + rank.expert_bytes * config.experts_per_token / config.num_experts);
    }
  }
  // 3 MLA layers of 64 + 8 floats.
  EXPECT_EQ(FootprintOf(config, Even(2), TrunkFormat::kAsStored).value()[1].cache_bytes_per_token,
            864u);
}

void ExpectWithin(double actual, double expected, double relative) {
  EXPECT_NEAR(actual, expected, relative * expected);
}

TEST(FootprintTest, TheReleasedModelReads137GigabytesPerToken) {
  const KimiK3Config config = ParseKimiK3Config(DumpJson(ReleasedConfig())).value();
  const auto native = FootprintOf(config, Even(1), TrunkFormat::kAsStored).value();
  ExpectWithin(static_cast<double>(native[0].bytes_per_token), 137e9, 0.005);
  ExpectWithin(static_cast<double>(native[0].bytes_per_token),
               static_cast<double>(CountModel(config).bytes_per_token), 0.001);
  ExpectWithin(static_cast<double>(native[0].total_bytes), 1.56e12, 0.01);
  const auto q8 = FootprintOf(config, Even(1), TrunkFormat::kQ8_0).value();
  ExpectWithin(static_cast<double>(q8[0].bytes_per_token), 85e9, 0.01);
  // Four ranks: each near a quarter, both of memory and of what a token reads.
  const auto quarters = FootprintOf(config, Even(4), TrunkFormat::kAsStored).value();
  for (const RankFootprint& rank : quarters) {
    ExpectWithin(static_cast<double>(rank.total_bytes),
                 static_cast<double>(native[0].total_bytes) / 4, 0.01);
    ExpectWithin(static_cast<double>(rank.bytes_per_token),
                 static_cast<double>(native[0].bytes_per_token) / 4, 0.03);
  }
}

TEST(FootprintTest, AnImpossibleSplitIsTheShardsError) {
  const KimiK3Config config = ParseKimiK3Config(DumpJson(SmallConfig())).value();
  const auto footprints = FootprintOf(config, Even(4), TrunkFormat::kAsStored);
  ASSERT_FALSE(footprints);
  EXPECT_EQ(footprints.error().message(), ShardKimiK3(config, Even(4)).error().message());
}

}  // namespace
}  // namespace yoke::model
