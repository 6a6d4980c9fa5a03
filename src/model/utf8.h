// UTF-8: checking it, reading it, and joining it from parts.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace yoke::model {

enum class Utf8Kind {
  kValid,
  kInvalid,     // can never become UTF-8, whatever follows
  kIncomplete,  // the text ends inside a character
};

// What stands at the front of a text.
struct Utf8Char {
  Utf8Kind kind;
  // Of a valid character: its bytes. Of anything else: the bytes that one U+FFFD stands for, which
  // are the longest beginning of a valid character, or one byte (as Unicode chapter 3.9 advises).
  size_t num_bytes;
  char32_t code_point;  // of a valid character
};

// REQUIRES: text is not empty.
Utf8Char ReadUtf8(std::string_view text);

// Byte offset of the first byte that is not UTF-8, or npos.
size_t FindInvalidUtf8(std::string_view text);

// Joins token bytes into text and never gives out half a UTF-8 character.
class StreamDecoder {
 public:
  // Returns the text that is complete now; keeps an unfinished character. Bytes that can never
  // become UTF-8 come out as U+FFFD.
  std::string Push(std::string_view token_bytes);
  // The end: an unfinished character becomes U+FFFD. The decoder can be used for another text.
  std::string Finish();

 private:
  std::string pending_;  // the beginning of a character: at most 3 bytes
};

}  // namespace yoke::model
