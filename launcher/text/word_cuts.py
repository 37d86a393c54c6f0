"""Counting the tokens of a text without making them: a byte-level BPE never joins what its pattern keeps apart.

Such a tokenizer (GPT-2, Llama 3, Qwen) cuts a text by one pattern, and tokenises each piece alone. Pieces repeat, so
each is counted once and remembered. Only texts of plain ASCII are counted so, as patterns agree on those in every
engine of regular expressions; whatever else there is, the tokenizer itself does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import regex
from transformers import PreTrainedTokenizerFast

_GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"  # ByteLevel's own pattern
_UNUSUAL = re.compile(r"[^\x20-\x7e\n\r\t]")
KEPT = 200_000  # pieces that are remembered


class PieceCounter:
    """The tokens of `before + text + after` for many texts."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, pattern: str, before: str, after: str) -> None:
        self.backend, self.pattern = tokenizer.backend_tokenizer, regex.compile(pattern)
        self.added = tuple(token.content for token in self.backend.get_added_tokens_decoder().values())
        starts = [before.rfind(token) + len(token) for token in self.added if token in before]
        ends = [after.find(token) for token in self.added if token in after]
        start, end = max(starts, default=0), min(ends, default=len(after))
        self.whole = before, after
        self.head, self.tail = before[start:], after[:end]  # what stands next to the text, no token between
        self.constant = self._encoded(before[:start]) + self._encoded(after[end:])
        self.known: dict[str, int] = {}

    @classmethod
    def of(
        cls, tokenizer: PreTrainedTokenizerFast, before: str, after: str, sample: Sequence[str]
    ) -> PieceCounter | None:
        """None where the tokenizer is of another kind, or counts a text of `sample` otherwise."""
        pattern = _pattern(json.loads(tokenizer.backend_tokenizer.to_str()))
        if pattern is None:
            return None
        try:
            made = cls(tokenizer, pattern, before, after)
        except regex.error:
            return None
        counts = [(made.count(text), made._encoded(f"{before}{text}{after}")) for text in sample]
        return made if all(count in (None, true) for count, true in counts) else None

    def count(self, text: str) -> int | None:
        """None where the tokenizer has to be asked."""
        if _UNUSUAL.search(text) or any(token in text for token in self.added):
            return None
        pieces, known = self.pattern.findall(f"{self.head}{text}{self.tail}"), self.known
        try:
            return self.constant + sum(map(known.__getitem__, pieces))
        except KeyError:
            if len(known) > KEPT:
                known.clear()
            known.update((piece, self._encoded(piece)) for piece in set(pieces) if piece not in known)
        return self.constant + sum(map(known.__getitem__, pieces))

    def _encoded(self, text: str) -> int:
        return len(self.backend.encode(text, add_special_tokens=False))


def _pattern(node: dict[str, Any]) -> str | None:
    """The one pattern that pieces are cut by; None where there is none, or something else is done to a text."""
    model, normalizer = node["model"], node["normalizer"] or {"type": "NFC"}
    if model["type"] != "BPE" or model.get("dropout") or normalizer["type"] != "NFC":  # NFC leaves ASCII as it is
        return None
    if any(token["lstrip"] or token["rstrip"] or token["single_word"] for token in node["added_tokens"]):
        return None
    cutter = node["pre_tokenizer"] or {"type": ""}
    steps = cutter["pretokenizers"] if cutter["type"] == "Sequence" else [cutter]
    last = steps[-1]
    if last["type"] != "ByteLevel" or last["add_prefix_space"]:
        return None
    if len(steps) == 1 and last["use_regex"]:
        return _GPT2
    if len(steps) != 2 or last["use_regex"]:
        return None
    split = steps[0]
    single = split["type"] == "Split" and split["behavior"] == "Isolated" and not split["invert"]
    return split["pattern"].get("Regex") if single else None
