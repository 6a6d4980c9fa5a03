"""Three sampled passages of 80 words, and how many of their words the source contains.

    python3 sample.py MODEL_DIR > samples.md
"""

import re
import sys

import torch

import config
import reference
import text
from tokenizer import Tokenizer

PROMPTS = ["And it came to pass", "Psalms 151\n", "Blessed are"]
WORDS = 80
TEMPERATURE = 0.7
SEED = 1611


def words(passage):
    return re.findall(r"[A-Za-z]+(?:'[a-z]+)?", passage)


@torch.no_grad()
def sample(ref, tokenizer, prompt, generator):
    """A passage of WORDS words, the prompt's included; no special token is drawn."""
    ids = tokenizer.encode(prompt)
    while len(words(tokenizer.decode(ids))) <= WORDS:
        logits = ref.forward(ids, core=reference.kda_chunked)[-1, : config.RANKS]
        p = torch.softmax(logits.double() / TEMPERATURE, -1)
        ids.append(int(torch.multinomial(p, 1, generator=generator)))
    passage = tokenizer.decode(ids)
    ends = [m.end() for m in re.finditer(r"[A-Za-z]+(?:'[a-z]+)?", passage)]
    return passage[: ends[WORDS - 1]]


def main():
    tokenizer = Tokenizer.load(sys.argv[1])
    ref = reference.Reference(sys.argv[1], torch.float32)
    source = {w.lower() for document in text.chapters() for w in words(document)}
    generator = torch.Generator().manual_seed(SEED)
    print(f"Temperature {TEMPERATURE}, seed {SEED}.")
    for prompt in PROMPTS:
        passage = sample(ref, tokenizer, prompt, generator)
        found = words(passage)
        known = sum(w.lower() in source for w in found)
        quoted = "\n".join("> " + line for line in passage.split("\n"))
        print(f"\n{quoted}\n\n{known} of {len(found)} words ({100 * known / len(found):.1f} %) occur in the source.")


if __name__ == "__main__":
    main()
