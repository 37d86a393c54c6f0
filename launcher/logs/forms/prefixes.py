"""What loggers and containers put around a line: a time, a rank, a level, the name of a logger or of a container.

2024-05-01 10:00:00,123 - INFO - loss: 0.5
[2024-05-01 10:00:00,123][trainer][INFO] - loss: 0.5
[rank0]: loss: 0.5
INFO:root:loss: 0.5
trainer-1  | loss: 0.5
[pod/trainer-0/main] loss: 0.5
May 01 10:00:00 node01 train[1234]: loss: 0.5
05/01/2024 10:00:00 - INFO - __main__ - loss: 0.5
[10:00:01] INFO     loss: 0.5                 train.py:123
"""

from __future__ import annotations

import re

_ANSI = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]")
_STAMP = re.compile(
    r"^[0-9]{4}-[0-9]{2}-[0-9]{2}(?:T[0-9:]{8}(?:\.[0-9]{1,9})?(?:Z|[-+][0-9]{2}:[0-9]{2}) (?:std(?:out|err) [FP] )?|"
    r" [0-9:]{8}(?:[.,][0-9]{1,9})?(?: - | )(?:DEBUG|INFO|WARNING|ERROR)(?: - |: | ))"
)
"""Times that kubectl, container runtimes and loggers put before a line; some omit trailing zeros."""
_RAY = re.compile(r"\(([^()\n]{1,200}pid=[0-9]{1,10}(?:, ip=[0-9a-fA-F.:]{3,45})?)\) ?")
_SEPARATOR = "[-:| ]{0,4}"
_PREFIX = re.compile(
    r"(?:\[(?:rank|default)[0-9]{1,5}\]:(?:\[\w{1,20}\])? {0,2})?"
    r"(?:(?!(?i:val|valid|validation|eval|evaluation|test) )[\w.-]{1,60} {1,20}\| )?"
    r"(?:[A-Z][a-z]{2} [ 0-9]{2} [0-9:]{8} \S{1,60} [\w.-]{1,60}\[[0-9]{1,9}\]: )?"
    r"(?:\[?[0-9]{2}/[0-9]{2}/[0-9]{2,4} [0-9:]{8}(?:\] | - ))?"
    r"(?:\[?[0-9]{4}[-/]?[0-9]{2}[-/]?[0-9]{2}[-T ][0-9:.,]{5,20}(?:Z|[+-][0-9:]{4,6})?\]?(?: std(?:out|err) [FP] )?"
    rf"{_SEPARATOR})?"
    r"(?:\[ {0,8}(?!(?i:step|iter|val|eval|test)|[0-9]{1,12}/[0-9])[\w./:-]{1,80}(?: [0-9]{1,6})?\]"
    rf"{_SEPARATOR}){{0,3}}"
    r"(?: {0,40}(?:[A-Z]\w{1,40} |[\w.]{1,60}(?: - |:[0-9]{1,6} ))?"
    r"(?:DEBUG|INFO|SUCCESS|WARNING|ERROR)\b"
    r"(?: [-0-9:. ]{5,40}\w{1,40}\.py:[0-9]{1,6}\]|:\w[\w.]{0,60}(?=:))?[-:| ]{1,8}"
    r"(?:[\w.]{1,60}(?::[\w.<>]{1,60}:[0-9]{1,6})? - )?)?"
)
_PLACE = re.compile(r"(?<!\s)\s{2,400}[\w.-]{1,80}\.py:[0-9]{1,6}\s{0,400}$")
"""Where a line was logged, as RichHandler writes it at the right edge."""


def without_prefix(text: str) -> str:
    """The line without time, level, rank and logger before it, and without the place in a program behind it."""
    text = _PLACE.sub("", text) if ".py:" in text else text
    prefix = _PREFIX.match(text)
    return text[prefix.end() :] if prefix else text


def without_source(text: str) -> tuple[str, str]:
    """(line without colours, time and Ray's name of the process; that name, or empty)."""
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    if text.startswith("20"):
        text = _STAMP.sub("", text, 1)
    source = _RAY.match(text)
    return (text[source.end() :], source[1]) if source else (text, "")
