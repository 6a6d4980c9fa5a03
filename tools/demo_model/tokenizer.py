"""Byte-level BPE in the tiktoken file format, with Kimi K3's split expression.

    python3 tokenizer.py OUT_DIR     # trains, writes tiktoken.model and tokenizer_config.json

Needs python3-regex: the expression intersects character classes (&&).
"""

import base64
import collections
import json
import os
import sys

import regex

import config

_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
SPLIT = regex.compile(
    "|".join(
        [
            r"[\p{Han}]+",
            rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_SUFFIX}",
            rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_SUFFIX}",
            r"\p{N}{1,3}",
            r" ?[^\s\p{L}\p{N}]+[\r\n]*",
            r"\s*[\r\n]+",
            r"\s+(?!\S)",
            r"\s+",
        ]
    ),
    regex.V1,
)

_NAMED = {
    0: "[BOS]",
    1: "[EOS]",
    2: "<|end_of_msg|>",
    3: "<|open|>",
    4: "<|close|>",
    5: "<|sep|>",
    6: "[start_header_id]",
    7: "[end_header_id]",
    9: "[EOT]",
    18: "<|media_begin|>",
    19: "<|media_content|>",
    20: "<|media_end|>",
    21: "<|media_pad|>",
    65: "<osagent_mode>",
    254: "[UNK]",
    255: "[PAD]",
}


def special_tokens():
    """{content: id}; places without a name are reserved."""
    return {
        _NAMED.get(i, f"<|reserved_token_{config.special(i)}|>"): config.special(i)
        for i in range(config.SPECIALS)
    }


class Tokenizer:
    def __init__(self, ranks):
        self.ranks = ranks  # {bytes: rank}
        self.pieces = {rank: piece for piece, rank in ranks.items()}
        self.specials = special_tokens()
        self.pieces.update({i: s.encode() for s, i in self.specials.items()})
        self._cache = {}

    @staticmethod
    def load(directory):
        with open(os.path.join(directory, "tiktoken.model"), "rb") as f:
            lines = (line.split() for line in f)
            return Tokenizer({base64.b64decode(piece): int(rank) for piece, rank in lines})

    def _merge(self, piece):
        """Merges neighbours, lowest rank first, leftmost of equals first."""
        parts = [bytes([b]) for b in piece]
        while len(parts) > 1:
            best, at = min((self.ranks.get(a + b, 1 << 30), i) for i, (a, b) in enumerate(zip(parts, parts[1:])))
            if best == 1 << 30:
                break
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        return [self.ranks[part] for part in parts]

    def encode(self, text):
        """Ids of plain text; special tokens are never made."""
        ids = []
        for match in SPLIT.finditer(text):
            piece = match.group().encode()
            if piece not in self._cache:
                self._cache[piece] = self._merge(piece)
            ids += self._cache[piece]
        return ids

    def decode_bytes(self, ids):
        return b"".join(self.pieces[i] for i in ids)

    def decode(self, ids):
        return self.decode_bytes(ids).decode(errors="replace")


def train(text, size):
    """Ranks 0..255 are the bytes; then the most frequent pair, again and again."""
    words = [
        ([bytes([b]) for b in word.encode()], count)
        for word, count in sorted(collections.Counter(SPLIT.findall(text)).items())
    ]
    counts = collections.Counter()
    where = collections.defaultdict(set)
    for i, (parts, count) in enumerate(words):
        for pair in zip(parts, parts[1:]):
            counts[pair] += count
            where[pair].add(i)
    ranks = {bytes([b]): b for b in range(256)}
    while len(ranks) < size:
        pair = max(counts, key=lambda p: (counts[p], p))
        merged = pair[0] + pair[1]
        ranks.setdefault(merged, len(ranks))
        for i in sorted(where[pair]):
            parts, count = words[i]
            for p in zip(parts, parts[1:]):
                counts[p] -= count
            k = 0
            while k + 1 < len(parts):
                if (parts[k], parts[k + 1]) == pair:
                    parts[k : k + 2] = [merged]
                k += 1
            for p in zip(parts, parts[1:]):
                counts[p] += count
                where[p].add(i)
        del counts[pair], where[pair]
    return ranks


def write(directory, ranks):
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, "tiktoken.model"), "wb") as f:
        for piece, rank in sorted(ranks.items(), key=lambda item: item[1]):
            f.write(base64.b64encode(piece) + b" %d\n" % rank)
    plain = ("<|open|>", "<|close|>", "<|sep|>")  # not "special" in the release either
    added = {
        str(i): {
            "content": content,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": content not in plain,
        }
        for content, i in special_tokens().items()
    }
    named = [content for i, content in _NAMED.items() if i in (2, 6, 7, 9, 18, 19, 20, 21)]
    table = {
        "added_tokens_decoder": added,
        "additional_special_tokens": named,
        "bos_token": "[BOS]",
        "clean_up_tokenization_spaces": False,
        "eos_token": "[EOS]",
        "extra_special_tokens": {},
        "model_max_length": config.text_config()["max_position_embeddings"],
        "pad_token": "[PAD]",
        "tokenizer_class": "TikTokenTokenizer",
        "unk_token": "[UNK]",
    }
    with open(os.path.join(directory, "tokenizer_config.json"), "w") as f:
        json.dump(table, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    import text

    documents, held = text.split()
    write(sys.argv[1], train("".join(documents), config.RANKS))
    tokenizer = Tokenizer.load(sys.argv[1])
    for name, docs in (("training", documents), ("held-out", held)):
        ids = tokenizer.encode("".join(docs))
        assert tokenizer.decode(ids) == "".join(docs)
        print(f"{name}: {len(ids)} tokens, {sum(map(len, docs)) / len(ids):.3f} bytes per token")
