// The tokens that stand beside the BPE ranks: added_tokens_decoder of tokenizer_config.json.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace yoke::model {

// Immutable after Parse.
class SpecialTokens {
 public:
  // Ids must not be below num_ranks, and neither an id nor a name may occur twice.
  static Result<SpecialTokens> Parse(std::string_view tokenizer_config, size_t num_ranks);

  struct Match {
    size_t num_bytes = 0;  // 0: no special token here
    int id = -1;
  };
  // The longest name with which `text` begins.
  Match LongestPrefix(std::string_view text) const;

  int FindId(std::string_view name) const;  // -1 when there is none
  std::string_view FindName(int id) const;  // "" when there is none
  int id_max() const { return by_id_.empty() ? -1 : by_id_.rbegin()->first; }

 private:
  std::map<int, std::string> by_id_;
  std::vector<std::pair<std::string, int>> by_name_;  // sorted
};

}  // namespace yoke::model
