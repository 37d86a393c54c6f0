"""Token counts of many rows: as `Encoder` writes them, encoded in batches."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.spec.algorithm import Kind
from launcher.spec.data import RefusedRow, Row
from launcher.text.bounds import Count
from launcher.text.encoder import Encoder, Unwritable, prompt_lengths, with_rejected

BATCH = 1024


def count_tokens(encoder: Encoder, rows: Sequence[Row], kind: Kind) -> list[Count]:
    """Tokens of each row's prompt and of its longer answer (0 without one), and how many sequences it becomes; or why
    it cannot be written."""
    found = list[Count]()
    for start in range(0, len(rows), BATCH):
        batch = rows[start : start + BATCH]
        counts: list[Count | None] = [
            None if kind != "answers" and row.rejected is None else _count_demonstration(encoder, row) for row in batch
        ]
        prompts = iter(_count_prompts(encoder, [row for row, count in zip(batch, counts, strict=True) if not count]))
        found += [count or next(prompts) for count in counts]
    return found


def _count_prompts(encoder: Encoder, rows: Sequence[Row]) -> list[Count]:
    texts, errors = dict[int, str](), dict[int, str]()
    for place, row in enumerate(rows):
        try:
            texts[place] = encoder.opening(row.prompt, row.template_args)
        except Unwritable as error:
            errors[place] = str(error)
    backend = encoder.tokenizer.backend_tokenizer
    backend.no_padding()
    backend.no_truncation()
    appended = 0 if encoder.templated else encoder.n_appended
    encoded = backend.encode_batch_fast(list(texts.values()), add_special_tokens=not encoder.templated)
    counts = {place: len(each) - appended for place, each in zip(texts, encoded, strict=True)}
    return [errors[place] if place in errors else (counts[place], 0, 1) for place in range(len(rows))]


def _count_demonstration(encoder: Encoder, row: Row) -> Count:
    opening = longest = sequences = 0
    for side in [row] if row.rejected is None else [row, with_rejected(row)]:
        found = encoder.demonstration(0, side)
        if isinstance(found, RefusedRow):
            return found.reason
        prompts = prompt_lengths(found.sequences)
        answers = (len(each.ids) - prompt for each, prompt in zip(found.sequences, prompts, strict=True))
        opening, longest = max(opening, prompts[0]), max(longest, *answers)
        sequences = max(sequences, len(found.sequences))
    return opening, longest, sequences
