#include "model/checkpoint.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "model/model_fixture.h"

namespace yoke::model {
namespace {

constexpr const char* kIndexName = "model.safetensors.index.json";

std::string MakeIndex(const std::vector<std::pair<std::string, std::string>>& shard_of) {
  Json weight_map = Json::object();
  for (const auto& [tensor, shard] : shard_of) weight_map[tensor] = shard;
  return DumpJson({{"metadata", {{"total_size", 1}}}, {"weight_map", weight_map}});
}

// Two shards: "a" in one, "b" and "c" in two.
void WriteShards(const TempFolder& folder) {
  folder.Write("one.safetensors", MakeSafetensors({{"a", "U8", {3}, "aaa"}}));
  folder.Write("two.safetensors",
               MakeSafetensors({{"b", "U8", {2}, "bb"}, {"c", "BF16", {1}, "cc"}}));
  folder.Write(
      kIndexName,
      MakeIndex({{"a", "one.safetensors"}, {"b", "two.safetensors"}, {"c", "two.safetensors"}}));
}

std::string ErrorOf(const std::string& folder) {
  const auto checkpoint = Checkpoint::Open(folder);
  if (checkpoint) return "no error";
  EXPECT_EQ(checkpoint.error().message().find('\n'), std::string::npos);
  return checkpoint.error().message();
}

std::string_view Text(const FileTensor& tensor) {
  return {reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size()};
}

TEST(CheckpointTest, ReadsShards) {
  const TempFolder folder;
  WriteShards(folder);
  Checkpoint opened = Checkpoint::Open(folder.path()).value();
  const Checkpoint checkpoint = std::move(opened);
  EXPECT_EQ(checkpoint.folder(), folder.path());
  EXPECT_EQ(checkpoint.tensors().size(), 3U);
  EXPECT_EQ(checkpoint.TotalBytes(), 7U);
  ASSERT_NE(checkpoint.Find("a"), nullptr);
  EXPECT_EQ(Text(*checkpoint.Find("a")), "aaa");
  EXPECT_EQ(Text(*checkpoint.Find("b")), "bb");
  EXPECT_EQ(Text(*checkpoint.Find("c")), "cc");
  EXPECT_NE(checkpoint.Find("a")->shard_idx, checkpoint.Find("b")->shard_idx);
  EXPECT_EQ(checkpoint.Find("d"), nullptr);
}

TEST(CheckpointTest, ReadsTheSameBytesAfterDroppingPages) {
  const TempFolder folder;
  WriteShards(folder);
  folder.Write("one.safetensors",
               MakeSafetensors({{"a", "U8", {100'000}, std::string(100'000, 'a')}}));
  const Checkpoint checkpoint = Checkpoint::Open(folder.path()).value();
  for (const char* name : {"a", "b"}) {
    const FileTensor& tensor = *checkpoint.Find(name);
    const std::string before(Text(tensor));
    checkpoint.DropPages(tensor, tensor.bytes);
    EXPECT_EQ(Text(tensor), before);
  }
}

TEST(CheckpointTest, ReadsASingleFileWithoutIndex) {
  const TempFolder folder;
  folder.Write("model.safetensors", MakeSafetensors({{"a", "U8", {3}, "aaa"}}));
  const Checkpoint checkpoint = Checkpoint::Open(folder.path()).value();
  EXPECT_EQ(Text(*checkpoint.Find("a")), "aaa");
}

TEST(CheckpointTest, RefusesFoldersWithoutWeights) {
  const TempFolder folder;
  EXPECT_EQ(ErrorOf(folder.path()),
            folder.path() + ": no weights: expected " + kIndexName + " or model.safetensors");
  EXPECT_EQ(ErrorOf(folder.PathOf("none")), folder.PathOf("none") + ": no such folder");
  folder.Write("file", "text");
  EXPECT_EQ(ErrorOf(folder.PathOf("file")),
            folder.PathOf("file") + ": expected a folder with a model, got a file");
}

TEST(CheckpointTest, RefusesAnIndexOfAnotherForm) {
  const TempFolder folder;
  WriteShards(folder);
  const auto error_with = [&folder](const std::string& index) {
    folder.Write(kIndexName, index);
    const std::string error = ErrorOf(folder.path());
    const std::string prefix = folder.PathOf(kIndexName) + ": ";
    EXPECT_EQ(error.find(prefix), 0U) << error;
    return error.substr(std::min(error.size(), prefix.size()));
  };
  EXPECT_NE(error_with("{").find("invalid JSON"), std::string::npos);
  EXPECT_NE(error_with("{}").find("weight_map"), std::string::npos);
  EXPECT_NE(error_with(R"({"weight_map": []})").find("weight_map"), std::string::npos);
  EXPECT_EQ(error_with(R"({"weight_map": {}})"), "weight_map is empty");
  for (const std::string shard : {R"("")", R"("../one.safetensors")", R"("/etc/passwd")", R"("..")",
                                  R"(".")", R"("a\\b")", R"("a\u0000b")", "5"}) {
    const std::string error = error_with(R"({"weight_map": {"a": )" + shard + "}}");
    EXPECT_EQ(error.find("weight_map[a]: expected the name of a file in the same folder, got "), 0U)
        << error;
  }
}

TEST(CheckpointTest, RefusesAnIndexThatNamesAMissingShard) {
  const TempFolder folder;
  WriteShards(folder);
  folder.Write(kIndexName, MakeIndex({{"a", "one.safetensors"}, {"b", "three.safetensors"}}));
  EXPECT_EQ(ErrorOf(folder.path()),
            folder.PathOf(kIndexName) +
                ": names three.safetensors (for tensor b), which is not in " + folder.path());
}

TEST(CheckpointTest, RefusesAnIndexThatDisagreesWithTheShards) {
  const TempFolder folder;
  WriteShards(folder);
  const auto error_with = [&folder](const std::vector<std::pair<std::string, std::string>>& index) {
    folder.Write(kIndexName, MakeIndex(index));
    const std::string error = ErrorOf(folder.path());
    const std::string prefix = folder.PathOf(kIndexName) + ": ";
    EXPECT_EQ(error.find(prefix), 0U) << error;
    return error.substr(std::min(error.size(), prefix.size()));
  };
  const std::string one = "one.safetensors";
  const std::string two = "two.safetensors";
  EXPECT_EQ(error_with({{"a", one}, {"b", two}, {"c", two}, {"d", one}}),
            "puts tensor d in one.safetensors, which lacks it");
  EXPECT_EQ(error_with({{"a", one}, {"b", one}, {"c", two}}),
            "puts tensor b in one.safetensors, but it is in two.safetensors");
  EXPECT_EQ(error_with({{"a", one}, {"b", two}}), "lacks tensor c, which is in two.safetensors");
}

TEST(CheckpointTest, RefusesATensorInTwoShards) {
  const TempFolder folder;
  WriteShards(folder);
  folder.Write("one.safetensors", MakeSafetensors({{"a", "U8", {1}, "a"}, {"c", "U8", {1}, "c"}}));
  EXPECT_EQ(ErrorOf(folder.path()),
            folder.PathOf("two.safetensors") + ": tensor c is also in one.safetensors");
}

TEST(CheckpointTest, NamesAShardThatIsDamaged) {
  const TempFolder folder;
  WriteShards(folder);
  const std::string good = MakeSafetensors({{"b", "U8", {2}, "bb"}, {"c", "BF16", {1}, "cc"}});
  const std::string path = folder.PathOf("two.safetensors");
  folder.Write("two.safetensors", good.substr(0, good.size() - 1));
  EXPECT_EQ(ErrorOf(folder.path())
                .find(path + ": the file has " + std::to_string(good.size() - 1) +
                      " bytes, its header describes "),
            0U)
      << ErrorOf(folder.path());
  folder.Write("two.safetensors", "");
  EXPECT_EQ(ErrorOf(folder.path()).find(path), 0U) << ErrorOf(folder.path());
  folder.Write("two.safetensors", "garbage garbage");
  EXPECT_EQ(ErrorOf(folder.path()).find(path + ": safetensors header"), 0U)
      << ErrorOf(folder.path());
}

}  // namespace
}  // namespace yoke::model
