"""The text of each token."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from transformers import PreTrainedTokenizerFast

UNKNOWN = "\N{REPLACEMENT CHARACTER}"
"""What a part of a character is decoded to."""


class TokenTexts:
    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.tokenizer = tokenizer
        self._texts = dict[int, str]()

    def __call__(self, ids: Sequence[int]) -> list[str]:
        """Of each token, which together are the text; that of a character in several tokens stands at the first."""
        for one in {*ids} - self._texts.keys():
            # some tokenizers leave out the space of the first token of a text, so the second one is read
            once, twice = self.tokenizer.batch_decode([[one], [one, one]])
            self._texts[one] = twice[len(once) :]
        found = [self._texts[one] for one in ids]
        for in_parts, run in groupby(range(len(ids)), lambda place: UNKNOWN in found[place]):
            if in_parts:
                places = [*run]
                whole = self.tokenizer.decode([ids[place] for place in places])
                found[places[0] : places[-1] + 1] = [whole, *[""] * (len(places) - 1)]
        return found
