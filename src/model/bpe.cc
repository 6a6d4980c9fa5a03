#include "model/bpe.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "base/check.h"

namespace yoke::model {

void BytePairEncoder::Encode(std::string_view piece, std::vector<int>& tokens) {
  if (piece.empty()) return;
  if (const int whole = table_.Find(piece); whole >= 0) {
    tokens.push_back(whole);
    return;
  }
  MergeAll(piece);
  for (uint32_t begin = 0; begin < piece.size(); begin = parts_[begin].end) {
    const int rank = table_.Find(piece.substr(begin, parts_[begin].end - begin));
    YOKE_DCHECK(rank >= 0);  // a single byte or something that was merged: both are tokens
    tokens.push_back(rank);
  }
}

void BytePairEncoder::MergeAll(std::string_view piece) {
  YOKE_CHECK(piece.size() < std::numeric_limits<uint32_t>::max());
  const auto size = static_cast<uint32_t>(piece.size());
  parts_.assign(size, Part{});
  heap_.clear();
  for (uint32_t i = 0; i < size; ++i) {
    parts_[i].end = i + 1;
    parts_[i].previous = i - 1;  // of the first part never read
  }
  for (uint32_t i = 0; i < size; ++i) RankPair(piece, i);
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    const auto [rank, begin] = heap_.back();
    heap_.pop_back();
    Part& part = parts_[begin];
    // A part that was merged away or has grown since has another pair rank: that entry is stale.
    if (part.pair_rank != rank) continue;
    const uint32_t gone = part.end;
    part.end = parts_[gone].end;
    parts_[gone].pair_rank = -1;
    if (part.end < size) parts_[part.end].previous = begin;
    RankPair(piece, begin);
    if (begin > 0) RankPair(piece, part.previous);
  }
}

void BytePairEncoder::RankPair(std::string_view piece, uint32_t begin) {
  Part& part = parts_[begin];
  part.pair_rank = -1;
  if (part.end == piece.size()) return;
  part.pair_rank = table_.Find(piece.substr(begin, parts_[part.end].end - begin));
  if (part.pair_rank < 0) return;
  heap_.emplace_back(part.pair_rank, begin);
  std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
}

}  // namespace yoke::model
