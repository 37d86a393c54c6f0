"""Counts the tokens of rows, by encoding each as training does."""

from __future__ import annotations

from launcher.spec.algorithm import Kind
from launcher.spec.data import RefusedRow, Row
from launcher.text.bounds import EQUAL, Count
from launcher.text.encoder import Encoder, ids_of, prompt_lengths, with_rejected


def count_tokens(encoder: Encoder, row: Row, kind: Kind, cutting: Encoder | None = None) -> Count:
    """The tokens of a row's prompt and of its longer answer (0 without one) and its number of sequences, or why it
    cannot be written. `cutting` applies the run's length limits to a pair, which may make both answers equal."""
    if kind != "answers" and row.rejected is None:
        tokens = encoder.prompt(0, row)
        return tokens.reason if isinstance(tokens, RefusedRow) else (len(tokens.ids), 0, 1)
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
