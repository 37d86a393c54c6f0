"""Facts about the single tokens of logged answers: `samples/tokens.jsonl` in the run's folder, a line for each answer.

Of a token outside the loss only its text is recorded. After a run went back to a checkpoint, the lines of undone steps
stay: of each (step, group, answer) the last line counts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from launcher.core.events import writable
from launcher.core.files import AppendOnlyFile
from launcher.core.redaction import redact
from launcher.spec.algorithm import Batch
from launcher.spec.episode import Episode
from launcher.text.tokenizer import TokenTexts

NAMES = ("log_probs", "sampler_log_probs", "advantages")


class TokenLog:
    """Appends to a file, which is made with its folder when there is a first line."""

    def __init__(self, path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
        self.path, self.texts = path, TokenTexts(tokenizer)
        self._file: AppendOnlyFile | None = None

    def write(self, step: int, groups: Sequence[Sequence[Episode]], batch: Batch, characters: int) -> None:
        """Write a line for each answer, without the middle tokens of one with more than `characters`. `batch` has the
        answers in this order, as they were trained on. Raises `OSError` where the file cannot be made."""
        if self._file is None:
            self.path.parent.mkdir(mode=0o700, exist_ok=True)
            self._file = AppendOnlyFile.open(self.path)
        columns = (batch.old, batch.rollout, batch.advantage)
        rows = zip(batch.mask.tolist(), *(repeat(None) if x is None else x.tolist() for x in columns))  # noqa: B905
        lines = []
        for group, episodes in enumerate(groups, 1):
            for answer, (episode, row) in enumerate(zip(episodes, rows, strict=False)):
                written = slice(len(episode.prompt), len(episode.tokens))
                ids, (mask, *values) = episode.tokens[written], (x and x[written] for x in row)
                texts = self.texts(ids)
                if redact(whole := "".join(texts)) != whole:  # a secret can be read from the tokens
                    continue
                facts = {"ids": ids, "texts": texts, "mask": [int(weight > 0) for weight in mask]}
                facts |= {name: x and _trained_values(x, mask) for name, x in zip(NAMES, values, strict=True)}
                node = {"step": step, "group": group, "answer": answer, **_drop_middle(facts, characters)}
                lines.append(json.dumps(writable(node), ensure_ascii=False, separators=(",", ":")) + "\n")
        self._file.write("".join(lines).encode())


def _trained_values(values: Sequence[float], mask: Sequence[float]) -> list[float | None]:
    return [float(f"{value:.5g}") if weight > 0 else None for value, weight in zip(values, mask, strict=True)]


def _drop_middle(facts: dict[str, Any], characters: int) -> dict[str, Any]:
    """The facts without the middle tokens of a long answer, for which one token without values stands."""
    texts, half = facts["texts"], characters // 2
    if sum(map(len, texts)) <= characters:
        return facts
    begin, end = _count_fitting(texts, half), _count_fitting(texts[::-1], half)
    gap = {"texts": f" [... {len(texts) - begin - end} tokens ...] ", "mask": 0}
    return {
        name: values and [*values[:begin], gap.get(name), *values[len(values) - end :]]
        for name, values in facts.items()
    }


def _count_fitting(texts: Sequence[str], characters: int) -> int:
    """How many of the first texts have at most so many characters."""
    for place, text in enumerate(texts):
        characters -= len(text)
        if characters < 0:
            return place
    return len(texts)
