"""The tokens of GPT-2: byte pairs, from its files `vocab.json` and `merges.txt`."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable
from pathlib import Path

_WORDS = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?[^\W\d_]+| ?\d+| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+")


def letters_of_bytes() -> dict[int, str]:
    """Return a printable letter for each byte: its own, or one above 255."""
    own = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in own]
    return {**{b: chr(b) for b in own}, **{b: chr(256 + n) for n, b in enumerate(others)}}


class Tokens:
    """The numbers of tokens, and the order in which pairs of tokens are merged."""

    def __init__(self, folder: Path) -> None:
        self._ids: dict[str, int] = json.loads((folder / "vocab.json").read_text("utf-8"))
        lines = (folder / "merges.txt").read_text("utf-8").splitlines()
        pairs = [line.split() for line in lines if line and not line.startswith("#version")]
        self._ranks = {(first, second): rank for rank, (first, second) in enumerate(pairs)}
        self._letters = letters_of_bytes()

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        found = []
        for word in _WORDS.findall(text):
            parts = [self._letters[byte] for byte in word.encode()]
            found += [self._ids[part] for part in self._merged(parts)]
        return found

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of tokens."""
        texts = {number: text for text, number in self._ids.items()}
        bytes_ = {letter: byte for byte, letter in self._letters.items()}
        return bytes(bytes_[letter] for n in ids for letter in texts[int(n)]).decode(
            errors="replace"
        )

    def _merged(self, parts: list[str]) -> list[str]:
        """Return parts of a word after all merges, the earliest of the list first."""
        while len(parts) > 1:
            ranked = [
                (self._ranks.get(pair, len(self._ranks)), place)
                for place, pair in enumerate(itertools.pairwise(parts))
            ]
            rank, place = min(ranked)
            if rank == len(self._ranks):
                break
            parts = [*parts[:place], parts[place] + parts[place + 1], *parts[place + 2 :]]
        return parts
