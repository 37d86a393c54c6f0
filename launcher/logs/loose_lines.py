"""Lines and blocks of names and numbers that no framework defines.

    Step 100/10000 | Loss: 0.234 | Reward: 0.856 | KL: 0.0012 | LR: 9.8e-7
    loss: 0.1234
    - **policy_loss**: `0.8567`

They are read where one of their names is that of a measurement (`values.is_measurement`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from launcher.core.metric_aliases import known
from launcher.logs.values import is_beside_step, is_measurement, leading_number

TIMINGS = "time (ms) |"
AVERAGE_REWARD = "Average reward score: "
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
"""Blanks before a value that is aligned: `loss:  8.0000  mfu: 1.23%`."""
_NEXT = re.compile(
    r"\S{0,20}\s{1,20}(?:(?:s|ms|sec|GB|GiB|MB|%|tok/s|tokens/s|it/s|samples/s)\s{1,8})?"
    r"([A-Za-z][\w./@%-]{0,80}(?: [\w./@%()-]{1,40}){0,3}?)[:=]\s{0,20}"
)
"""Behind a value, its unit, and the name of the next where only blanks divide them."""
_SPACED = re.compile(
    r"([A-Za-z][\w./%-]{0,40}(?: [A-Za-z][\w./%-]{0,40}){0,2}) {1,8}(?=[-+.\dnNiI])([-+.\w]{1,60})"
    r"(?: {0,2}(?:%|[A-Za-z/]{1,10}))?(?: {0,2}\([^()]{0,40}\))? {0,8}"
)
"""A name and its value with only a blank between, and a unit or a remark behind: `loss 3.2145`."""
_BEFORE = re.compile(r"\||[,;] |\t|  |/(?=\w{1,40}=)| (?=\w{1,40}=)")
_PAIR = re.compile(r"([A-Za-z][\w ./-]{0,40}?) ?[:=] ?([-+.\w]{1,40})%?(?:/[0-9]{1,9})?")
_LIST = re.compile(r"([A-Za-z][\w./-]{0,80})[:=] {0,2}\[\(?([-+.,\w ]{1,200})\)?(?:, \([^()\[\]]{0,100}\)){0,16}\]")
"""Values of parameter groups: `lr=[1e-05, 1e-06]`, `mom=[(0.9, 0.95)]`, of which the first group is read."""
_BLOCK = re.compile(
    r"[\s>|│]{0,40}(?:[-*•·+]\s{0,8}|[0-9]{1,3}[.)]\s{0,8})?[*`_]{0,3}([^\W\d_][\w ./@%()-]{0,80}?)[*`_]{0,3}"
    r"\s{0,40}[:=：]\s{0,40}[*`_]{0,3}"
)
_HEADING = re.compile(r"#{1,6}\s.{0,20}\*\*([A-Za-z][\w/]{0,80})\*\*")
_VALUE_OF_HEADING = re.compile(
    r"\s{0,8}[-*•]?\s{0,8}\**(?:当前值|current value|value)\**\s{0,4}[:：]\s{0,4}", re.IGNORECASE
)
_TITLE = re.compile(
    r"[^\w*#=]{0,12}(?:[A-Za-z]{1,20} ){0,2}(?:timings?|performance|metrics|memory|throughput):\s{0,8}", re.I
)
"""Of a further part of a block: `Timing:`."""
_SHARE = re.compile(r" ?\([0-9.]{1,8} ?%\)$")
_ALONE = re.compile(r"[\W_]{0,200}")
_MARK = re.compile("[:=：]")
_FIRST = frozenset("0123456789+-.nNiI")  # what a number begins with
_BLOCK_LINE = 300  # most characters
_UNITS = frozenset(["", "s", "ms", "%", "gb", "gib", "mb", "tokens/s", "tok/s", "it/s", "s/it", "nats", "tokens"])


def step_header(text: str) -> tuple[int, int] | None:
    """The step, and of how many (0 where unknown), that a heading of its own names: `===== Step 5/100 =====`."""
    if len(text) > _BLOCK_LINE or not (found := _STEP.search(text)):
        return None
    around = text[: found.start()] + text[found.end() :].strip().removesuffix(":")
    return _counts(found) if _ALONE.fullmatch(around) else None


def step_before(text: str) -> tuple[int, int] | None:
    """The step, and of how many, that stands before a dict: `Global step 5: {...}`."""
    found = _STEP.search(text[-_BLOCK_LINE:]) or _ROLLOUT.search(text[-_BLOCK_LINE:])
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
    parts = rest.split("|") if barred else _PARTS.split(_WIDE.sub(r"\1 ", rest))
    before = _pairs(text[: found.start()])
    metrics = dict(before or {})
    for part in parts:
        part = part.lstrip(" :-])")
        entry = _ENTRY.match(part)
        if barred and not entry:
            metrics |= dict(filter(None, [_spaced(part)]))
        while entry:
            part = part[entry.end() :].strip("'\"")
            number = leading_number(part)
            if number:
                metrics.setdefault(entry[1].strip(), number[0])
                part = part[number[1] :]
            entry = _NEXT.match(part)
            if (
                entry
                and " " in entry[1]
                and not (entry[1].endswith(")") or known(entry[1]) or is_measurement(entry[1]))
            ):
                break  # prose: it has neither a known name nor a unit, as `iter time (s)`
    if not metrics and len(parts) > 1:
        metrics = _all_spaced(parts)
    measured = any(map(is_measurement, metrics)) or (before is not None and any(map(is_beside_step, metrics)))
    return (*_counts(found), metrics) if measured else None


def behind_step(text: str) -> dict[str, float]:
    """What DeepSpeed and Megatron print behind the line of a step: `time (ms) | forward: 1.2 | backward: 2.4`,
    `Average reward score: 0.5 | EMA reward score: 0.4`."""
    if text.startswith(TIMINGS):
        return _pairs(text.removeprefix(TIMINGS)) or {}
    return (_pairs(text) or {}) if text.startswith(AVERAGE_REWARD) else {}


def _pairs(text: str) -> dict[str, float] | None:
    """A text of pairs alone, such as `epoch=0/micro_step=10/` or `Epoch: 1 | ` before a step; None of any other."""
    pairs = dict[str, float]()
    for part in filter(None, (each.strip(" /") for each in _BEFORE.split(text[-_BLOCK_LINE:]))):
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


def _entry(text: str) -> re.Match[str] | None:
    """The name on a `key: value` line; most lines fail by what follows their first colon."""
    mark = _MARK.search(text)
    if mark is None or text[mark.end() : mark.end() + 48].lstrip(" \t*`_")[:1] not in _FIRST:
        return None
    return _BLOCK.match(text)


@dataclass
class BlockReader:
    """Puts `key: value` lines together: those of one step stand together, and no name twice."""

    metrics: dict[str, float] = field(default_factory=dict)
    _heading: str = ""

    def take(self, text: str) -> bool:
        """Whether a line is of a block. One that is not ends it, but for blank lines, and for what stands between the
        headings of metrics."""
        if len(text) > _BLOCK_LINE:
            return False
        if text.startswith("#") and (heading := _HEADING.match(text)):
            self._heading = heading[1]
            return True
        if self._heading:
            if value := _VALUE_OF_HEADING.match(text):
                self._add(self._heading, text[value.end() :])
            return not text.startswith("#")
        entry = _entry(text)
        if entry is None:
            return bool(self.metrics) and (not text.strip() or _TITLE.fullmatch(text) is not None)
        return self._add(entry[1].strip(), text[entry.end() :])

    @property
    def open(self) -> bool:
        """Whether a block has begun."""
        return bool(self.metrics or self._heading)

    def repeats(self, text: str) -> bool:
        """Whether a line gives a metric that the block has already: a new block begins."""
        entry = _entry(text) if self.metrics and len(text) <= _BLOCK_LINE else None
        return entry is not None and entry[1].strip() in self.metrics

    def _add(self, name: str, text: str) -> bool:
        text = text.strip().lstrip("`*")
        number = leading_number(text)
        if number is None or (not self.metrics and not is_measurement(name) and name.casefold() not in _STEPS):
            return False
        unit = _SHARE.sub("", text[number[1] :].lstrip("`* ,").rstrip("`*, "))
        if not self._heading and unit.casefold() not in _UNITS:
            return False
        self.metrics[name] = number[0]
        return True

    def close(self) -> tuple[int | None, dict[str, float]]:
        """The step that the block names, and its metrics; none where nothing was measured. A new block may begin."""
        metrics, self.metrics, self._heading = self.metrics, {}, ""
        named = [name for name in metrics if name.casefold() in _STEPS]
        step = int(metrics.pop(named[0])) if named and 0 <= metrics[named[0]] < 2**62 else None
        return (step, metrics) if any(map(is_measurement, metrics)) else (None, {})


_STEPS = ("step", "global_step", "global step")
