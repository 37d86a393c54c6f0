"""Texts of rows that show what went wrong when the rows were made, and that a model would learn all the same."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from launcher.core.check_result import CheckResult
from launcher.core.problems import short_repr
from launcher.preflight.checks.context import Context
from launcher.spec.data import Row

FIRST = 2_000
"""Rows that are looked at."""
FEW = 8
"""Rows that may be alike."""
_MISSING = {"nan", "NaN", "<NA>", "NaT"}
"""What pandas writes for a value that is not there; None and null are labels, too."""
_LATER = "\x80-\xbf\ufffd" + bytes(range(0x80, 0xA0)).decode("cp1252", "ignore")
"""What the later bytes of a character's UTF-8 become; cp1252 does not have 0x9D."""
_LAST = f"(?![…“”‘’»›–—\xa0®™€°²³\ufffd])[{_LATER}]"
"""Without the signs that stand behind a letter, as at the end of a quotation, of a trademark or of a unit."""
_MISREAD = re.compile(
    f"â€[{_LATER}]|Â[\xa0-\xbf]|[ÃÎÏ][®™€°²³]|[Ã-ÖØ-Þ]{_LAST}|(?:×[{_LATER}]){{2}}"
    f"|[ã-í][{_LATER}]{_LAST}|ð[{_LATER}]{{3}}"
)
"""What UTF-8 beyond ASCII becomes when it is read as Latin-1 or cp1252. Of letters that stand alone among others, such
as ó and π, also those that end with such a sign; × multiplies, but where it begins two letters of Hebrew."""
_END = re.compile(
    r"(<\|[^|<>\s]+\|>|<｜[^<>]+｜>|</s>|</?eo[a-z]>|<end\w*>|<[a-z]+_of_[a-z]+>|\[/?(?:INST|SEP|EO[A-Z])\])\s*\Z", re.I
)
"""A special token at a text's end; tags of XML and HTML have other forms."""
_ROLE = re.compile(r"\s*(?:[^`]{0,30}[:>\]\n]\s*)?")
"""What a dialogue written as text has before its first turn, such as a role."""


class Sign(NamedTuple):
    """What `shows` finds of a row (empty: nothing), in how many of the rows that is none of chance."""

    share: float
    shows: Callable[[Row], str]
    message: str
    fix: str


def check(context: Context) -> Iterator[CheckResult]:
    """Nothing where there are too few rows to tell."""
    kind, rows = context.run.algorithm.data, context.file_rows[:FIRST] if context.data else []
    if len(rows) < FEW:
        return
    for sign in SIGNS if kind != "prompts" else PROMPT_SIGNS:
        found = [(row, shown) for row in rows if (shown := sign.shows(row))]
        if len(found) >= sign.share * len(rows):
            row, shown = found[0]
            what = sign.message.format(short_repr(shown, 40))
            message = f"{what} ({len(found):,} of {len(rows):,} rows, the first is {row.where})"
            yield CheckResult("WARN", "data", message, sign.fix)


def _answers(row: Row) -> Sequence[str]:
    """What is learned of a row; its turns where there is no answer beside the prompt."""
    if row.response is not None:
        return [text for text in (row.response, row.rejected) if text is not None]
    return [] if isinstance(row.prompt, str) else [turn.content for turn in row.prompt if turn.role == "assistant"]


def _asked(row: Row) -> str:
    return (row.prompt if isinstance(row.prompt, str) else row.prompt[-1].content).strip()


def _texts(row: Row) -> Iterator[str]:
    yield from [row.prompt] if isinstance(row.prompt, str) else (turn.content for turn in row.prompt)
    yield from (text for text in (row.response, row.rejected, row.ground_truth) if text is not None)


def _repeated_prompt(row: Row) -> str:
    asked = _asked(row)
    return asked if row.response is not None and all(_goes_on(text, asked, row) for text in _answers(row)) else ""


def _goes_on(text: str, beginning: str, row: Row) -> bool:
    """Whether there is more than `beginning`; of pairs, after a role, too, where other answers may mean to quote."""
    before, found, after = text.partition(beginning)
    role = _ROLE.fullmatch(before) if row.rejected is not None else not before.strip()
    return len(beginning) >= FEW and bool(found and role and after.strip())


def _missing(row: Row) -> str:
    texts = (*_answers(row), row.ground_truth or "", _asked(row))
    return next((text for text in texts if text.strip() in _MISSING), "")


def _misread(row: Row) -> str:
    found = (_MISREAD.search(text) for text in _texts(row) if not text.isascii())
    return next((part[0] for part in found if part), "")


def _unread(row: Row) -> str:
    return "\ufffd" if any("\ufffd" in text for text in _texts(row)) and not _misread(row) else ""


def _written_end(row: Row) -> str:
    ends = [found[1] if (found := _END.search(text)) else "" for text in _answers(row)]
    struck_out = any("<s>" in text.lstrip()[1:] for text in _answers(row))  # HTML, where it does not open the answer
    return Counter(ends).most_common(1)[0][0] if ends and all(ends) and not struck_out else ""


def _left_over(row: Row) -> str:
    last = None if row.response is not None or isinstance(row.prompt, str) else row.prompt[-1]
    return last.content if last and last.role == "user" else ""


ENCODING_SIGNS = (
    Sign(0.05, _misread, "texts hold {}, which is UTF-8 that was read as Latin-1",
         "read the source as UTF-8, or correct the texts with ftfy.fix_text"),
    Sign(0.05, _unread, "texts hold {}, which stands for bytes that could not be decoded",
         "read the source in its own encoding, which file -i may tell"),
)  # fmt: skip
MISSING = Sign(0.05, _missing, "prompts or answers are {}, which pandas writes where a value is missing",
               "leave those rows out, as dropna() does")  # fmt: skip
PROMPT_SIGNS = (
    MISSING._replace(message="prompts or right answers are {}, which pandas writes where a value is missing"),
    *ENCODING_SIGNS,
)
SIGNS = (
    MISSING,
    *ENCODING_SIGNS,
    Sign(0.9, _repeated_prompt, "answers begin with their prompt, {}, which the model reads before it answers",
         "leave it out of the answers"),
    Sign(0.9, _written_end, "answers end with {}, and the end of an answer is written for each row",
         "leave it out of the answers"),
    Sign(0.1, _left_over, "conversations end with a user's turn, such as {}, which is left out",
         "give each its answer, or leave the turn out"),
)  # fmt: skip
