"""Decodes each token of a sequence to its text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from transformers import PreTrainedTokenizerFast

UNKNOWN = "\N{REPLACEMENT CHARACTER}"
"""What the bytes of an incomplete character are decoded to."""


class TokenTexts:
    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.tokenizer = tokenizer
        self._texts = dict[int, str]()

    def __call__(self, ids: Sequence[int]) -> list[str]:
        """Each token's text; joined they are the whole text. A character of several tokens is at the first of them."""
        for token in {*ids} - self._texts.keys():
            # some tokenizers drop the leading space of a text's first token, so the text of a second one is taken
            single, double = self.tokenizer.batch_decode([[token], [token, token]])
            self._texts[token] = double[len(single) :]
        texts = [self._texts[token] for token in ids]
        for incomplete, run in groupby(range(len(ids)), lambda position: UNKNOWN in texts[position]):
            if incomplete:
                positions = [*run]
                character = self.tokenizer.decode([ids[position] for position in positions])
                texts[positions[0] : positions[-1] + 1] = [character, *[""] * (len(positions) - 1)]
        return texts
