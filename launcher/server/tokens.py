"""Values of each token of sampled answers, which an engine writes beside a run's events: `samples/tokens.jsonl`.

Each line is about one answer: {"step", "group", "answer", "ids", "texts", "log_probs", "sampler_log_probs",
"advantages", "mask"}. `group` counts from 1, `answer` from 0; the lists have a value for each token, null where there
is none (or in place of a whole list), and `mask` is 0 or false where a token is not learned from. The file is only
appended to: where an answer was sampled again after a rollback, its last line counts.
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from launcher.core.files import open_file, read_lines
from launcher.core.problems import Problem, Problems
from launcher.server.columns import Ints

NAME = "samples/tokens.jsonl"
LISTS = ("texts", "log_probs", "sampler_log_probs", "advantages", "mask")
_HEAD = re.compile(rb'\{"step":\s?(\d{1,18}),\s?"group":\s?(\d{1,18}),\s?"answer":\s?(\d{1,18}),')
Key = tuple[int, int, int]
"""Step, group and answer."""


@dataclass(frozen=True)
class TokenPlaces:
    """The index of a file up to byte `offset`: where the line of each answer is."""

    path: Path
    offset: int = 0
    inode: int = 0
    rows: Ints = field(default_factory=lambda: np.empty((0, 5), np.int64))
    """[N, 5], in the order of the file: step, group, answer, byte offset and size in bytes."""

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes + 1024

    def read_on(self) -> TokenPlaces:
        with open_file(self.path) as file:
            stat, old = os.fstat(file.fileno()), self
            if stat.st_size < self.offset or self.inode not in (0, stat.st_ino):
                old = TokenPlaces(self.path)  # the file was replaced or truncated
            offset, places = old.offset, list[tuple[int, ...]]()
            file.seek(offset)
            for line, size, ended in read_lines(file):
                if not ended:
                    break
                if head := _HEAD.match(line):
                    places.append((*map(int, head.groups()), offset, size))
                offset += size
        new_rows = np.array(places, np.int64).reshape(-1, 5)
        return replace(old, offset=offset, inode=stat.st_ino, rows=np.concatenate([old.rows, new_rows]))

    def place(self, key: Key) -> tuple[int, int] | None:
        """Byte offset and size of the last line of an answer; None where there is none."""
        matches = np.nonzero((self.rows[:, :3] == key).all(axis=1))[0]
        return tuple(self.rows[matches[-1], 3:].tolist()) if matches.size else None

    def read(self, key: Key) -> list[dict[str, Any]] | None:
        """The tokens of an answer; None where there are none. Raises `Problems` where its line is damaged."""
        place = self.place(key)
        if place is None:
            return None
        offset, size = place
        with open_file(self.path) as file:
            line = os.pread(file.fileno(), size, offset)
        try:
            node = orjson.loads(line)
            unknown = [None] * len(node["texts"])
            lists = [unknown if node[name] is None else node[name] for name in LISTS]
            return [_token(*values) for values in zip(*lists, strict=True)]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            got = f"the line at byte {offset} is damaged"
            raise Problems(Problem(NAME, got, "nothing else is lost by it", "bad-file")) from error


def _token(text: Any, log_prob: Any, sampler_log_prob: Any, advantage: Any, learns: Any) -> dict[str, Any]:
    """The node of a token; `ratio` is trainer over sampler probability, None for tokens that are not learned from."""
    has_ratio = learns and isinstance(log_prob, int | float) and isinstance(sampler_log_prob, int | float)
    ratio = math.exp(min(log_prob - sampler_log_prob, 700.0)) if has_ratio else None
    return {"text": str(text), "log_prob": log_prob, "sampler_log_prob": sampler_log_prob, "ratio": ratio,
            "advantage": advantage, "learns": bool(learns)}  # fmt: skip
