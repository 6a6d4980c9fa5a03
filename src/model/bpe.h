// Byte-pair merging: one piece of text to tokens.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "model/rank_table.h"

namespace yoke::model {

// Holds scratch memory, so that many pieces can be encoded without allocating; one thread at a
// time. The table outlives it.
class BytePairEncoder {
 public:
  explicit BytePairEncoder(const RankTable& table) : table_(table) {}

  // Appends the tokens of `piece`: the piece's own token if there is one, else what is left when
  // neighbours have been merged, lowest rank first and leftmost of equals first, as long as any two
  // form a token. O(n log n) in the bytes of the piece.
  void Encode(std::string_view piece, std::vector<int>& tokens);

 private:
  // A run of bytes that is one token so far. Parts form a doubly linked list over the piece; a part
  // is named by its first byte.
  struct Part {
    uint32_t end = 0;       // one past its last byte, where the next part begins
    uint32_t previous = 0;  // where the part before it begins
    int pair_rank = -1;     // rank of this part and the next as one token, or -1
  };

  // Computes the pair rank of the part at `begin` anew and queues the pair.
  void RankPair(std::string_view piece, uint32_t begin);
  void MergeAll(std::string_view piece);

  const RankTable& table_;
  std::vector<Part> parts_;
  std::vector<std::pair<int, uint32_t>> heap_;  // (pair rank, part), smallest at the front
};

}  // namespace yoke::model
