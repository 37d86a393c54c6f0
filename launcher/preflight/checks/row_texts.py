"""Checks texts of rows for signs of errors in making the rows, which a model would learn to imitate."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from launcher.core.check_result import CheckResult
from launcher.core.problems import short_repr
from launcher.preflight.checks.context import Context
from launcher.spec.data import Row, prompt_turns

FIRST = 2_000
"""Most rows that are read."""
FEW = 8
"""With fewer rows nothing is checked: they may be alike by chance."""
_MISSING = {"nan", "NaN", "<NA>", "NaT"}
"""What pandas writes for missing values; None and null may also be labels."""
_END_TOKEN = re.compile(
    r"(<\|[^|<>\s]+\|>|<｜[^<>]+｜>|</s>|</?eo[a-z]>|<end\w*>|<[a-z]+_of_[a-z]+>|\[/?(?:INST|SEP|EO[A-Z])\])\s*\Z", re.I
)
"""A special token at the end of a text; tags of XML and HTML do not match."""
_MEDIUM = re.compile(r"<(image|video|audio)>(?!.*</\1>)|<\|(?:image|video|audio)_pad\|>", re.DOTALL)
"""What stands for something that is no text; not an element of HTML, which ends."""
_ROLE_PREFIX = re.compile(r"\s*(?:[^`]{0,30}[:>\]\n]\s*)?")
"""Matches what a dialogue written as text has before its first turn: a role, or nothing."""


class Sign(NamedTuple):
    """A sign of an error: `shows` returns its text in a row, or ''; it counts from a `share` of the rows on."""

    share: float
    shows: Callable[[Row], str]
    message: str
    fix: str


def check(context: Context) -> Iterator[CheckResult]:
    """Check the texts for all signs; nothing where there are too few rows."""
    rows = context.file_rows[:FIRST] if context.data else []
    if len(rows) < FEW:
        return
    for sign in (*OF_TEXTS, *(OF_PROMPTS if context.run.algorithm.data == "prompts" else OF_ANSWERS)):
        hits = [(row, example) for row in rows if (example := sign.shows(row))]
        if len(hits) >= sign.share * len(rows):
            row, example = hits[0]
            what = sign.message.format(short_repr(example, 40))
            message = f"{what} ({len(hits):,} of {len(rows):,} rows, the first is {row.where})"
            yield CheckResult("WARN", "data", message, sign.fix)


def _answers(row: Row) -> Sequence[str]:
    """The texts of a row that are learned; those of assistant turns where it has no response."""
    if row.response is not None:
        return [text for text in (row.response, row.rejected) if text is not None]
    return [content for role, content in prompt_turns(row) if role == "assistant"]


def _repeated_prompt(row: Row) -> str:
    prompt = prompt_turns(row)[-1][1].strip()
    return prompt if row.response is not None and all(_begins_with(text, prompt, row) for text in _answers(row)) else ""


def _begins_with(text: str, beginning: str, row: Row) -> bool:
    """Whether a text begins with `beginning` and goes on; in pairs also after a role, elsewhere it may be a quote."""
    before, match, after = text.partition(beginning)
    role = _ROLE_PREFIX.fullmatch(before) if row.rejected is not None else not before.strip()
    return len(beginning) >= FEW and bool(match and role and after.strip())


def _missing(row: Row) -> str:
    texts = (*_answers(row), row.ground_truth or "", prompt_turns(row)[-1][1])
    return next((text for text in texts if text.strip() in _MISSING), "")


def _misread(row: Row) -> str:
    """A text whose bytes in Latin-1 or cp1252 are UTF-8, which hardly happens by chance to text beyond ASCII."""
    texts = (*(content for _, content in prompt_turns(row)), row.response, row.rejected, row.ground_truth)
    for text in (text for text in texts if text and not text.isascii()):
        for codec in ("latin-1", "cp1252"):
            with suppress(UnicodeError):
                text.encode(codec).decode()
                return text
    return ""


def _end_token(row: Row) -> str:
    ends = [match[1] if (match := _END_TOKEN.search(text)) else "" for text in _answers(row)]
    is_html = any("<s>" in text.lstrip()[1:] for text in _answers(row))  # HTML, where it does not open the answer
    return Counter(ends).most_common(1)[0][0] if ends and all(ends) and not is_html else ""


def _medium(row: Row) -> str:
    """What stands in a prompt for an image, a video or a sound."""
    found = (_MEDIUM.search(content) for role, content in prompt_turns(row) if role != "assistant")
    return next((match[0] for match in found if match), "")


def _answered(row: Row) -> str:
    """The answer with which a prompt ends."""
    role, content = prompt_turns(row)[-1]
    return content if role == "assistant" else ""


OF_TEXTS = (
    Sign(0.05, _missing, "prompts or answers are {}, which pandas writes where a value is missing",
         "leave those rows out, as dropna() does"),
    Sign(0.05, _misread, "texts such as {} are UTF-8 that was read as Latin-1",
         "read the source as UTF-8, or correct the texts with ftfy.fix_text"),
    Sign(0.2, _medium, "prompts hold {}, in place of something that is no text, and the model gets the text alone",
         "use rows that can be answered from their text"),
)  # fmt: skip
OF_PROMPTS = (
    Sign(0.5, _answered, "prompts end with an answer, {}, and a policy would go on with it",
         "leave the last turn of the assistant out"),
)  # fmt: skip
OF_ANSWERS = (
    Sign(0.9, _repeated_prompt, "answers begin with their prompt, {}, which the model reads before it answers",
         "leave it out of the answers"),
    Sign(0.9, _end_token, "answers end with {}, and the end of an answer is written for each row",
         "leave it out of the answers"),
)  # fmt: skip
