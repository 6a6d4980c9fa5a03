// For tests: groups of ranks as threads of one process, on any link back end. A new back end adds
// one line to kBackends and runs every case of the conformance suite in group_test.cc.
#pragma once

#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "fabric/board.h"
#include "fabric/group.h"
#include "fabric/link.h"
#include "fabric/shm_link.h"
#include "fabric/waiter.h"
#include "sys/shm.h"

namespace yoke::fabric {

class TestNet {
 public:
  virtual ~TestNet() = default;
  virtual Board& board() = 0;
  // From `rank` to `peer`; once for each pair.
  virtual std::unique_ptr<Link> MakeLink(int rank, int peer) = 0;
};

class ShmTestNet final : public TestNet {
 public:
  explicit ShmTestNet(int num_ranks) : num_ranks_(num_ranks), segment_(Create(num_ranks)) {}
  Board& board() override { return BoardIn(segment_); }
  ShmSegment& segment() { return segment_; }
  std::unique_ptr<Link> MakeLink(int rank, int peer) override {
    return MakeShmLink(segment_, num_ranks_, rank, peer);
  }

 private:
  static ShmSegment Create(int num_ranks) {
    return std::move(ShmSegment::Create(GroupSegmentBytes(num_ranks))).value();
  }

  int num_ranks_;
  ShmSegment segment_;
};

struct Backend {
  const char* name;
  std::unique_ptr<TestNet> (*make)(int num_ranks);
};

inline const Backend kBackends[] = {{"Shm", [](int num_ranks) -> std::unique_ptr<TestNet> {
                                       return std::make_unique<ShmTestNet>(num_ranks);
                                     }}};

// Enough for a sanitizer build on a busy machine; a lost message still ends the test.
inline constexpr WaitLimits kTestLimits{.stale_ns = 2'500'000'000, .deadline_ns = 20'000'000'000};

inline Group MakeGroup(TestNet& net, int num_ranks, int rank, WaitLimits limits = kTestLimits) {
  std::vector<std::unique_ptr<Link>> links;
  for (int peer = 0; peer < num_ranks; ++peer) {
    links.push_back(peer == rank ? nullptr : net.MakeLink(rank, peer));
  }
  return {rank, std::move(links), net.board(), limits};
}

// Runs body(rank's group) in a thread for each of `ranks`, and joins them.
inline void RunRanks(TestNet& net, int num_ranks, const std::vector<int>& ranks,
                     const std::function<void(Group&)>& body, WaitLimits limits = kTestLimits) {
  std::vector<std::thread> threads;
  for (int rank : ranks) {
    threads.emplace_back([&, rank] {
      Group group = MakeGroup(net, num_ranks, rank, limits);
      body(group);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace yoke::fabric
