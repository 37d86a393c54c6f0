"""Texts of rows that show what went wrong when the rows were made, and that a model would learn all the same."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from launcher.core.check_result import CheckResult
from launcher.core.problems import short_repr
from launcher.data.quality import Seen
from launcher.preflight.checks.context import Context
from launcher.spec.data import Row

FIRST = 2_000
"""Rows that are looked at."""
FEW = 8
"""Rows that may be alike."""
_MISSING = {"nan", "<na>", "nat"}
"""What pandas writes for a value that is not there."""
_LATIN = re.compile("Ã[\x80-\xbf]|Â[\xa0-\xbf]|â€[\x80-\xbf‘’“”„†‡•…‹›€™œžŸšŒŽŠ˜]")
"""What bytes of UTF-8 beyond ASCII become when they are read as Latin-1 or cp1252."""
_END = re.compile(r"(<\|[^|<>\s]+\|>|<｜[^<>]+｜>|</s>|<eos>|<[a-z]+_of_[a-z]+>|\[/?(?:INST|EOS)\])\s*\Z")
"""A special token at a text's end; tags of XML and HTML have other forms."""


class Sign(NamedTuple):
    """What `shows` finds of a row (empty: nothing), in how many of the rows that is none of chance."""

    share: float
    shows: Callable[[Row], str]
    message: str
    fix: str


def check(context: Context) -> Iterator[CheckResult]:
    """Nothing where there are too few rows to tell."""
    kind, rows = context.run.algorithm.data, context.train.rows[:FIRST] if context.data else []
    if len(rows) < FEW:
        return
    for sign in SIGNS if kind != "prompts" else PROMPT_SIGNS:
        found = [(row, shown) for row in rows if (shown := sign.shows(row))]
        if len(found) >= sign.share * len(rows):
            row, shown = found[0]
            what = sign.message.format(short_repr(shown, 40))
            message = f"{what} ({len(found):,} of {len(rows):,} rows, the first is {row.where})"
            yield CheckResult("WARN", "data", message, sign.fix)
    seen = Seen()
    for row in rows:
        seen.add(row, kind)
    different = len({*seen.rows})
    if 2 * different <= len(rows) and different > 1:
        message = f"{len(rows):,} rows hold {different:,} different ones"
        yield CheckResult(
            "WARN", "data", message, "leave the repeated ones out; trainer.total_epochs=2 goes through all rows twice"
        )


def _answers(row: Row) -> Sequence[str]:
    """What is learned of a row; its turns where there is no answer beside the prompt."""
    if row.response is not None:
        return [text for text in (row.response, row.rejected) if text is not None]
    return [] if isinstance(row.prompt, str) else [turn.content for turn in row.prompt if turn.role == "assistant"]


def _asked(row: Row) -> str:
    return (row.prompt if isinstance(row.prompt, str) else row.prompt[-1].content).strip()


def _repeated_prompt(row: Row) -> str:
    asked = _asked(row)
    return asked if row.response is not None and all(_goes_on(text, asked) for text in _answers(row)) else ""


def _goes_on(text: str, beginning: str) -> bool:
    return len(beginning) >= FEW and text.lstrip().startswith(beginning) and len(text.strip()) > len(beginning)


def _missing(row: Row) -> str:
    return next((text for text in (*_answers(row), row.ground_truth or "") if text.strip().lower() in _MISSING), "")


def _misread(row: Row) -> str:
    found = (_LATIN.search(text) for text in (*_answers(row), _asked(row)))
    return next((match[0] for match in found if match), "")


def _written_end(row: Row) -> str:
    ends = [found[1] if (found := _END.search(text)) else "" for text in _answers(row)]
    return Counter(ends).most_common(1)[0][0] if ends and all(ends) else ""


def _left_over(row: Row) -> str:
    last = None if row.response is not None or isinstance(row.prompt, str) else row.prompt[-1]
    return last.content if last and last.role == "user" else ""


PROMPT_SIGNS = (
    Sign(0.05, _missing, "right answers are {}, which pandas writes where a value is missing",
         "leave those rows out, as dropna() does"),
    Sign(0.05, _misread, "texts hold {}, which is UTF-8 that was read as Latin-1",
         "read the source as UTF-8, or correct the texts with ftfy.fix_text"),
)  # fmt: skip
SIGNS = (
    *(sign._replace(message=sign.message.replace("right answers", "answers")) for sign in PROMPT_SIGNS),
    Sign(0.9, _repeated_prompt, "answers begin with their prompt, {}, which the model reads before it answers",
         "leave it out of the answers"),
    Sign(0.9, _written_end, "answers end with {}, and the end of an answer is written for each row",
         "leave it out of the answers"),
    Sign(0.5, _left_over, "conversations end with a user's turn, such as {}, which is left out",
         "give each its answer, or leave the turn out"),
)  # fmt: skip
