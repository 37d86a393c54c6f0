"""Lines that name a step, with names and numbers that no framework defines.

Step 100/10000 | Loss: 0.234 | Reward: 0.856 | KL: 0.0012 | LR: 9.8e-7
iter 100: loss 3.2145, time 125.30ms, mfu 12.3%
epoch 002:    100 / 1000 loss=10.211, ppl=935.55
1875/1875 [==============================] - 5s 2ms/step - loss: 0.2948

They are read where one of their names is that of a measurement (`values.is_measurement`). Of a list the first number
counts: `lr=[1e-05, 1e-06]`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile

from launcher.core.events import Event
from launcher.core.metric_aliases import known
from launcher.logs.forms.numbering import LOOSE, NAMED, PLACED, Epochs
from launcher.logs.forms.reading import Form, LineReading
from launcher.logs.forms.values import evaluated, is_beside_step, is_measurement, leading_number, of_evaluation

_BEHIND_STEP = ("time (ms) |", "Average reward score: ")
"""What DeepSpeed and Megatron begin a line with that belongs to the step before it."""
_LONGEST = 4_000  # characters of a line of steps
_HEADING_LINE = 300  # most characters of a heading, and of what is read before a step or a dict
_COUNT = r"([0-9]{1,3}(?:,[0-9]{3}){1,5}(?![0-9])|[0-9]{1,18})"
_STEP = re.compile(
    r"(?:(?<![\w/])(?<!icro[ -])|(?<=/)(?=global_step=))(?:global[ _])?"
    r"(?:^steps(?=[:=])|step|iteration|iter|rollout|update)(?:\(train\))?"
    rf"[ :=#]{{0,10}}\[?\s{{0,8}}{_COUNT}(?:\s{{0,8}}(?:/|of)\s{{0,8}}{_COUNT})?",
    re.IGNORECASE,
)
_POSITION = re.compile(
    r"[\s|]{0,8}(?:(?!epoch)[\w.]{1,40}(?: \||:) )?(?:[\[(]?(?:[a-z]{1,12} )?epoch(?:\(train\))?[ :=#|]{0,10}\[?\s{0,4}"
    r"([0-9]{1,9})(?![.]?[0-9])(?:\s?/\s?([0-9]{1,9}))?\]?[\s:|,-]{0,10})?"
    rf"(?:\[?(?:batch[ =:]{{1,2}})?\s{{0,8}}{_COUNT}\s{{0,4}}/\s{{0,4}}{_COUNT}(?:\s?\([0-9. ]{{1,6}}%\))?\]?"
    r"(?![\w/.:-]|\s[0-9]{1,2}:))?",
    re.IGNORECASE,
)
"""What a line without the word begins with: `Train Epoch: 1 [640/60000 (1%)]`, `[5/30]`, `Epoch 2/10`."""
_EVALUATED = re.compile(
    r"\W{0,8}(?:eval(?:uat\w{1,6})?|val(?:id(?:at\w{1,4})?)?|test)(?:\s?[\]|:]|\s(?:step|iter|epoch))", re.I
)
"""How a line begins whose metrics are of an evaluation: `[Val]`, `valid |`, `Test:`, `validate step: 5`."""
_ENTRY = re.compile(  # a name of several words behind a divider, or a word
    r"(?:(?:[|,;\t]|  |^\s?[:)\]*•·>-])[\s:)\]*•·>-]{0,20}([A-Za-z][\w ./@%()-]{0,80}?)"
    r"|(?<![^\s/])([A-Za-z][\w./@%-]{0,80}(?: \([\w/]{1,10}\))?))"
    r"(\s{0,40}[:=]\s{0,20})[\[('\"]{0,2}(?=[-+.\dnNiIa-z])"
)
_UNIT = re.compile(
    r"\S{0,40}(?: (?:%|m?s|[kmgt]i?b|tflops|nats|samples|tokens|[a-z]{1,10}/[a-z/]{1,20})(?![^\s(]))?"
    r"(?: ?\([^()]{0,40}\))?",
    re.IGNORECASE,
)
"""What may stand right behind a number: its unit, and a share or spread in parentheses."""
_WORD = re.compile(r"[\w(][\w./@%()-]{0,40}")
_PAIRS = re.compile(
    r"(?:[\s|,;/]{0,8}[A-Za-z][\w ./()-]{0,40}[:=] ?[-+.\w]{1,40}%?(?:/[0-9]{1,9})?(?![\w.+-])){0,50}[\s|,;/]{0,8}"
)
"""What may stand before a step: pairs alone, such as `epoch=0/micro_step=10/` or `Epoch: 1 | `, or nothing. Each value
ends where no letter or digit follows, so that there is one way to read a line; with more, the time would grow
exponentially with its length."""
_SPACED = re.compile(
    r"[\s:\])-]{0,8}([A-Za-z][\w./%-]{0,40}(?: [A-Za-z][\w./%-]{0,40}){0,2}):? {1,8}(?=[-+.\dnNiI])([-+.\w]{1,60})"
    r"(?: {0,2}(?:%|[A-Za-z/]{1,10}))?(?: {0,2}\([^()]{0,40}\))? {0,8}"
)
_EPOCH_HEADING = re.compile(r"\W{0,8}epoch[ :=#]{0,3}([0-9]{1,9})(?:\s?/\s?[0-9]{1,9})?\W{0,8}", re.IGNORECASE)
_WORDS = re.compile(r"([A-Za-z][\w./@%-]{0,40})\s{1,4}([-+]?[.0-9][-+.\w]{0,40})%?(?:\s?\([^()]{0,40}\))?(?:\s{1,8}|$)")
_ALONE = re.compile(r"[\W_]{0,200}")
_PANEL = "╭"
_BESIDE_STEP = re.compile(
    r"\b(?:epoch[ =][0-9]{1,9}(?:/[0-9]{1,9})?|eta=[\w: ]{1,40}|train(?:ing)?|done)\b", re.IGNORECASE
)
"""What a heading may have beside its step: `Epoch 1/10 Step 3/90 Train step 93/900 done.`, whose last counts."""


def step_header(text: str) -> tuple[int, int] | None:
    """The step, and of how many (0 where unknown), that a heading of its own names: `===== Step 5/100 =====`."""
    if len(text) > _HEADING_LINE:
        return None
    if not (all_found := [*_STEP.finditer(text)]):
        place = _POSITION.fullmatch(text.strip(" :"))
        return (_whole(place[3]), _whole(place[4])) if place and place[3] else None
    around = _BESIDE_STEP.sub("", _STEP.sub("", text).strip().removesuffix(":"))
    return _counts(all_found[-1]) if _ALONE.fullmatch(around) else None


def step_before(text: str) -> tuple[int, int] | None:
    """The step, and of how many, that stands before a dict: `Global step 5: {...}`."""
    found = _STEP.search(text[-_HEADING_LINE:])
    return _counts(found) if found else None


def _counts(found: re.Match[str]) -> tuple[int, int]:
    return _whole(found[1]), _whole(found[2])


def _whole(digits: str | None) -> int:
    return int((digits or "0").replace(",", ""))


@dataclass(frozen=True)
class NamedStep:
    """What a line says of its step. `total` is of the epoch or of all steps, 0 where unknown; where only an epoch is
    named, that is its `count`."""

    count: int
    total: int
    epoch: int | None
    metrics: dict[str, float]
    rank: int
    evaluated: bool


def step_line(text: str) -> NamedStep | None:
    """The step and metrics of `Step 100/10000 | Loss: 0.234 | ...`, also with commas."""
    place = _POSITION.match(text)
    found = _STEP.search(text[:_LONGEST])
    if found is None:
        return _position_line(text, place) if place and any(place.groups()) else None
    before, rest = text[max(found.start() - _HEADING_LINE, 0) : found.start()], text[found.end() : _LONGEST]
    begins = _PAIRS.fullmatch(before) is not None
    metrics = _entries(rest) | (_entries(f"|{before}") if begins else {})
    if not any(map(is_measurement, metrics)):
        metrics |= _without_marks(rest)
    if not any(map(is_measurement, metrics)) and not (begins and any(map(is_beside_step, metrics))):
        return None
    epoch = _whole(place[1]) if place and place[1] else None
    return NamedStep(*_counts(found), epoch, metrics, NAMED, _EVALUATED.match(text) is not None)


def _position_line(text: str, place: re.Match[str]) -> NamedStep | None:
    """That of a line which begins with its place in an epoch or in all steps; where it names an epoch alone, that."""
    rest = text[place.end() : _LONGEST]
    metrics = _entries(rest) or _without_marks(rest)
    count, total = _whole(place[3] or place[1]), _whole(place[4] or place[2])
    if (total and count > total) or not any(map(is_measurement, metrics)):
        return None
    epoch = _whole(place[1]) if place[1] and place[3] else None
    rank = LOOSE if not place[3] else PLACED if epoch is None else NAMED
    return NamedStep(count, total, epoch, metrics, rank, _EVALUATED.match(text) is not None)


def _entries(text: str) -> dict[str, float]:
    """`loss: 0.5 s grad_norm: 0.1 | lm loss=2`: names and numbers; the first of a name counts."""
    metrics, behind = dict[str, float](), 0
    for entry in _ENTRY.finditer(text):
        name = (entry[1] or _name_behind_blanks(text, behind, entry)).strip()
        number = leading_number(text[entry.end() : entry.end() + _HEADING_LINE])
        if number and name:
            metrics.setdefault(name, number[0])
        behind = entry.end() + (number[1] if number else 0)
    return metrics


def _name_behind_blanks(text: str, behind: int, entry: re.Match[str]) -> str:
    """The name of an entry without a divider before it; `behind` is where the value before it ends. Words of prose that
    end with a colon are none: `0.5 iter time (s): 2` has one, and `0.5 is better than the reward: 2` has not."""
    unit = _UNIT.match(text, behind, entry.start(2))
    before = text[unit.end() if unit else behind : entry.start(2)].split()
    words = [*takewhile(_WORD.fullmatch, reversed(before))][::-1]
    for start in range(len(words)):  # the longest name counts: behind `0.5 sec grad norm: 2`, grad norm
        name = " ".join([*words[start:], entry[2]])
        if name.endswith(")") or known(name) or is_measurement(name):
            return name
    texts = [word for word in words if word.isalpha()]  # one may be a unit, behind a number
    is_unit = len(texts) < 2 and (behind > 0 or len(texts) < len(words))
    is_metric = not words or (is_unit and (known(entry[2]) or is_measurement(entry[2])))
    return entry[2] if is_metric or entry[3] == "=" else ""


def _without_marks(text: str) -> dict[str, float]:
    """`loss 0.5 lr 1e-5`, names and numbers with blanks alone between them, or with commas or bars (`_spaced`)."""
    plain = text.lstrip(" :-])\t").rstrip()
    words = [*_WORDS.finditer(plain)]
    if sum(len(each[0]) for each in words) != len(plain):
        return _spaced(text)
    return {each[1]: number[0] for each in words if (number := leading_number(each[2]))}


def _spaced(text: str) -> dict[str, float]:
    """`: loss 3.2145, time 125.30ms, mfu 12.3%`, or such parts between bars. Prose has something else between its
    commas, or unknown names, or whole numbers."""
    barred = "|" in text
    parts = [part for part in re.split(r"\|" if barred else "[,;] ", text) if part.strip(" :-])")]
    pairs = [(found[1], number[0]) for part in parts if (found := _SPACED.fullmatch(part))
             and (number := leading_number(found[2]))]  # fmt: skip
    metrics = dict(pairs)
    is_log = len(parts) > 1 and len(metrics) == len(parts) <= 2 * sum(map(known, metrics))
    return metrics if barred or (is_log and not all(map(float.is_integer, metrics.values()))) else {}


def _names_step(text: str) -> bool:
    """Whether a line may have one of the words of `_STEP`: most have none."""
    return any(part in text for part in ("tep", "ter", "ollout", "pdate", "TEP", "TER"))


class BesideSteps(Form):
    """What stands on a line of its own behind that of a step: `time (ms) | forward: 1.2 | backward: 2.4`."""

    def claims(self, line: str) -> bool:
        behind = self.reading.kind == "lines" and line.startswith(_BEHIND_STEP)
        self._metrics = _entries(f"|{line.removeprefix(_BEHIND_STEP[0])}") if behind else {}
        return bool(self._metrics)

    def take(self, line: str) -> Iterator[Event]:
        return self.reading.step(self.reading.last or 0, self._metrics)


class NamedSteps(Form):
    """A line that names its step, with metrics beside it."""

    ends_block = True

    def __init__(self, reading: LineReading) -> None:
        super().__init__(reading)
        self._epochs = Epochs()

    def claims(self, line: str) -> bool:
        may = _names_step(line) or "poch" in line or "/" in line[:40]
        self._found = step_line(line) if may else None
        if may and self._found is None and (heading := _EPOCH_HEADING.fullmatch(line)):
            self._epochs.begin(int(heading[1]))
        return self._found is not None

    def take(self, line: str) -> Iterator[Event]:
        found, reading = self._found, self.reading
        assert found is not None
        step = self._epochs.step(found.count, found.total, found.epoch)
        if found.evaluated:
            yield from reading.evaluation(
                evaluated(found.metrics, labelled=True), step if found.rank == NAMED else None
            )
        elif reading.numbers.admits("lines", found.rank, step):
            yield from reading.progress(found.count, found.total)
            yield from reading.step(step, found.metrics)
        elif reading.kind == "lines" and (of := {k: v for k, v in found.metrics.items() if of_evaluation(k)}):
            yield from reading.evaluation(of)


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
