#include "model/tokenizer.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "model/bpe.h"
#include "model/limits.h"
#include "model/pretokenizer.h"
#include "model/rank_table.h"
#include "model/special_tokens.h"
#include "sys/mapped_file.h"

namespace yoke::model {
namespace {

Status CheckUtf8(std::string_view text) {
  const size_t offset = FindInvalidUtf8(text);
  if (offset == std::string_view::npos) return Ok{};
  return Error(ErrorCode::kInvalidArgument,
               "the text is not UTF-8: byte " + std::to_string(static_cast<uint8_t>(text[offset])) +
                   " at offset " + std::to_string(offset) + " is not part of a whole character");
}

}  // namespace

struct Tokenizer::Impl {
  RankTable ranks;
  SpecialTokens specials;
  Pretokenizer pretokenizer;

  // Appends the tokens of text without special tokens. REQUIRES: UTF-8.
  Status Append(std::string_view text, std::vector<int>& tokens) const {
    std::vector<std::string_view> pieces;
    YOKE_RETURN_IF_ERROR(pretokenizer.Split(text, pieces));
    BytePairEncoder encoder(ranks);
    for (const std::string_view piece : pieces) encoder.Encode(piece, tokens);
    return Ok{};
  }
};

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

Result<Tokenizer> Tokenizer::Load(const std::string& folder) {
  const std::string ranks_path = folder + "/tiktoken.model";
  YOKE_TRY(const std::string ranks_text, ReadTextFile(ranks_path, kRankFileBytesMax));
  auto ranks = RankTable::Parse(ranks_text);
  if (!ranks) return std::move(ranks).error().Wrap(ranks_path);

  const std::string config_path = folder + "/tokenizer_config.json";
  YOKE_TRY(const std::string config_text, ReadTextFile(config_path, kTokenizerConfigBytesMax));
  auto specials = SpecialTokens::Parse(config_text, ranks.value().size());
  if (!specials) return std::move(specials).error().Wrap(config_path);

  YOKE_TRY(Pretokenizer pretokenizer, Pretokenizer::Create(Pretokenizer::Jit::kIfAvailable));
  return Tokenizer(std::make_unique<Impl>(
      Impl{std::move(ranks).value(), std::move(specials).value(), std::move(pretokenizer)}));
}

size_t Tokenizer::vocab_size() const {
  return std::max(impl_->ranks.size(), static_cast<size_t>(impl_->specials.id_max() + 1));
}

Result<std::vector<int>> Tokenizer::Encode(std::string_view text) const {
  YOKE_RETURN_IF_ERROR(CheckUtf8(text));
  std::vector<int> tokens;
  YOKE_RETURN_IF_ERROR(impl_->Append(text, tokens));
  return tokens;
}

Result<std::vector<int>> Tokenizer::EncodeWithSpecials(std::string_view text) const {
  YOKE_RETURN_IF_ERROR(CheckUtf8(text));
  std::vector<int> tokens;
  size_t plain_begin = 0;
  for (size_t offset = 0; offset < text.size();) {
    const SpecialTokens::Match match = impl_->specials.LongestPrefix(text.substr(offset));
    if (match.num_bytes == 0) {
      ++offset;
      continue;
    }
    YOKE_RETURN_IF_ERROR(impl_->Append(text.substr(plain_begin, offset - plain_begin), tokens));
    tokens.push_back(match.id);
    offset += match.num_bytes;
    plain_begin = offset;
  }
  YOKE_RETURN_IF_ERROR(impl_->Append(text.substr(plain_begin), tokens));
  return tokens;
}

std::string_view Tokenizer::TokenBytes(int token) const {
  const bool is_rank = token >= 0 && static_cast<size_t>(token) < impl_->ranks.size();
  return is_rank ? impl_->ranks.Bytes(token) : impl_->specials.FindName(token);
}

bool Tokenizer::IsSpecial(int token) const {
  return !impl_->specials.FindName(token).empty();
}

int Tokenizer::SpecialId(std::string_view name) const {
  return impl_->specials.FindId(name);
}

std::string Tokenizer::Decode(const std::vector<int>& tokens) const {
  std::string text;
  for (const int token : tokens) text += TokenBytes(token);
  return text;
}

}  // namespace yoke::model
