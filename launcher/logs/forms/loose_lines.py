"""Lines that name a step, with names and numbers that no framework defines.

Step 100/10000 | Loss: 0.234 | Reward: 0.856 | KL: 0.0012 | LR: 9.8e-7

They are read where one of their names is that of a measurement (`values.is_measurement`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from launcher.core.events import Event
from launcher.core.metric_aliases import known
from launcher.logs.forms.numbering import NAMED
from launcher.logs.forms.reading import Form
from launcher.logs.forms.values import is_beside_step, is_measurement, leading_number

_TIMINGS = "time (ms) |"
_AVERAGE_REWARD = "Average reward score: "
_LONGEST = 4_000  # characters of a line of steps
_COUNT = r"([0-9]{1,3}(?:,[0-9]{3}){1,5}(?![0-9])|[0-9]{1,18})"
_STEP = re.compile(
    r"(?:(?<![\w/])|(?<=/)(?=global_step=))(?:global[ _])?(?:^steps(?=[:=])|step|iteration|iter)(?:\(train\))?"
    r"[ :=#]{0,10}\[?\s{0,8}"
    rf"{_COUNT}(?:\s{{0,8}}(?:/|of)\s{{0,8}}{_COUNT})?",
    re.IGNORECASE,
)
_ROLLOUT = re.compile(rf"(?<![\w/])rollout[ :]{{1,4}}{_COUNT}()", re.IGNORECASE)
_ENTRY = re.compile(
    r"\s{0,20}[-*•·>]{0,3}\s{0,20}([A-Za-z][\w ./@%()-]{0,80}?)\s{0,40}[:=]\s{0,20}(?=[-+.\d'\"naiNI\w])"
)
_PARTS = re.compile(r"[,;] |  |\t")
_WIDE = re.compile(r"([:=])[ \t]{2,20}")
_NEXT = re.compile(
    r"\S{0,20}\s{1,20}(?:(?:s|ms|sec|GB|GiB|MB|%|tok/s|tokens/s|it/s|samples/s)\s{1,8})?"
    r"([A-Za-z][\w./@%-]{0,80}(?: [\w./@%()-]{1,40}){0,3}?)[:=]\s{0,20}"
)
_SPACED = re.compile(
    r"([A-Za-z][\w./%-]{0,40}(?: [A-Za-z][\w./%-]{0,40}){0,2}) {1,8}(?=[-+.\dnNiI])([-+.\w]{1,60})"
    r"(?: {0,2}(?:%|[A-Za-z/]{1,10}))?(?: {0,2}\([^()]{0,40}\))? {0,8}"
)
_BEFORE = re.compile(r"\||[,;] |\t|  |/(?=\w{1,40}=)| (?=\w{1,40}=)")
_PAIR = re.compile(r"([A-Za-z][\w ./-]{0,40}?) ?[:=] ?([-+.\w]{1,40})%?(?:/[0-9]{1,9})?")
_LIST = re.compile(r"([A-Za-z][\w./-]{0,80})[:=] {0,2}\[\(?([-+.,\w ]{1,200})\)?(?:, \([^()\[\]]{0,100}\)){0,16}\]")
_ALONE = re.compile(r"[\W_]{0,200}")
_HEADING_LINE = 300  # most characters of a heading, and of what is read before a step or a dict
_PANEL = "╭"
EXAMPLES = {
    _STEP: "Step 1,100/10000 | Loss: 0.234",
    _ROLLOUT: "rollout 5: {'loss': 0.5}",
    _ENTRY: "- Loss: 0.234",
    _WIDE: "loss:  8.0000  mfu: 1.23%",
    _NEXT: "0.25 tok/s grad_norm: 0.5",
    _SPACED: "loss 3.2145 (+0.1z)",
    _PAIR: "micro_step=10",
    _LIST: "lr=[1e-05, 1e-06], mom=[(0.9, 0.95)]",
    _ALONE: "===== =====",
}
"""A line that each pattern is for. A list holds a value for each group of parameters: those that differ from the first
are read, too. Behind the value of `_NEXT` stand its unit and a name, where only blanks divide them."""


def step_header(text: str) -> tuple[int, int] | None:
    """The step, and of how many (0 where unknown), that a heading of its own names: `===== Step 5/100 =====`."""
    if len(text) > _HEADING_LINE or not (found := _STEP.search(text)):
        return None
    around = text[: found.start()] + text[found.end() :].strip().removesuffix(":")
    return _counts(found) if _ALONE.fullmatch(around) else None


def step_before(text: str) -> tuple[int, int] | None:
    """The step, and of how many, that stands before a dict: `Global step 5: {...}`."""
    found = _STEP.search(text[-_HEADING_LINE:]) or _ROLLOUT.search(text[-_HEADING_LINE:])
    return _counts(found) if found else None


def _counts(found: re.Match[str]) -> tuple[int, int]:
    return int(found[1].replace(",", "")), int((found[2] or "0").replace(",", ""))


def step_line(text: str) -> tuple[int, int, dict[str, float]] | None:
    """Step, of how many (0 where unknown), and metrics of `Step 100/10000 | Loss: 0.234 | ...`, also with commas."""
    found = _STEP.search(text[:_LONGEST])
    if found is None:
        return None
    rest = text[found.end() : _LONGEST]
    if "[" in rest:
        rest = _LIST.sub(_unlisted, rest)
    barred = "|" in rest
    parts = [part.lstrip(" :-])") for part in (rest.split("|") if barred else _PARTS.split(_WIDE.sub(r"\1 ", rest)))]
    before = _pairs(text[: found.start()])
    metrics = dict(before or {})
    for part in parts:
        if (entry := _ENTRY.match(part)) is not None:
            metrics = metrics | _entries(part, entry) | metrics  # the first of a name counts
        elif barred and (pair := _spaced(part)):
            metrics |= [pair]
    if not metrics and len(parts) > 1:
        metrics = _all_spaced(parts)
    measured = any(map(is_measurement, metrics)) or (before is not None and any(map(is_beside_step, metrics)))
    return (*_counts(found), metrics) if measured else None


def _entries(part: str, entry: re.Match[str] | None) -> dict[str, float]:
    """`loss: 0.5 s grad_norm: 0.1`: the first entry of a part, and those that only blanks divide from it."""
    metrics = dict[str, float]()
    while entry:
        part = part[entry.end() :].strip("'\"")
        if number := leading_number(part):
            metrics.setdefault(entry[1].strip(), number[0])
            part = part[number[1] :]
        entry = _NEXT.match(part)
        if entry and " " in entry[1] and not (entry[1].endswith(")") or known(entry[1]) or is_measurement(entry[1])):
            break  # prose: it has neither a known name nor a unit, as `iter time (s)`
    return metrics


def behind_step(text: str) -> dict[str, float]:
    """What DeepSpeed and Megatron print behind the line of a step: `time (ms) | forward: 1.2 | backward: 2.4`,
    `Average reward score: 0.5 | EMA reward score: 0.4`."""
    if text.startswith(_TIMINGS):
        return _pairs(text.removeprefix(_TIMINGS)) or {}
    return (_pairs(text) or {}) if text.startswith(_AVERAGE_REWARD) else {}


def _pairs(text: str) -> dict[str, float] | None:
    """A text of pairs alone, such as `epoch=0/micro_step=10/` or `Epoch: 1 | ` before a step; None of any other."""
    pairs = dict[str, float]()
    for part in filter(None, (each.strip(" /") for each in _BEFORE.split(text[-_HEADING_LINE:]))):
        pair = _PAIR.fullmatch(part)
        number = leading_number(pair[2]) if pair else None
        if pair is None or number is None:
            return None
        pairs[pair[1]] = number[0]
    return pairs


def _spaced(part: str) -> tuple[str, float] | None:
    """Name and value of `loss 3.2145 (+0.1z)`."""
    found = _SPACED.fullmatch(part.lstrip(" :-])"))
    number = leading_number(found[2]) if found else None
    return (found[1], number[0]) if found and number else None


def _all_spaced(parts: list[str]) -> dict[str, float]:
    """`: loss 3.2145, time 125.30ms, mfu 12.3%`. Prose has something else between its commas, or unknown names, or
    whole numbers."""
    pairs = [_spaced(part) for part in parts if part.strip(" :-])")]
    found = dict(pair for pair in pairs if pair)
    is_log = len(found) == len(pairs) <= 2 * sum(map(known, found)) and not all(map(float.is_integer, found.values()))
    return found if is_log else {}


def _unlisted(found: re.Match[str]) -> str:
    """The values of a list with names of their own, those that equal the first left out."""
    first, *others = [each.strip(" ()") for each in found[2].split(",")]
    named = [f"{found[1]}/{at}={each}" for at, each in enumerate(others, 1) if each and each != first]
    return ", ".join([f"{found[1]}={first}", *named])


def _names_step(text: str) -> bool:
    """Whether a line may have one of the words of `_STEP`: most have none."""
    return "tep" in text or "ter" in text or "TEP" in text or "TER" in text


class BesideSteps(Form):
    """What stands on a line of its own behind that of a step."""

    def claims(self, line: str) -> bool:
        self._metrics = behind_step(line) if self.reading.kind == "lines" else {}
        return bool(self._metrics)

    def take(self, line: str) -> Iterator[Event]:
        return self.reading.step(self.reading.last or 0, self._metrics)


class NamedSteps(Form):
    """A line that names its step, with metrics beside it."""

    ends_block = True

    def claims(self, line: str) -> bool:
        self._found = step_line(line) if _names_step(line) else None
        return self._found is not None

    def take(self, line: str) -> Iterator[Event]:
        if self._found and self.reading.numbers.admits("lines", NAMED, self._found[0]):
            step, steps, metrics = self._found
            yield from self.reading.progress(step, steps)
            yield from self.reading.step(step, metrics)


class Headings(Form):
    """A line that names the step of the block below it; TRL puts that of the dict above into the frame of its table."""

    ends_block = True

    def claims(self, line: str) -> bool:
        self._found = step_header(line) if _names_step(line) else None
        return self._found is not None

    def take(self, line: str) -> Iterator[Event]:
        if self._found and line.startswith(_PANEL):
            self.reading.numbers.panel(self._found[0])
        elif self._found:
            self.reading.header = self._found[0]
            if self.reading.numbers.basis.by_heading:
                yield from self.reading.progress(*self._found)
