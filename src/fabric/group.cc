#include "fabric/group.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>

#include "sys/process.h"

namespace yoke::fabric {
namespace {

constexpr size_t kSlotFloats = kSlotBytes / sizeof(float);

template <typename T>
using PerRank = std::array<T, kRanksMax>;

void Append(std::string& list, size_t rank) {
  if (!list.empty()) list += ", ";
  list += std::to_string(rank);
}

Error LinkError(const Link& link, size_t peer) {
  Status state = link.State();
  return std::move(state).error().Wrap("link to rank " + std::to_string(peer));
}

Error SizeError(size_t peer, size_t came, size_t expected) {
  return {ErrorCode::kCorrupt, "rank " + std::to_string(peer) + " sent " + std::to_string(came) +
                                   " bytes where this rank expected " + std::to_string(expected) +
                                   ": the ranks are not in the same operation"};
}

// Posts the front of `bytes` if the link has a free slot; true if so.
bool SendSlot(Link& link, std::span<const std::byte>& bytes) {
  const std::span<std::byte> slot = link.TryAcquire();
  if (slot.empty()) return false;
  const size_t size = std::min(bytes.size(), slot.size());
  std::memcpy(slot.data(), bytes.data(), size);
  link.Post(size);
  bytes = bytes.subspan(size);
  return true;
}

// Whole byte ranges to and from each peer, all at the same time.
class Exchange {
 public:
  explicit Exchange(std::span<const std::unique_ptr<Link>> links) : links_(links) {}

  void Send(size_t peer, std::span<const std::byte> bytes) { out_[peer] = bytes; }
  void Receive(size_t peer, std::span<std::byte> bytes) { in_[peer] = bytes; }

  bool done() const {
    for (size_t r = 0; r < links_.size(); ++r) {
      if (!out_[r].empty() || !in_[r].empty()) return false;
    }
    return true;
  }

  // Moves what can be moved without waiting. True if anything was, or an error is there.
  bool Advance() {
    bool moved = false;
    for (size_t r = 0; r < links_.size() && !error_; ++r) {
      if (links_[r] == nullptr) continue;
      const bool sent = SendTo(r);
      const bool received = ReceiveFrom(r);
      moved = moved || sent || received;
    }
    return moved || error_.has_value();
  }

  std::optional<Error>& error() { return error_; }
  uint64_t bytes_sent() const { return bytes_sent_; }

  std::string Missing() const {
    std::string list;
    for (size_t r = 0; r < links_.size(); ++r) {
      if (!out_[r].empty() || !in_[r].empty()) Append(list, r);
    }
    return list;
  }

 private:
  bool SendTo(size_t peer) {
    Link& link = *links_[peer];
    const size_t size = out_[peer].size();
    while (!out_[peer].empty() && SendSlot(link, out_[peer])) {
    }
    bytes_sent_ += size - out_[peer].size();
    if (!out_[peer].empty() && !link.State()) error_ = LinkError(link, peer);
    return out_[peer].size() != size;
  }

  bool ReceiveFrom(size_t peer) {
    Link& link = *links_[peer];
    std::span<std::byte>& in = in_[peer];
    bool moved = false;
    while (!in.empty()) {
      const std::span<const std::byte> payload = link.TryPoll();
      if (payload.empty()) {
        if (!link.State()) error_ = LinkError(link, peer);
        break;
      }
      const size_t expected = std::min(in.size(), kSlotBytes);
      if (payload.size() != expected) {
        error_ = SizeError(peer, payload.size(), expected);
        break;
      }
      std::memcpy(in.data(), payload.data(), expected);
      link.Release();
      in = in.subspan(expected);
      moved = true;
    }
    return moved;
  }

  std::span<const std::unique_ptr<Link>> links_;
  PerRank<std::span<const std::byte>> out_{};
  PerRank<std::span<std::byte>> in_{};
  std::optional<Error> error_;
  uint64_t bytes_sent_ = 0;
};

// to[i] = parts[0][i] + parts[1][i] + ..., from left to right; `to` may be one of the parts. Every
// rank runs this same code on the same values, so it makes the same bits. The sum starts from a
// copy and not from 0, which would turn -0 into 0.
void SumInOrder(std::span<const float* const> parts, size_t count, float* to) {
  constexpr size_t kBlock = 1024;  // stays in the first-level cache
  alignas(64) float sum[kBlock];
  for (size_t at = 0; at < count; at += kBlock) {
    const size_t n = std::min(kBlock, count - at);
    std::memcpy(sum, parts[0] + at, n * sizeof(float));
    for (size_t r = 1; r < parts.size(); ++r) {
      const float* __restrict part = parts[r] + at;
      float* __restrict acc = sum;
      for (size_t i = 0; i < n; ++i) acc[i] += part[i];
    }
    std::memcpy(to + at, sum, n * sizeof(float));
  }
}

// One-shot: every rank sends all of its data to every peer, slot by slot, and sums each slot's
// worth once it has come from all and gone to all.
class Reduction {
 public:
  Reduction(int rank, std::span<const std::unique_ptr<Link>> links, std::span<float> data)
      : self_(static_cast<size_t>(rank)), links_(links), data_(data), rest_(data) {
    out_.fill(std::as_bytes(data));
    out_[self_] = {};
  }

  bool done() const { return rest_.empty(); }

  bool Advance() {
    bool moved = false;
    bool ready = true;  // to sum the front of rest_
    for (size_t r = 0; r < links_.size(); ++r) {
      if (r == self_) continue;
      while (!out_[r].empty() && SendSlot(*links_[r], out_[r])) moved = true;
      const bool polled = parts_[r] == nullptr && Poll(r);
      if (error_) return true;
      moved = moved || polled;
      ready = ready && parts_[r] != nullptr && IsSent(r);
    }
    if (ready) Sum();
    return moved || ready;
  }

  std::optional<Error>& error() { return error_; }
  uint64_t bytes_sent() const {
    uint64_t bytes = 0;
    for (size_t r = 0; r < links_.size(); ++r) {
      if (r != self_) bytes += data_.size_bytes() - out_[r].size();
    }
    return bytes;
  }

  std::string Missing() const {
    std::string list;
    for (size_t r = 0; r < links_.size(); ++r) {
      if (r != self_ && (parts_[r] == nullptr || !IsSent(r))) Append(list, r);
    }
    return list;
  }

 private:
  size_t SlotFloats() const { return std::min(rest_.size(), kSlotFloats); }

  // Whether the front of rest_ has gone to the peer, so that it may be overwritten.
  bool IsSent(size_t peer) const {
    return out_[peer].size() <= rest_.size_bytes() - SlotFloats() * sizeof(float);
  }

  bool Poll(size_t peer) {
    Link& link = *links_[peer];
    const std::span<const std::byte> payload = link.TryPoll();
    if (payload.empty()) {
      if (!link.State()) error_ = LinkError(link, peer);
      return false;
    }
    const size_t expected = SlotFloats() * sizeof(float);
    if (payload.size() != expected) {
      error_ = SizeError(peer, payload.size(), expected);
      return false;
    }
    parts_[peer] = reinterpret_cast<const float*>(payload.data());
    return true;
  }

  void Sum() {
    const size_t count = SlotFloats();
    parts_[self_] = rest_.data();
    SumInOrder(std::span(parts_).first(links_.size()), count, rest_.data());
    for (size_t r = 0; r < links_.size(); ++r) {
      if (r != self_) links_[r]->Release();
    }
    parts_.fill(nullptr);
    rest_ = rest_.subspan(count);
  }

  size_t self_;
  std::span<const std::unique_ptr<Link>> links_;
  std::span<float> data_;
  std::span<float> rest_;  // not summed yet
  PerRank<std::span<const std::byte>> out_{};
  PerRank<const float*> parts_{};  // arrived values of the front of rest_, held until all are there
  std::optional<Error> error_;
};

// offsets: num_ranks + 1, rising, within size.
void CheckOffsets(std::span<const size_t> offsets, int num_ranks, size_t size) {
  YOKE_CHECK(offsets.size() == static_cast<size_t>(num_ranks) + 1);
  YOKE_CHECK(std::is_sorted(offsets.begin(), offsets.end()));
  YOKE_CHECK(offsets.back() <= size);
}

template <typename T>
std::span<T> Part(std::span<T> data, std::span<const size_t> offsets, size_t rank) {
  return data.subspan(offsets[rank], offsets[rank + 1] - offsets[rank]);
}

}  // namespace

Group::Group(int rank, std::vector<std::unique_ptr<Link>> links, Board& board, WaitLimits limits)
    : rank_(rank),
      links_(std::move(links)),
      board_(board),
      waiter_(board, num_ranks(), rank, limits),
      idle_waiter_(board, num_ranks(), rank,
                   {.stale_ns = limits.stale_ns, .deadline_ns = kNoDeadline}) {
  YOKE_CHECK(num_ranks() >= 1 && num_ranks() <= kRanksMax);
  YOKE_CHECK(rank >= 0 && rank < num_ranks());
  for (int r = 0; r < num_ranks(); ++r) {
    YOKE_CHECK((links_[static_cast<size_t>(r)] == nullptr) == (r == rank));
  }
}

// Around every operation: what the board shows of us, statistics, and that an error is for good.
template <typename Body>
Status Group::Run(Op op, Body&& body) {
  if (num_ranks() == 1) return Ok{};
  if (failed_) return *failed_;
  BoardLine& line = board_.lines[rank_];
  const uint64_t begin_ns = NowNs();
  const uint64_t waited_before_ns = waiter_.waited_ns();
  ++stats_.num_ops;
  line.op_seq.store(stats_.num_ops, std::memory_order_relaxed);
  line.op.store(op, std::memory_order_relaxed);
  Status status = body();
  line.op.store(Op::kNone, std::memory_order_relaxed);
  stats_.waited_ns += waiter_.waited_ns() - waited_before_ns;
  stats_.total_ns += NowNs() - begin_ns;
  if (!status) Fail(status.error());
  return status;
}

void Group::Fail(const Error& error) {
  failed_ = error;
  board_.ReportError(rank_, error);
}

// Each wait ends with the first thing that moves, so its deadline is for progress and not for the
// whole transfer.
template <typename Work>
Status Group::Drive(Work& work) {
  Status status = Ok{};
  while (!work.done() && status) {
    status = waiter_.Until([&work] { return work.Advance(); });
    if (work.error()) status = *std::move(work.error());
  }
  stats_.bytes_sent += work.bytes_sent();
  if (!status && status.error().code() == ErrorCode::kDeadlineExceeded) {
    return std::move(status).error().Wrap("rank " + std::to_string(rank_) + " waits for rank " +
                                          work.Missing());
  }
  return status;
}

Status Group::AllReduce(std::span<float> data) {
  return Run(Op::kAllReduce, [&] {
    Reduction reduction(rank_, links_, data);
    return Drive(reduction);
  });
}

Status Group::AllGather(std::span<float> data, std::span<const size_t> offsets) {
  CheckOffsets(offsets, num_ranks(), data.size());
  return Run(Op::kAllGather, [&] {
    Exchange exchange(links_);
    for (size_t r = 0; r < links_.size(); ++r) {
      if (links_[r] == nullptr) continue;
      exchange.Send(r, std::as_bytes(Part(data, offsets, static_cast<size_t>(rank_))));
      exchange.Receive(r, std::as_writable_bytes(Part(data, offsets, r)));
    }
    return Drive(exchange);
  });
}

Status Group::Gather(int root, std::span<std::byte> data, std::span<const size_t> offsets) {
  YOKE_CHECK(root >= 0 && root < num_ranks());
  CheckOffsets(offsets, num_ranks(), data.size());
  return Run(Op::kGather, [&] {
    Exchange exchange(links_);
    if (rank_ != root) {
      exchange.Send(static_cast<size_t>(root), Part(data, offsets, static_cast<size_t>(rank_)));
      return Drive(exchange);
    }
    for (size_t r = 0; r < links_.size(); ++r) {
      if (links_[r] != nullptr) exchange.Receive(r, Part(data, offsets, r));
    }
    return Drive(exchange);
  });
}

Status Group::Broadcast(int root, std::span<std::byte> data) {
  YOKE_CHECK(root >= 0 && root < num_ranks());
  return Run(Op::kBroadcast, [&] {
    Exchange exchange(links_);
    if (rank_ != root) {
      exchange.Receive(static_cast<size_t>(root), data);
      return Drive(exchange);
    }
    for (size_t r = 0; r < links_.size(); ++r) {
      if (links_[r] != nullptr) exchange.Send(r, data);
    }
    return Drive(exchange);
  });
}

Status Group::AwaitFrom(int root) {
  YOKE_CHECK(root >= 0 && root < num_ranks());
  if (rank_ == root) return Ok{};
  if (failed_) return *failed_;
  // Not counted as an operation: root does none, and numbers are to be the same on all ranks.
  BoardLine& line = board_.lines[rank_];
  line.op_seq.store(stats_.num_ops + 1, std::memory_order_relaxed);
  line.op.store(Op::kReceivePlan, std::memory_order_relaxed);
  Link& link = *links_[static_cast<size_t>(root)];
  Status status = idle_waiter_.Until([&] { return !link.TryPoll().empty() || !link.State(); });
  if (status && !link.State()) status = LinkError(link, static_cast<size_t>(root));
  line.op.store(Op::kNone, std::memory_order_relaxed);
  if (!status) Fail(status.error());
  return status;
}

Status Group::Barrier() {
  return Run(Op::kBarrier, [&] {
    constexpr std::byte kHere{1};
    PerRank<std::byte> arrived{};
    Exchange exchange(links_);
    for (size_t r = 0; r < links_.size(); ++r) {
      if (links_[r] == nullptr) continue;
      exchange.Send(r, std::span(&kHere, 1));
      exchange.Receive(r, std::span(&arrived[r], 1));
    }
    return Drive(exchange);
  });
}

}  // namespace yoke::fabric
