"""The King James Version, from Debian's bible-kjv-text, one document a chapter.

A document is a heading line ("Genesis 1"), the verses joined by spaces into one
paragraph, and a newline.  Chapter number i of the whole book (0-based) is held
out when i % 28 == 13; all other chapters are training text.

    python3 text.py        # prints sizes and what xz needs for the held-out text
"""

import itertools
import lzma
import re
import subprocess

BOOKS = """Ge=Genesis Exo=Exodus Lev=Leviticus Num=Numbers Deu=Deuteronomy Josh=Joshua
Jdgs=Judges Ruth=Ruth 1Sm=1_Samuel 2Sm=2_Samuel 1Ki=1_Kings 2Ki=2_Kings
1Chr=1_Chronicles 2Chr=2_Chronicles Ezra=Ezra Neh=Nehemiah Est=Esther Job=Job Psa=Psalms
Prv=Proverbs Eccl=Ecclesiastes SSol=Song_of_Solomon Isa=Isaiah Jer=Jeremiah
Lam=Lamentations Eze=Ezekiel Dan=Daniel Hos=Hosea Joel=Joel Amos=Amos Obad=Obadiah
Jonah=Jonah Mic=Micah Nahum=Nahum Hab=Habakkuk Zep=Zephaniah Hag=Haggai Zec=Zechariah
Mal=Malachi Mat=Matthew Mark=Mark Luke=Luke John=John Acts=Acts Rom=Romans
1Cor=1_Corinthians 2Cor=2_Corinthians Gal=Galatians Eph=Ephesians Phi=Philippians
Col=Colossians 1Th=1_Thessalonians 2Th=2_Thessalonians 1Tim=1_Timothy 2Tim=2_Timothy
Titus=Titus Phmn=Philemon Heb=Hebrews Jas=James 1Pet=1_Peter 2Pet=2_Peter 1Jn=1_John
2Jn=2_John 3Jn=3_John Jude=Jude Rev=Revelation"""
NAMES = dict(pair.replace("_", " ").split("=") for pair in BOOKS.split())

HELD_OUT_EVERY, HELD_OUT_AT = 28, 13


def chapters():
    """All 1189 chapters in order, as documents."""
    out = subprocess.run(
        ["bible", "-f", "gen1:1-rev22:21"], check=True, capture_output=True, text=True
    ).stdout
    verses = (re.fullmatch(r"(\w+?)(\d+):\d+ (.*)", line.rstrip()).groups() for line in out.splitlines())
    return [
        f"{NAMES[book]} {number}\n" + " ".join(text.strip() for _, _, text in group) + "\n"
        for (book, number), group in itertools.groupby(verses, key=lambda v: v[:2])
    ]


def split():
    """(training documents, held-out documents)."""
    train, held = [], []
    for i, chapter in enumerate(chapters()):
        (held if i % HELD_OUT_EVERY == HELD_OUT_AT else train).append(chapter)
    return train, held


def xz_bits_per_byte(train, held):
    """What `xz -9e` needs for the held-out text once it has the training text."""

    def size(text):
        return len(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))

    a, b = "".join(train), "".join(held)
    return (size(a + b) - size(a)) * 8 / len(b.encode())


if __name__ == "__main__":
    train, held = split()
    print("chapters:", len(train), "training,", len(held), "held out")
    print("bytes:", sum(map(len, train)), "training,", sum(map(len, held)), "held out")
    print(f"xz: {xz_bits_per_byte(train, held):.4f} bits per byte of held-out text")
