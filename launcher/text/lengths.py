"""Counts tokens of many rows as `Encoder` encodes them; prompts are encoded in batches, which is much faster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from launcher.spec.algorithm import Kind
from launcher.spec.data import RefusedRow, Row
from launcher.text.bounds import EQUAL, Count
from launcher.text.encoder import Encoder, Unwritable, ids_of, prompt_lengths, with_rejected

BATCH = 1024


def count_tokens(encoder: Encoder, rows: Sequence[Row], kind: Kind, cutting: Encoder | None = None) -> list[Count]:
    """For each row the tokens of its prompt and of its longer answer (0 without one) and its number of sequences, or
    why it cannot be written. `cutting` applies the run's length limits to pairs, which may make both answers equal."""
    answered = [kind == "answers" or row.rejected is not None for row in rows]
    prompts = _count_prompts(encoder, [row for row, has_answer in zip(rows, answered, strict=True) if not has_answer])
    return [_count_demonstration(encoder, row, cutting) if has_answer else next(prompts)
            for row, has_answer in zip(rows, answered, strict=True)]  # fmt: skip


def _count_prompts(encoder: Encoder, rows: Sequence[Row]) -> Iterator[Count]:
    backend, appended = encoder.tokenizer.backend_tokenizer, 0 if encoder.templated else encoder.n_appended
    backend.no_padding()
    backend.no_truncation()
    for start in range(0, len(rows), BATCH):
        openings = [_opening(encoder, row) for row in rows[start : start + BATCH]]
        texts = [text for text in openings if isinstance(text, str)]
        encoded = iter(backend.encode_batch_fast(texts, add_special_tokens=not encoder.templated))
        for text in openings:
            yield (len(next(encoded)) - appended, 0, 1) if isinstance(text, str) else str(text)


def _opening(encoder: Encoder, row: Row) -> str | Unwritable:
    try:
        return encoder.opening(row.prompt, row.template_args)
    except Unwritable as error:
        return error


def _count_demonstration(encoder: Encoder, row: Row, cutting: Encoder | None) -> Count:
    opening, longest, sequences, ids_by_side = 0, 0, 0, list[list[list[int]]]()
    for side in [row] if row.rejected is None else [row, with_rejected(row)]:
        tokens = encoder.demonstration(0, side)
        if isinstance(tokens, RefusedRow):
            return tokens.reason
        prompts = prompt_lengths(tokens.sequences)
        answers = (len(each.ids) - prompt for each, prompt in zip(tokens.sequences, prompts, strict=True))
        opening, longest = max(opening, prompts[0]), max(longest, *answers)
        sequences = max(sequences, len(tokens.sequences))
        ids_by_side.append(ids_of(tokens))
    cut = cutting.pair(0, row) if cutting and row.rejected is not None else None
    if ids_by_side[0] in ids_by_side[1:] or isinstance(cut, RefusedRow):
        return EQUAL
    return opening, longest, sequences
