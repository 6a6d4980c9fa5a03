// The conformance suite: what every link back end and the collectives on it must do.
#include "fabric/group.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <tuple>

#include <gtest/gtest.h>

#include "fabric/test_net.h"
#include "sys/process.h"

namespace yoke::fabric {
namespace {

constexpr size_t kSlotFloats = kSlotBytes / sizeof(float);

std::vector<int> AllRanks(int num_ranks) {
  std::vector<int> ranks(static_cast<size_t>(num_ranks));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// One of a fixed set of random words; much faster than a generator in a sanitizer build.
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 31)) * 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 29)) * 0xBF58476D1CE4E5B9u;
  return x ^ (x >> 32);
}

// Values whose sum depends on the order in which they are added.
std::vector<float> RankData(uint64_t seed, int rank, size_t size) {
  const uint64_t start = Mix(seed * 64 + static_cast<uint64_t>(rank) + 1);
  std::vector<float> data(size);
  for (size_t i = 0; i < size; ++i) {
    const uint64_t bits = Mix(start + i);
    const auto scale = static_cast<float>(uint32_t{1} << (bits >> 60));
    data[i] = static_cast<float>(static_cast<int32_t>(bits)) * scale;
  }
  return data;
}

std::vector<float> SumOfRanks(uint64_t seed, const std::vector<int>& order, size_t size) {
  std::vector<float> sum = RankData(seed, order[0], size);
  for (size_t i = 1; i < order.size(); ++i) {
    const std::vector<float> part = RankData(seed, order[i], size);
    for (size_t k = 0; k < size; ++k) sum[k] += part[k];
  }
  return sum;
}

std::vector<std::byte> RankBytes(uint64_t seed, int rank, size_t size) {
  const std::vector<float> words = RankData(seed, rank, size / sizeof(float) + 1);
  std::vector<std::byte> data(size);
  if (size > 0) std::memcpy(data.data(), words.data(), size);
  return data;
}

bool SameBits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

std::string Message(const Status& status) {
  return status ? "ok" : status.error().message();
}

class GroupTest : public ::testing::TestWithParam<std::tuple<Backend, int>> {
 protected:
  const Backend& backend() const { return std::get<0>(GetParam()); }
  int num_ranks() const { return std::get<1>(GetParam()); }
  size_t num_parts() const { return static_cast<size_t>(num_ranks()); }

  void Run(const std::function<void(Group&)>& body) {
    RunRanks(*net_, num_ranks(), AllRanks(num_ranks()), body);
  }

  std::unique_ptr<TestNet> net_ = backend().make(num_ranks());
};

TEST_P(GroupTest, AllReduceIsTheSumInRankOrderOnEveryRank) {
  // Several MB, or with many ranks at least more than a ring holds.
  const size_t large = num_ranks() <= 3 ? 600'011 : 6 * kSlotFloats + 11;
  const size_t sizes[] = {0, 1, 7, kSlotFloats - 1, kSlotFloats, kSlotFloats + 1, 7168 * 3, large};
  std::vector<std::vector<float>> sums;
  for (size_t size : sizes) sums.push_back(SumOfRanks(size, AllRanks(num_ranks()), size));
  if (num_ranks() > 2) {  // the order is seen in this data, else the test proves little
    std::vector<int> reversed = AllRanks(num_ranks());
    std::reverse(reversed.begin(), reversed.end());
    EXPECT_FALSE(SameBits(SumOfRanks(7168 * 3, reversed, 7168 * 3), sums[6]));
  }
  Run([&](Group& group) {
    for (size_t i = 0; i < std::size(sizes); ++i) {
      std::vector<float> data = RankData(sizes[i], group.rank(), sizes[i]);
      const Status status = group.AllReduce(data);
      ASSERT_TRUE(status) << Message(status);
      EXPECT_TRUE(SameBits(data, sums[i])) << "rank " << group.rank() << " size " << sizes[i];
    }
  });
}

TEST_P(GroupTest, AllReduceKeepsSignedZeroInfinityAndNan) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const int last = num_ranks() - 1;
  // A period of 5 over two slots, so that vector bodies and remainders see every case.
  constexpr size_t kSize = kSlotFloats + 13;
  std::vector<std::vector<float>> results(num_parts());
  Run([&](Group& group) {
    const bool is_last = group.rank() == last;
    const float values[] = {-0.0f, is_last ? kInf : 1.0f, group.rank() == 0 ? kNan : 2.0f,
                            is_last ? -kInf : kInf, is_last ? 0.0f : -0.0f};
    std::vector<float> data(kSize);
    for (size_t i = 0; i < kSize; ++i) data[i] = values[i % 5];
    const Status status = group.AllReduce(data);
    ASSERT_TRUE(status) << Message(status);
    results[static_cast<size_t>(group.rank())] = data;
  });
  for (size_t r = 0; r < num_parts(); ++r) {
    EXPECT_TRUE(SameBits(results[r], results[0])) << "rank " << r;
  }
  for (size_t i = 0; i + 5 <= kSize; i += 5) {
    const float* x = &results[0][i];
    ASSERT_TRUE(x[0] == 0 && std::signbit(x[0]));
    ASSERT_EQ(x[1], kInf);
    ASSERT_TRUE(std::isnan(x[2]));
    ASSERT_TRUE(num_ranks() == 1 || std::isnan(x[3]));
    ASSERT_TRUE(x[4] == 0 && !std::signbit(x[4]));
  }
}

TEST_P(GroupTest, AllGatherFillsUnevenAndEmptyParts) {
  // Parts of 0, 1, more than two slots, ... floats, and a margin at both ends.
  std::vector<size_t> offsets = {3};
  for (size_t r = 0; r < num_parts(); ++r) {
    const size_t sizes[] = {0, 2 * kSlotFloats + 5, 1, kSlotFloats};
    offsets.push_back(offsets.back() + sizes[(r + 1) % 4]);
  }
  std::vector<float> expected = RankData(1, 0, offsets.back() + 2);
  Run([&](Group& group) {
    std::vector<float> data(expected.size(), -1.0f);
    const auto r = static_cast<size_t>(group.rank());
    std::copy(expected.begin() + static_cast<std::ptrdiff_t>(offsets[r]),
              expected.begin() + static_cast<std::ptrdiff_t>(offsets[r + 1]),
              data.begin() + static_cast<std::ptrdiff_t>(offsets[r]));
    const Status status = group.AllGather(data, offsets);
    ASSERT_TRUE(status) << Message(status);
    if (num_ranks() == 1) return;
    const size_t begin = offsets.front();
    const size_t size = offsets.back() - begin;
    EXPECT_TRUE(
        SameBits(std::span(data).subspan(begin, size), std::span(expected).subspan(begin, size)));
    EXPECT_TRUE(data[0] == -1 && data[2] == -1);
    EXPECT_TRUE(data[data.size() - 2] == -1 && data.back() == -1);
  });
}

TEST_P(GroupTest, GatherFillsTheRootOnly) {
  std::vector<size_t> offsets = {0};
  for (size_t r = 0; r < num_parts(); ++r) {
    const size_t sizes[] = {9, 0, 5 * kSlotBytes + 1};
    offsets.push_back(offsets.back() + sizes[r % 3]);
  }
  const std::vector<std::byte> expected = RankBytes(2, 0, offsets.back());
  Run([&](Group& group) {
    const auto rank = static_cast<size_t>(group.rank());
    for (int root = 0; root < num_ranks(); ++root) {
      std::vector<std::byte> own(expected.size(), std::byte{0xEE});
      std::copy(expected.begin() + static_cast<std::ptrdiff_t>(offsets[rank]),
                expected.begin() + static_cast<std::ptrdiff_t>(offsets[rank + 1]),
                own.begin() + static_cast<std::ptrdiff_t>(offsets[rank]));
      std::vector<std::byte> data = own;
      const Status status = group.Gather(root, data, offsets);
      ASSERT_TRUE(status) << Message(status);
      EXPECT_TRUE(data == (group.rank() == root ? expected : own)) << "root " << root;
    }
  });
}

TEST_P(GroupTest, BroadcastFromEveryRoot) {
  Run([&](Group& group) {
    for (int root = 0; root < num_ranks(); ++root) {
      for (size_t size : {size_t{0}, size_t{1}, kSlotBytes, 6 * kSlotBytes + 1}) {
        const std::vector<std::byte> expected = RankBytes(size, root, size);
        std::vector<std::byte> data(size);
        if (group.rank() == root) data = expected;
        const Status status = group.Broadcast(root, data);
        ASSERT_TRUE(status) << Message(status);
        EXPECT_TRUE(data == expected) << "root " << root << " size " << size;
      }
    }
  });
}

TEST_P(GroupTest, BarrierSeparatesRounds) {
  constexpr int kRounds = 100;
  std::atomic<int> entered{0};
  Run([&](Group& group) {
    for (int round = 1; round <= kRounds; ++round) {
      entered.fetch_add(1, std::memory_order_relaxed);
      const Status status = group.Barrier();
      ASSERT_TRUE(status) << Message(status);
      const int seen = entered.load(std::memory_order_relaxed);
      EXPECT_GE(seen, round * num_ranks());
      EXPECT_LT(seen, (round + 1) * num_ranks());
    }
  });
}

// One step of a random program; every rank makes the same program from the same seed.
void RandomOperation(Group& group, std::mt19937_64& random, uint64_t id) {
  const int num_ranks = group.num_ranks();
  const auto rank = static_cast<size_t>(group.rank());
  const auto size_max = random() % 4 == 0 ? 3 * kSlotBytes : size_t{300};
  const auto size = static_cast<size_t>(random() % size_max);
  const int root = static_cast<int>(random() % static_cast<uint64_t>(num_ranks));
  std::vector<size_t> offsets(static_cast<size_t>(num_ranks) + 1, size);
  for (int r = 0; r < num_ranks; ++r) offsets[static_cast<size_t>(r)] = random() % (size + 1);
  std::sort(offsets.begin(), offsets.end());
  const std::vector<std::byte> bytes = RankBytes(id, 0, size);
  std::vector<std::byte> mine(size);
  const auto begin = static_cast<std::ptrdiff_t>(offsets[rank]);
  const auto end = static_cast<std::ptrdiff_t>(offsets[rank + 1]);
  std::copy(bytes.begin() + begin, bytes.begin() + end, mine.begin() + begin);
  Status status = Ok{};
  bool right = true;
  switch (random() % 5) {
    case 0: {
      std::vector<float> data = RankData(id, group.rank(), size / 4);
      status = group.AllReduce(data);
      right = SameBits(data, SumOfRanks(id, AllRanks(num_ranks), size / 4));
      break;
    }
    case 1: {
      const std::vector<float> all = RankData(id, 0, size);
      std::vector<float> data(size);
      std::copy(all.begin() + begin, all.begin() + end, data.begin() + begin);
      status = group.AllGather(data, offsets);
      const size_t first = num_ranks == 1 ? size : offsets.front();
      right = SameBits(std::span(data).subspan(first), std::span(all).subspan(first));
      break;
    }
    case 2:
      status = group.Gather(root, mine, offsets);
      if (group.rank() == root && num_ranks > 1) {
        right = std::equal(mine.begin() + static_cast<std::ptrdiff_t>(offsets[0]), mine.end(),
                           bytes.begin() + static_cast<std::ptrdiff_t>(offsets[0]));
      }
      break;
    case 3:
      if (group.rank() == root) mine = bytes;
      status = group.Broadcast(root, mine);
      right = mine == bytes;
      break;
    default:
      status = group.Barrier();
  }
  ASSERT_TRUE(status) << Message(status);
  ASSERT_TRUE(right) << "rank " << group.rank() << " operation " << id << " size " << size;
}

TEST_P(GroupTest, RandomProgram) {
  const char* setting = std::getenv("YOKE_TEST_SEED");
  const uint64_t seed = setting != nullptr ? std::strtoull(setting, nullptr, 10) : 20260101;
  SCOPED_TRACE("YOKE_TEST_SEED=" + std::to_string(seed));
  Run([&](Group& group) {
    std::mt19937_64 random(seed);
    for (uint64_t id = 1; id <= 60 && !::testing::Test::HasFailure(); ++id) {
      RandomOperation(group, random, id);
    }
  });
}

TEST_P(GroupTest, CountsOperationsAndBytes) {
  Run([&](Group& group) {
    std::vector<float> data(kSlotFloats + 10);
    ASSERT_TRUE(group.AllReduce(data));
    ASSERT_TRUE(group.Barrier());
    ASSERT_TRUE(group.Broadcast(0, std::as_writable_bytes(std::span(data).first(2))));
    const GroupStats& stats = group.stats();
    const uint64_t num_peers = num_parts() - 1;
    EXPECT_EQ(stats.num_ops, num_peers > 0 ? 3u : 0u);
    const uint64_t broadcast_bytes = group.rank() == 0 ? 8 : 0;
    EXPECT_EQ(stats.bytes_sent, num_peers * ((kSlotFloats + 10) * 4 + 1 + broadcast_bytes));
    EXPECT_LE(stats.waited_ns, stats.total_ns);
  });
}

TEST_P(GroupTest, ShowsTheOperationOnTheBoardWhileWaiting) {
  Board& board = net_->board();
  Run([&](Group& group) {
    ASSERT_TRUE(group.Barrier());
    if (group.rank() == 0) {
      Waiter waiter(board, num_ranks(), 0, kTestLimits);
      for (int peer = 1; peer < num_ranks(); ++peer) {
        const BoardLine& line = board.lines[peer];
        EXPECT_TRUE(waiter.Until([&] { return line.op == Op::kAllReduce && line.op_seq == 2; }));
      }
    }
    std::vector<float> data(5, 1.0f);
    ASSERT_TRUE(group.AllReduce(data));
    EXPECT_EQ(data[4], static_cast<float>(num_ranks()));
    EXPECT_EQ(board.lines[group.rank()].op, Op::kNone);
  });
}

TEST_P(GroupTest, AwaitFromReturnsWhenTheRootHasSent) {
  Board& board = net_->board();
  const int root = num_ranks() - 1;
  std::atomic<bool> sending{false};
  Run([&](Group& group) {
    ASSERT_TRUE(group.Barrier());
    if (group.rank() == root) {
      Waiter waiter(board, num_ranks(), root, kTestLimits);
      for (int peer = 0; peer < root; ++peer) {
        const BoardLine& line = board.lines[peer];
        EXPECT_TRUE(waiter.Until([&] { return line.op == Op::kReceivePlan && line.op_seq == 2; }));
      }
      sending = true;
    }
    ASSERT_TRUE(group.AwaitFrom(root));
    EXPECT_TRUE(sending);
    float value = group.rank() == root ? 5.0f : 0.0f;
    ASSERT_TRUE(group.Broadcast(root, std::as_writable_bytes(std::span(&value, 1))));
    EXPECT_EQ(value, 5.0f);
    EXPECT_EQ(group.stats().num_ops, num_ranks() == 1 ? 0u : 2u);
  });
}

TEST_P(GroupTest, RanksInDifferentOperationsGetAnError) {
  Run([&](Group& group) {
    std::vector<float> data(group.rank() == 0 ? 10 : 11);
    const Status status = group.AllReduce(data);
    if (num_ranks() == 1) {
      EXPECT_TRUE(status);
      return;
    }
    ASSERT_FALSE(status);
    // Who sees the sizes differ says so; a third one may learn it from the board.
    EXPECT_NE(Message(status).find("the ranks are not in the same operation"), std::string::npos)
        << Message(status);
    EXPECT_EQ(Message(group.Barrier()), Message(status)) << "a failed group must stay failed";
  });
}

std::string ParamName(const ::testing::TestParamInfo<std::tuple<Backend, int>>& info) {
  return std::string(std::get<0>(info.param).name) + std::to_string(std::get<1>(info.param)) +
         "Ranks";
}
INSTANTIATE_TEST_SUITE_P(Links, GroupTest,
                         ::testing::Combine(::testing::ValuesIn(kBackends), ::testing::Range(1, 9)),
                         ParamName);

}  // namespace
}  // namespace yoke::fabric
