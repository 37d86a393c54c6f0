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

from launcher.core.events import Event, Step
from launcher.core.metric_aliases import known
from launcher.logs.forms.numbering import FAINT, LOOSE, NAMED, PLACED, Epochs
from launcher.logs.forms.reading import Form, LineReading
from launcher.logs.forms.values import (
    SPREAD,
    evaluated,
    is_beside_step,
    is_measurement,
    leading_number,
    of_evaluation,
    with_points,
)

_AFTER_STEP = ("time (ms) |", "Average reward score: ")
"""How lines of DeepSpeed and Megatron begin that belong to the step of the line before."""
_OVERFLOW = re.compile(
    r"overflow.{0,120}\b(?:reduc\w{1,4}|scale)(?: from [0-9.]{1,20})? (?:to|of):? {0,4}"
    r"([0-9]{1,20}(?:\.[0-9]{1,20})?(?:e[-+]?[0-9]{1,2})?)",
    re.IGNORECASE,
)
"""What DeepSpeed, Apex and fairseq print of a step that float16 lost: `OVERFLOW! ... reducing to 65536`."""
_MAX_LINE = 4_000  # most characters read of a line that names a step
_HEADING_LINE = 300  # most characters of a heading, and of the text read before a step or a dict
_COUNT = r"([0-9]{1,3}(?:,[0-9]{3}){1,5}(?![0-9])|[0-9]{1,18})"
_STEP = re.compile(
    r"(?:(?<![\w/])(?<!icro[ -])|(?<=/)(?=global_step=))(?:global[ _]|train(?:ing)?_|optimizer_)?"
    r"(?:^steps(?=[:=])|step|iteration|iter|rollout|update|(episode))(?:\(train\))?"
    rf"[ :=#]{{0,10}}\[?\s{{0,8}}{_COUNT}(?:\s{{0,8}}(?:/|of)\s{{0,8}}{_COUNT})?",
    re.IGNORECASE,
)
_POSITION = re.compile(
    r"[\s|]{0,8}(?:(?!epoch)[\w.]{1,40}(?: \||:) )?(?:[\[(]?(?:[a-z]{1,12} )?(?:epoch(?:\(train\))?|"
    r"(?<=train: )(?=[0-9]{1,9} \[))[ :=#|]{0,10}\[?\s{0,4}([0-9]{1,9})(?![.]?[0-9])(?:\s?/\s?([0-9]{1,9}))?\]?"
    rf"[\s:|,-]{{0,10}})?(?:\[?(?:batch[ =:]{{1,2}})?\s{{0,8}}{_COUNT}\s{{0,4}}/\s{{0,4}}{_COUNT}"
    r"(?:\s?\([0-9. ]{1,6}%\))?\]?(?![\w/.:-]|\s[0-9]{1,2}:))?",
    re.IGNORECASE,
)
"""How a line without a word for a step begins: `Train Epoch: 1 [640/60000 (1%)]`, `[5/30]`, `Epoch 2/10`."""
_RICH_BAR = re.compile(r"[━╸╺]{4,400}\s{1,8}(?:\d{1,3}%\s{1,4})?(\d{1,9}/\d{1,9})(?: \d[\d:]{6,8}(?: •.{0,40}?/s)?)?")
"""A bar of Rich around its count and total, with its share, clock and pace."""
_EPOCH_BATCH = re.compile(r"^\[([0-9]{1,9}), (?=[ 0-9]{5}) {0,8}([0-9]{1,9})\](?= [a-z])", re.IGNORECASE)
"""An epoch and a batch as PyTorch's tutorials print them, the batch 5 characters wide: `[1,  2000] loss: 2.173`."""
_EVALUATED = re.compile(
    r"\W{0,8}(?:eval(?:uat\w{1,6})?|val(?:id(?:at\w{1,4})?)?|test)(?:\s?[\]|:]|\s(?:step|iter|epoch))", re.I
)
"""How a line with metrics of an evaluation begins: `[Val]`, `valid |`, `Test:`, `validate step: 5`."""
_SET = re.compile(r"\W{0,8}(?:eval(?:uation)?|val(?:idation)?|test) set(?=:)", re.IGNORECASE)
_ENTRY = re.compile(  # several words after a divider, or one word, before `:` or `=`
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
"""The text allowed before a step: only pairs, such as `epoch=0/micro_step=10/` or `Epoch: 1 | `, or nothing. A value
ends where no letter or digit follows, so that a line matches in one way only; otherwise the time would grow
exponentially with its length."""
_VALUE = (
    r"([a-z_][\w.]{0,40}\(\[?[-+.\dni][^()]{0,100}\)"
    r"|[-+]?(?:[.\d](?:[^\s,;|()]|,(?=\d{3}(?!\d))){0,40}|nan\b|inf(?:inity)?\b))"
    rf"%?(?:{SPREAD})?"
)
"""A value, with its spread: `12.3GB/80GB`, `tensor(1.9, grad_fn=<X>)`, `0.20 ± 0.03`."""
_SPACED_PAIR = re.compile(
    r"[\s:\])-]{0,8}([a-z][\w./%-]{0,40}(?: [a-z][\w./%-]{0,40}){0,2}):? {1,8}"
    + _VALUE
    + r"(?: {0,2}(?:%|[a-z/]{1,10}))?(?: {0,2}\([^()]{0,40}\))? {0,8}",
    re.IGNORECASE,
)
_FRACTION = re.compile("/[0-9]")
_EPOCH_HEADING = re.compile(r"\W{0,8}epoch[ :=#]{0,3}([0-9]{1,9})(?:\s?/\s?[0-9]{1,9})?\W{0,8}", re.IGNORECASE)
_WORDS = re.compile(
    rf"([a-z][\w./@%-]{{0,40}})\s{{1,4}}{_VALUE}(?:\s?\([^()]{{0,40}}\))?(?:\s{{1,8}}|$)", re.IGNORECASE
)
_DECORATION = re.compile(r"[\W_]{0,200}")
_PANEL = "╭"
_BESIDE_STEP = re.compile(
    r"\b(?:epoch[ =][0-9]{1,9}(?:/[0-9]{1,9})?|eta=[\w: ]{1,40}|train(?:ing)?|done)\b", re.IGNORECASE
)
"""What else a heading may hold: `Epoch 1/10 Step 3/90 Train step 93/900 done.`; the last step in it counts."""


def step_header(text: str) -> tuple[int, int] | None:
    """(step, total or 0) of a line that is a heading: `===== Step 5/100 =====`; None where it is not one."""
    if len(text) > _HEADING_LINE:
        return None
    if not (matches := [match for match in _STEP.finditer(text) if not match[1]]):
        place = _POSITION.fullmatch(text.strip(" :"))
        return (_integer(place[3]), _integer(place[4])) if place and place[3] else None
    around = _BESIDE_STEP.sub("", _STEP.sub("", text).strip().removesuffix(":"))
    return _step_and_total(matches[-1]) if _DECORATION.fullmatch(around) else None


def step_before(text: str) -> tuple[int, int] | None:
    """(step, total or 0) in the text before a dict: `Global step 5: {...}`; None where there is none."""
    named = _first_step(text[-_HEADING_LINE:])
    return _step_and_total(named) if named and not named[1] else None


def _first_step(text: str) -> re.Match[str] | None:
    """What names the step in a text; an episode where nothing else does."""
    matches = [*_STEP.finditer(text)]
    return next((match for match in matches if not match[1]), matches[0] if matches else None)


def _step_and_total(match: re.Match[str]) -> tuple[int, int]:
    return _integer(match[2]), _integer(match[3])


def _integer(digits: str | None) -> int:
    return int((digits or "0").replace(",", ""))


@dataclass(frozen=True)
class NamedStep:
    """What a line says of its step. `total` counts the steps of the epoch or all steps, 0 where unknown; `count` is the
    epoch's number where the line names only that."""

    count: int
    total: int
    epoch: int | None
    metrics: dict[str, float]
    rank: int
    evaluated: bool


def step_line(text: str) -> NamedStep | None:
    """The step and metrics of `Step 100/10000 | Loss: 0.234 | ...`, also with commas."""
    text = with_points(_RICH_BAR.sub(r"| \1", text[:_MAX_LINE], 1))
    text, batches = _EPOCH_BATCH.subn(r"epoch \1 step \2", text)
    place, named = _match_position(text), _first_step(text[:_MAX_LINE])
    if named is None or (place and named[1]):
        return _position_line(text, place) if place else None
    before, rest = text[max(named.start() - _HEADING_LINE, 0) : named.start()], text[named.end() : _MAX_LINE]
    begins, of_evaluation = _PAIRS.fullmatch(before) is not None, _EVALUATED.match(text) is not None
    if named[1] and (of_evaluation or not (begins or _DECORATION.fullmatch(before))):
        return None
    metrics = _metrics_beside_step(before if begins else None, rest)
    if not metrics:
        return None
    epoch = _integer(place[1]) if place and place[1] else None
    return NamedStep(*_step_and_total(named), epoch, metrics, FAINT if named[1] or batches else NAMED, of_evaluation)


def _match_position(text: str) -> re.Match[str] | None:
    place = _POSITION.match(text)
    return place if place and any(place.groups()) else None


def _metrics_beside_step(before: str | None, rest: str) -> dict[str, float]:
    """The metrics of a line before and behind its step, None where other text stands before it; none where nothing is
    measured."""
    metrics = _entries(rest) | (_entries(f"|{before}") if before is not None else {})
    if not any(map(is_measurement, metrics)):
        metrics |= _unmarked_entries(rest)
    is_enough = any(map(is_measurement, metrics)) or (before is not None and any(map(is_beside_step, metrics)))
    return metrics if is_enough else {}


def _position_line(text: str, place: re.Match[str]) -> NamedStep | None:
    """The step of a line that begins with its place in an epoch or in all steps, or with an epoch alone."""
    rest = text[place.end() : _MAX_LINE]
    metrics = _entries(rest) or _unmarked_entries(rest)
    count, total = _integer(place[3] or place[1]), _integer(place[4] or place[2])
    if (total and count > total) or not any(map(is_measurement, metrics)):
        return None
    epoch = _integer(place[1]) if place[1] and place[3] else None
    rank = LOOSE if not place[3] else PLACED if epoch is None else NAMED
    return NamedStep(count, total, epoch, metrics, rank, _EVALUATED.match(text) is not None)


def _entries(text: str) -> dict[str, float]:
    """`loss: 0.5 s grad_norm: 0.1 | lm loss=2`: names and numbers; the first of a name counts."""
    metrics, value_end = dict[str, float](), 0
    for entry in _ENTRY.finditer(text):
        name = (entry[1] or _name_after_blanks(text, value_end, entry)).strip()
        number = leading_number(text[entry.end() : entry.end() + _HEADING_LINE])
        if number and name:
            metrics.setdefault(name, number[0])
        value_end = entry.end() + (number[1] if number else 0)
    return metrics


def _name_after_blanks(text: str, value_end: int, entry: re.Match[str]) -> str:
    """The name of an entry without a divider before it; `value_end` is where the value before it ends. Empty for prose
    before a colon: `0.5 iter time (s): 2` has a name, and `0.5 is better than the reward: 2` has none."""
    unit = _UNIT.match(text, value_end, entry.start(2))
    before = text[unit.end() if unit else value_end : entry.start(2)].split()
    words = [*takewhile(_WORD.fullmatch, reversed(before))][::-1]
    for start in range(len(words)):  # the longest name counts: `grad norm` in `0.5 sec grad norm: 2`
        name = " ".join([*words[start:], entry[2]])
        if name.endswith(")") or known(name) or is_measurement(name):
            return name
    texts = [word for word in words if word.isalpha()]  # a single one after a number may be its unit
    is_unit = len(texts) < 2 and (value_end > 0 or len(texts) < len(words))
    is_metric = not words or (is_unit and (known(entry[2]) or is_measurement(entry[2])))
    return entry[2] if is_metric or entry[3] == "=" else ""


def _unmarked_entries(text: str) -> dict[str, float]:
    """`loss 0.5 lr 1e-5`, `: loss 3.2145, time 125.30ms, mfu 12.3%`, or the same with bars or dashes. What cannot be
    read is left out; empty for prose."""
    barred, plain = "|" in text, text.lstrip(" :-])\t").rstrip()
    divider = r"\|" if barred else r"[,;] (?![^()]{0,100}\))| - "
    parts = [part for part in re.split(divider, plain) if part.strip(" :-])\t")]
    if len(parts) > 1:
        pairs = [pair for part in parts if (pair := _SPACED_PAIR.fullmatch(part))]
        unread = len(parts) - len(pairs)
    else:
        pairs, unread = [*_WORDS.finditer(plain)], len(_WORDS.sub("", plain).split())
    numbers = ((pair[1], pair[2], leading_number(pair[2])) for pair in pairs)
    metrics = {name: number[0] for name, text, number in numbers if number and not _FRACTION.match(text, number[1])}
    whole = barred or (len(parts) == 1 and not unread)
    return metrics if whole or _is_log(metrics, len(pairs), unread) else {}


def _is_log(metrics: dict[str, float], pairs: int, unread: int) -> bool:
    """Whether so many pairs and other texts are no prose: half of them are known metrics, more than there are other
    texts, and not all are whole numbers."""
    named = sum(known(name) or is_measurement(name) for name in metrics)
    return unread < named and pairs + unread <= 2 * named and not all(map(float.is_integer, metrics.values()))


def _may_name_step(text: str) -> bool:
    """Whether a line may have a word of `_STEP`; a fast test, as most lines have none."""
    return any(part in text for part in ("tep", "ter", "ollout", "pdate", "TEP", "TER", "pisode"))


class BesideSteps(Form):
    """Metrics on the line after that of their step: `time (ms) | forward: 1.2 | backward: 2.4`, or of an evaluation:
    `Test set: Average loss: 0.05, Accuracy: 9800/10000 (98%)`, where a fraction may be a count."""

    def read(self, line: str) -> Iterator[Event] | None:
        if overflow := _OVERFLOW.search(line[:_HEADING_LINE]):  # answers before it wait for the line of their step
            scale = {"loss_scale": float(overflow[1])}
            return iter([Step(at=self.reading.at, step=self.reading.last or 0, metrics=scale)])
        if self.reading.kind != "lines":
            return None
        if label := _SET.match(line):
            metrics = {k: v for k, v in _entries(line[label.end() :]).items() if is_measurement(k)}
            return self.reading.evaluation(evaluated(metrics, labelled=True)) if metrics else None
        metrics = _entries(f"|{line.removeprefix(_AFTER_STEP[0])}") if line.startswith(_AFTER_STEP) else {}
        return self.reading.step(self.reading.last or 0, metrics) if metrics else None


class NamedSteps(Form):
    """A line that names its step, with metrics beside it."""

    ends_block = True

    def __init__(self, reading: LineReading) -> None:
        super().__init__(reading)
        self._epochs = Epochs()

    def read(self, line: str) -> Iterator[Event] | None:
        if not (_may_name_step(line) or "poch" in line or line.startswith("[") or "/" in line[:40] or "━" in line):
            return None
        if named := step_line(line):
            return self._events(named) if named.rank > FAINT or self.reading.numbers.only_faint else None
        if heading := _EPOCH_HEADING.fullmatch(line):
            self._epochs.begin(int(heading[1]))
        return None

    def _events(self, named: NamedStep) -> Iterator[Event]:
        step, reading = self._epochs.step(named.count, named.total, named.epoch), self.reading
        if named.evaluated:
            yield from reading.evaluation(
                evaluated(named.metrics, labelled=True), step if named.rank == NAMED else None
            )
        elif reading.numbers.admits("lines", named.rank, step):
            yield from reading.progress(named.count, named.total)
            yield from reading.step(step, named.metrics)
        elif reading.kind == "lines" and (evaluation := {k: v for k, v in named.metrics.items() if of_evaluation(k)}):
            yield from reading.evaluation(evaluation)


class Headings(Form):
    """A line that names the step of the block below it; TRL names the step of the dict above in its table's frame."""

    ends_block = True

    def read(self, line: str) -> Iterator[Event] | None:
        header = step_header(line) if _may_name_step(line) else None
        return self._note(*header, of_panel=line.startswith(_PANEL)) if header else None

    def _note(self, step: int, total: int, of_panel: bool) -> Iterator[Event]:
        if of_panel:
            self.reading.numbers.panel(step)
            return
        self.reading.header = step
        if self.reading.numbers.basis.by_heading:
            yield from self.reading.progress(step, total)
