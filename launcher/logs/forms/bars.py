"""Progress bars of tqdm, several on a line or none, with metrics behind them or not:

Training Progress:  15%|█▌        | 49/320 [1:06:07<4:11:40, 55.72s/it, policy_loss=-0.1249, reward=0.3531]
1|49|Loss: 1.5: 100%|██████████| 49/49 [10:00<00:00, 10.0s/it]
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from launcher.core.events import Event
from launcher.logs.forms.numbering import NAMED, Epochs
from launcher.logs.forms.reading import LONGEST, Form, LineReading
from launcher.logs.forms.values import is_measurement, leading_number, unscaled

MARK = "%|"
_MAX_BAR = 4_000  # characters of a bar
_COUNT = re.compile(r"\|\s{0,8}([0-9]{1,15})/([0-9]{1,15})\s{1,4}\[")
_RATE = re.compile(r"\s{0,8}([0-9.]{1,20}|\?)\s{0,2}(s/|)([A-Za-z]{1,20})(/s|)$")
_EPOCH = re.compile(r"epoch\s{0,2}\[?([0-9]{1,9})(?:/([0-9]{1,9}))?", re.IGNORECASE)
_TITLE_METRIC = re.compile(r"([A-Za-z][\w/]{0,40})\s{0,3}[:=]\s{0,3}([-+.\w]{1,40})\)?$")
_TRAINING = ("train", "epoch", "step", "progress", "episode", "iter", "loss")


@dataclass(frozen=True)
class Bar:
    """One drawing of a bar. It counts up to `total`, within `epoch` if its title names one."""

    title: str
    count: int
    total: int
    epoch: int | None
    epochs: int
    elapsed_s: float | None
    left_s: float | None
    per_step_s: float | None
    metrics: dict[str, float]
    end: int
    """Index of the text behind the bar."""

    @property
    def of_training(self) -> bool:
        """Whether it may count training steps, rather than files, rows or batches of an evaluation."""
        title = self.title.casefold()
        return not title or any(word in title for word in _TRAINING)


def bars(text: str) -> Iterator[Bar]:
    """The bars of a line, from left to right."""
    begin = 0
    while (mark := text.find(MARK, begin)) >= 0:
        bar = _read_bar(text, begin, mark)
        if bar:
            yield bar
        begin = bar.end if bar else mark + len(MARK)


def _read_bar(text: str, begin: int, mark: int) -> Bar | None:
    bar_text = text[mark + 1 : mark + _MAX_BAR]  # from the first |
    edge = bar_text.find("|", 1)
    count = _COUNT.match(bar_text, edge) if edge > 0 else None
    if count is None:
        return None
    inside, closed, _ = bar_text[count.end() :].partition("]")
    clock, *parts = inside.split(", ")
    elapsed, _, left = clock.partition("<")
    metrics = dict[str, float]()
    rate = _RATE.match(parts[0]) if parts else None
    for part in parts:
        name, equals, value = part.partition("=")
        if equals and (number := leading_number(value.strip())):
            name, scaled = unscaled(name.strip(), number[0])
            metrics[name] = scaled
    title = text[max(begin, mark - 200) : mark].rstrip("0123456789").rstrip(" :\t")
    title_metric = _TITLE_METRIC.search(title)
    if title_metric and is_measurement(title_metric[1]) and (number := leading_number(title_metric[2])):
        metrics.setdefault(title_metric[1], number[0])
    epoch_match = _EPOCH.search(title)
    epoch, epochs = (int(epoch_match[1]), int(epoch_match[2] or 1)) if epoch_match else (None, 1)
    return Bar(
        title.strip(), int(count[1]), int(count[2]), epoch, epochs,
        _seconds(elapsed), _seconds(left), _pace(rate), metrics, mark + 1 + count.end() + len(inside) + len(closed),
    )  # fmt: skip


def _seconds(clock: str) -> float | None:
    """`1:06:07`, `02:30`, `1 day, 2:03:04` without the day; None of `?`."""
    parts = clock.strip().split(":")
    if len(parts) > 4 or not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        return None
    total = 0.0
    for part in parts:
        total = total * 60 + int(part)
    return total


def _pace(rate: re.Match[str] | None) -> float | None:
    """Seconds per step of `55.72s/it` or `2.5it/s`."""
    number = leading_number(rate[1]) if rate else None
    if rate is None or number is None or not number[0]:
        return None
    if rate[2]:
        return number[0]
    return 1 / number[0] if rate[4] else None


class ProgressBars(Form):
    """Steps and progress of the bars on a line; the text behind the last bar is left to other forms."""

    def __init__(self, reading: LineReading) -> None:
        super().__init__(reading)
        self._epochs = Epochs()

    _untitled_total = 0  # total of the first bar without a title
    _drawn: tuple[int, dict[str, float]] | None = None

    def read(self, line: str) -> Iterator[Event] | None:
        return self._read_bars(line) if MARK in line and len(line) <= LONGEST else None

    def _read_bars(self, line: str) -> Iterator[Event]:
        end = 0
        for bar in bars(line):
            end = bar.end
            if not bar.title and not self._untitled_total:
                self._untitled_total = bar.total
            step = self._epochs.step(bar.count, bar.total, bar.epoch, anew=True)
            if (step, bar.metrics) != self._drawn and any(map(is_measurement, bar.metrics)):
                self._drawn = step, bar.metrics
                if self.reading.numbers.admits("bars", NAMED, step):
                    pace = {} if bar.per_step_s is None else {"s/it": bar.per_step_s}
                    yield from self.reading.step(step, pace | bar.metrics)
            if bar.of_training and (bar.title or bar.total == self._untitled_total):
                self.reading.bar = step
                yield from self.reading.progress(
                    step, bar.total * bar.epochs, bar.elapsed_s, bar.left_s, bar.per_step_s
                )
        self.rest = line[end:].strip()
