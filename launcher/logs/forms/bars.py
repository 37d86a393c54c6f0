"""Progress bars of tqdm, several on a line or none, with metrics behind them or not:

Training Progress:  15%|█▌        | 49/320 [1:06:07<4:11:40, 55.72s/it, policy_loss=-0.1249, reward=0.3531]
1|49|Loss: 1.5: 100%|██████████| 49/49 [10:00<00:00, 10.0s/it]
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from launcher.core.events import Event
from launcher.logs.forms.numbering import NAMED, Epochs
from launcher.logs.forms.reading import LONGEST, Form, LineReading
from launcher.logs.forms.values import is_measurement, leading_number, unscaled

MARK = "%|"
_BAR = re.compile(r"%\|[^|]{0,4000}\|\s{0,8}([0-9]{1,15})/([0-9]{1,15})\s{1,4}\[([^]]{0,4000})\]?")
"""A bar from its mark on: count, total, and what stands in brackets behind them."""
_CLOCK = re.compile(
    r"\[[0-9]{1,6}:[0-9:]{2,6}(?:<[^],]{1,30}, |, {1,2}[0-9.?]{1,20} ?(?:s/|[A-Za-z]{1,20}/s))[^]]{0,4000}\]"
)
"""What a bar of tqdm ends with, also one without a total: `[00:10<01:30, 10.0s/it, loss=0.5]`."""
_MAX_TITLE = 200  # characters before the mark
_RATE = re.compile(r"\s{0,8}([0-9.]{1,20}|\?)\s{0,2}(s/|)([A-Za-z]{1,20})(/s|)$")
_EPOCH = re.compile(r"epoch\s{0,2}\[?([0-9]{1,9})(?:/([0-9]{1,9}))?", re.IGNORECASE)
_TITLE_METRIC = re.compile(r"([A-Za-z][\w/]{0,40})\s{0,3}[:=]\s{0,3}([-+.\w]{1,40})\)?$")
_TRAINING = ("train", "epoch", "step", "progress", "episode", "iter", "loss")
"""Words in the title of a bar that may count training steps, rather than files, rows or batches of an evaluation."""


class ProgressBars(Form):
    """Steps and progress of the bars on a line; the text behind the last bar is left to other forms."""

    def __init__(self, reading: LineReading) -> None:
        super().__init__(reading)
        self._epochs = Epochs()
        self._untitled_total = 0  # total of the first bar without a title
        self._drawn: tuple[int, dict[str, float]] | None = None

    def read(self, line: str) -> Iterator[Event] | None:
        return self._read_bars(line) if MARK in line and len(line) <= LONGEST else None

    def _read_bars(self, line: str) -> Iterator[Event]:
        end = 0
        for bar in _BAR.finditer(line):
            before = line[max(end, bar.start() - _MAX_TITLE) : bar.start()].rpartition(MARK)[2]
            end = bar.end()
            yield from self._bar(before.rstrip("0123456789").rstrip(" :\t"), int(bar[1]), int(bar[2]), bar[3])
        self.rest = line[end:].strip()

    def _bar(self, title: str, count: int, total: int, behind: str) -> Iterator[Event]:
        """The events of one drawing of a bar. It counts up to `total`, within the epoch if its title names one."""
        clock, *parts = behind.split(", ")
        elapsed, _, left = clock.partition("<")
        per_step_s, metrics = _pace(parts[0] if parts else ""), _metrics_of(title, parts)
        if not title.strip() and not self._untitled_total:
            self._untitled_total = total
        epoch = _EPOCH.search(title)
        step = self._epochs.step(count, total, int(epoch[1]) if epoch else None, anew=True)
        if (step, metrics) != self._drawn and any(map(is_measurement, metrics)):
            self._drawn = step, metrics
            if self.reading.numbers.admits("bars", NAMED, step):
                pace = {} if per_step_s is None else {"s/it": per_step_s}
                yield from self.reading.step(step, pace | metrics)
        of_training = any(word in title.casefold() for word in _TRAINING)
        if of_training if title.strip() else total == self._untitled_total:
            self.reading.bar = step
            steps = total * int(epoch[2] or 1) if epoch else total
            yield from self.reading.progress(step, steps, _seconds(elapsed), _seconds(left), per_step_s)


def behind_bars(line: str) -> str:
    """The text behind the last bar of a line: a program that ends prints on where its bar stopped."""
    clocks = [*_CLOCK.finditer(line)] if "]" in line else []
    return line[clocks[-1].end() :].lstrip() if clocks else line


def _metrics_of(title: str, parts: Sequence[str]) -> dict[str, float]:
    """Those behind a bar, and the one that its title ends with."""
    metrics = dict[str, float]()
    for part in parts:
        name, _, value = part.partition("=")
        if number := leading_number(value.strip()):
            name, scaled = unscaled(name.strip(), number[0])
            metrics[name] = scaled
    last = _TITLE_METRIC.search(title)
    if last and is_measurement(last[1]) and (number := leading_number(last[2])):
        metrics.setdefault(last[1], number[0])
    return metrics


def _seconds(clock: str) -> float | None:
    """`1:06:07`, `02:30`, `1 day, 2:03:04` without the day; None of `?`."""
    parts = clock.strip().split(":")
    if len(parts) > 4 or not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        return None
    return float(sum(int(part) * 60**place for place, part in enumerate(reversed(parts))))


def _pace(text: str) -> float | None:
    """Seconds per step of `55.72s/it` or `2.5it/s`."""
    rate = _RATE.match(text)
    number = leading_number(rate[1]) if rate else None
    if rate is None or number is None or not number[0]:
        return None
    if rate[2]:
        return number[0]
    return 1 / number[0] if rate[4] else None
