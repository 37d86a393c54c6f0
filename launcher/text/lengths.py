"""Token counts of many rows, faster than encoding them one by one, with equal numbers.

A byte-level BPE (GPT-2, Llama 3, Qwen) splits a text at its added tokens, then by one pattern, and tokenizes each piece
alone. Pieces repeat, so each is tokenized once and its count is remembered. Only plain ASCII is counted this way, as
all regex engines agree on it; other texts are tokenized in batches.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import regex
from transformers import PreTrainedTokenizerFast

from launcher.spec.algorithm import Kind
from launcher.spec.data import RefusedRow, Row
from launcher.text.bounds import Count
from launcher.text.encoder import Encoder, Unwritable, prompt_lengths, with_rejected

BATCH = 1024
SAMPLE = 64
"""Texts on which counting by pieces must agree with the tokenizer."""
REMEMBERED = 200_000
"""Pieces whose counts are kept in memory."""

_GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"  # ByteLevel's own pattern
_UNUSUAL = re.compile(r"[^\x20-\x7e\n\r\t]")


class PieceCounter:
    """Counts the tokens of a text as the sum over its pieces, without special tokens around it."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, pattern: str) -> None:
        self.backend, self.pattern = tokenizer.backend_tokenizer, regex.compile(pattern)
        added = sorted((token.content for token in self.backend.get_added_tokens_decoder().values()), key=len)
        self.added = re.compile(f"({'|'.join(map(re.escape, reversed(added))) or '(?!)'})")  # the longest match first
        self.known = dict.fromkeys(added, 1)

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerFast, sample: Sequence[str]) -> PieceCounter | None:
        """None where the tokenizer is of another kind, or counts a text of `sample` differently."""
        pattern = _pattern(json.loads(tokenizer.backend_tokenizer.to_str()))
        if pattern is None:
            return None
        try:
            counter = cls(tokenizer, pattern)
        except regex.error:
            return None
        return counter if all(counter.count(text) in (None, counter._encoded(text)) for text in sample) else None

    def count(self, text: str) -> int | None:
        """None where the tokenizer has to be asked."""
        if _UNUSUAL.search(text):
            return None
        pieces, known = list[str](), self.known
        for place, part in enumerate(self.added.split(text)):
            if place % 2 or part in known:
                pieces.append(part)
            else:
                pieces += self.pattern.findall(part)
        try:
            return sum(map(known.__getitem__, pieces))
        except KeyError:
            if len(known) > REMEMBERED:
                known.clear()
            known.update((piece, self._encoded(piece)) for piece in set(pieces) if piece not in known)
        return sum(map(known.__getitem__, pieces))

    def _encoded(self, text: str) -> int:
        return len(self.backend.encode(text, add_special_tokens=False))


def _pattern(node: dict[str, Any]) -> str | None:
    """The one pattern that pieces are cut by; None where there is none, or something else is done to a text."""
    model, normalizer = node["model"], node["normalizer"] or {"type": "NFC"}
    if model["type"] != "BPE" or model.get("dropout") or normalizer["type"] != "NFC":  # NFC leaves ASCII as it is
        return None
    added = node["added_tokens"]
    if any(token["lstrip"] or token["rstrip"] or token["single_word"] for token in added):
        return None
    if len({token["normalized"] for token in added}) > 1:  # these are searched in two rounds
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


class Lengths:
    """Counts tokens of rows as `encoder` writes them."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self.pieces: PieceCounter | None = None
        self.sampled = not encoder.templated
        """Whether it is known if pieces can be counted; special tokens around plain texts are left to the tokenizer."""

    def of(self, rows: Sequence[Row], kind: Kind) -> list[Count]:
        """Tokens of each row's prompt and of its longer answer (0 without one), and how many sequences it becomes; or
        why it cannot be written."""
        found = list[Count]()
        for start in range(0, len(rows), BATCH):
            batch = rows[start : start + BATCH]
            is_prompt = [kind != "answers" and row.rejected is None for row in batch]
            counts = iter(self._prompts([row for row, single in zip(batch, is_prompt, strict=True) if single]))
            found += [
                next(counts) if single else self._demonstration(row)
                for row, single in zip(batch, is_prompt, strict=True)
            ]
        return found

    def _prompts(self, rows: Sequence[Row]) -> list[Count]:
        texts, errors = dict[int, str](), dict[int, str]()
        for place, row in enumerate(rows):
            try:
                texts[place] = self.encoder.opening(row.prompt, row.template_args)
            except Unwritable as error:
                errors[place] = str(error)
        counts = dict(zip(texts, self._tokens(list(texts.values())), strict=True))
        return [errors[place] if place in errors else (counts[place], 0, 1) for place in range(len(rows))]

    def _tokens(self, texts: list[str]) -> list[int]:
        if texts and not self.sampled:
            self.sampled, self.pieces = True, PieceCounter.of(self.encoder.tokenizer, texts[:SAMPLE])
        quick = [self.pieces.count(text) if self.pieces else None for text in texts]
        backend = self.encoder.tokenizer.backend_tokenizer
        backend.no_padding()
        backend.no_truncation()
        rest = [text for text, count in zip(texts, quick, strict=True) if count is None]
        slow = iter(backend.encode_batch_fast(rest, add_special_tokens=not self.encoder.templated))
        appended = 0 if self.encoder.templated else self.encoder.n_appended
        return [len(next(slow)) - appended if count is None else count for count in quick]

    def _demonstration(self, row: Row) -> Count:
        opening = longest = sequences = 0
        for side in [row] if row.rejected is None else [row, with_rejected(row)]:
            found = self.encoder.demonstration(0, side)
            if isinstance(found, RefusedRow):
                return found.reason
            prompts = prompt_lengths(found.sequences)
            answers = (len(each.ids) - prompt for each, prompt in zip(found.sequences, prompts, strict=True))
            opening, longest = max(opening, prompts[0]), max(longest, *answers)
            sequences = max(sequences, len(found.sequences))
        return opening, longest, sequences
