// Collectives among the ranks of one running model, on links. All ranks enter the same operations
// in the same order. An error ends the group: every later call fails too, and the board gets it,
// so that no peer waits for us until its deadline. Data is cut into slots; some travel while others
// are summed, and nobody waits before having sent what fits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "fabric/board.h"
#include "fabric/link.h"
#include "fabric/waiter.h"

namespace yoke::fabric {

struct GroupStats {
  uint64_t num_ops = 0;
  uint64_t bytes_sent = 0;
  uint64_t total_ns = 0;   // inside collectives, waiting included
  uint64_t waited_ns = 0;  // of total_ns: nothing to do until a peer's data was there
};

class Group {
 public:
  // links[i]: to rank i; null for `rank` itself. board: line `rank` is ours to write.
  Group(int rank, std::vector<std::unique_ptr<Link>> links, Board& board, WaitLimits limits);

  int rank() const { return rank_; }
  int num_ranks() const { return static_cast<int>(links_.size()); }

  // data becomes the sum over ranks, added in rank order in f32: the same bits on every rank.
  Status AllReduce(std::span<float> data);
  // Rank r's part lies at [offsets[r], offsets[r + 1]) of data (num_ranks + 1 offsets, the same on
  // all ranks): our own part is sent from there, the others are filled in. Parts may be empty.
  Status AllGather(std::span<float> data, std::span<const size_t> offsets);
  // Like AllGather, in bytes, but only rank `root` receives.
  Status Gather(int root, std::span<std::byte> data, std::span<const size_t> offsets);
  // All ranks know data.size().
  Status Broadcast(int root, std::span<std::byte> data);
  Status Barrier();
  // Returns when something from `root` has arrived, however long that takes (a rank without work);
  // only the peers' lives are watched. On root itself: at once. Nothing is taken or counted.
  Status AwaitFrom(int root);

  // A group of one rank counts nothing: it does no operation.
  const GroupStats& stats() const { return stats_; }

 private:
  template <typename Body>
  Status Run(Op op, Body&& body);
  template <typename Work>
  Status Drive(Work& work);
  void Fail(const Error& error);

  int rank_;
  std::vector<std::unique_ptr<Link>> links_;
  Board& board_;
  Waiter waiter_;
  Waiter idle_waiter_;  // without a deadline
  GroupStats stats_;
  std::optional<Error> failed_;
};

// Whole messages on one link, for the supervisor and rank 0: 8 bytes of length, then the payload,
// cut into slots.
Status SendMessage(Link& link, Waiter& waiter, std::span<const std::byte> message);
// A longer message than bytes_max is an error.
Result<std::vector<std::byte>> ReceiveMessage(Link& link, Waiter& waiter, size_t bytes_max);

}  // namespace yoke::fabric
