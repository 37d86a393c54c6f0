"""Values of each token of sampled answers, which an engine writes beside a run's events: `samples/tokens.jsonl`.

Each line is about one answer: {"step", "group", "answer", "ids", "texts", "log_probs", "sampler_log_probs",
"advantages", "mask"}. `group` counts from 1, `answer` from 0; the lists have a value for each token, null where there
is none (or in place of a whole list), and `mask` is 0 or false where a token is not learned from. The file is only
appended to: where an answer was sampled again after a rollback, its last line counts.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import orjson

from launcher.core.files import open_file, read_lines
from launcher.core.problems import Problem, Problems

NAME = "samples/tokens.jsonl"
LISTS = ("texts", "log_probs", "sampler_log_probs", "advantages", "mask")


def answer_lines(path: Path, step: int, group: int) -> dict[int, bytes]:
    """The line of each answer of a group, by the answer's number. Raises `OSError`."""
    head = re.compile(rb'\{"step":\s?%d,\s?"group":\s?%d,\s?"answer":\s?(\d{1,18}),' % (step, group))
    with open_file(path) as file:
        matches = ((head.match(line), line) for line, _, ended in read_lines(file) if ended)
        return {int(match[1]): line for match, line in matches if match}


def tokens_in(line: bytes) -> list[dict[str, Any]]:
    """The tokens of an answer. Raises `Problems` where its line is damaged."""
    try:
        node = orjson.loads(line)
        unknown = [None] * len(node["texts"])
        lists = [unknown if node[name] is None else node[name] for name in LISTS]
        return [_token(*values) for values in zip(*lists, strict=True)]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        got, fix = "the answer's line is damaged", "nothing else is lost by it"
        raise Problems(Problem(NAME, got, fix, "bad-file")) from error


def _token(text: Any, log_prob: Any, sampler_log_prob: Any, advantage: Any, learns: Any) -> dict[str, Any]:
    """The node of a token; `ratio` is trainer over sampler probability, None for tokens that are not learned from."""
    has_ratio = learns and isinstance(log_prob, int | float) and isinstance(sampler_log_prob, int | float)
    ratio = math.exp(min(log_prob - sampler_log_prob, 700.0)) if has_ratio else None
    return {"text": str(text), "log_prob": log_prob, "sampler_log_prob": sampler_log_prob, "ratio": ratio,
            "advantage": advantage, "learns": bool(learns)}  # fmt: skip
