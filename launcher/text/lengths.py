"""Token counts of many rows: as `Encoder` writes them, encoded in batches."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.spec.algorithm import Kind
from launcher.spec.data import RefusedRow, Row
from launcher.text.bounds import Count
from launcher.text.encoder import Encoder, Unwritable, prompt_lengths, with_rejected

BATCH = 1024


class Lengths:
    """Counts tokens of rows as `encoder` writes them."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder

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
        backend = self.encoder.tokenizer.backend_tokenizer
        backend.no_padding()
        backend.no_truncation()
        appended = 0 if self.encoder.templated else self.encoder.n_appended
        encoded = backend.encode_batch_fast(texts, add_special_tokens=not self.encoder.templated)
        return [len(each) - appended for each in encoded]

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
