"""The metrics of a run so far, and what may be said of them: what changed beyond noise, and what may be chance."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from statistics import NormalDist, fmean, median

from launcher.core.events import Loaded, Step, WeightsMoved
from launcher.core.metrics import Z95, HeldOut, better, better_than, held_out, wilson
from launcher.health import series
from launcher.health.series import SIGNIFICANT
from launcher.spec.run import RunSpec

HOLD = 3
FEW = 6  # steps below which a trend means nothing
GROUPS = 64  # of answers, that must agree before something is said of all
LARGEST_LR = 1e-3
USUAL_LR = {"adapters": 1e-4, "answers": 1e-5, "pairs": 1e-6, "prompts": 1e-6, "mixed": 1e-6}
"""By what is trained: adapters, or on what all weights."""
SCORE = "critic/score/mean"
SOLVED = 0.9  # of the range of scores that was seen: groups without a spread have nothing left to learn
CHANCE = 0.0005  # that a validation is called worse than another by chance
FEW_ROWS = 10  # held-out rows below which scores say nothing


@dataclass
class History:
    """The metrics of a run's steps, and its validations."""

    run: RunSpec
    series: dict[str, list[float]] = field(default_factory=dict)
    """Finite values of each metric, step by step."""
    validations: list[HeldOut] = field(default_factory=list)
    answers: list[dict[str, float]] = field(default_factory=list)
    """All metrics of each validation."""
    moved: Mapping[str, float] | None = None
    """How far each part of the weights moved, where that was measured."""
    steps: int = 0
    planned: int = 0
    held_out_rows: int = 0
    _changes: dict[str, tuple[int, Change]] = field(default_factory=dict)
    """Of each metric its change, and the number of values then: several rules ask for it."""

    def add(self, event: Loaded | Step | WeightsMoved) -> None:
        if isinstance(event, Loaded):
            self.planned, self.held_out_rows = event.steps, event.val_rows
        elif isinstance(event, WeightsMoved):
            self.moved = event.distance
        else:
            self._add_step(event)

    def _add_step(self, event: Step) -> None:
        sparse = {"reward/faults": 0.0} if SCORE in event.metrics else {}  # reported where there are any
        for name, value in (sparse | dict(event.metrics)).items():
            values = self.series.setdefault(name, [])
            if math.isfinite(value):
                values.append(value)
        self.steps = max(self.steps, event.step)
        if measured := held_out(event.step, event.metrics):
            if measured.name == "val/rewards/accuracies" and self.held_out_rows:
                low, high = wilson(measured.value, self.held_out_rows)
                measured = replace(measured, low=low, high=high)
            self.validations.append(measured)
            self.answers.append({name: x for name, x in event.metrics.items() if name.startswith("val")})

    @property
    def over(self) -> bool:
        return 0 < self.planned <= self.steps

    @property
    def enough(self) -> int:
        """Steps after which all that was sampled says something."""
        return max(HOLD, -(-GROUPS // self.run.data.train_batch_size))

    def any_of(self, names: Iterable[str]) -> str:
        """The first of these metrics that the run has; empty where it has none."""
        return next((name for name in names if self.series.get(name)), "")

    def lately(self, name: str, count: int = HOLD) -> list[float]:
        """The last `count` values; none where there are fewer, and all of them at the run's end."""
        values = self.series.get(name, [])
        return values[-count:] if len(values) >= count or self.over else []

    def change(self, name: str) -> Change | None:
        values = self.series.get(name, [])
        if len(values) < FEW:
            return None
        known = self._changes.get(name)
        if known is None or known[0] != len(values):
            self._changes[name] = known = len(values), Change.of(values)
        return known[1]

    def rose(self, name: str) -> bool:
        change = self.change(name)
        return change is not None and change.rose

    def rose_for(self, name: str, steps: int) -> bool:
        """Whether it had risen at each of the last so many steps."""
        values = self.series.get(name, [])
        ends = range(len(values) - steps + 1, len(values) + 1)
        return ends[0] >= FEW and all(Change.of(values[:end]).rose for end in ends)

    @property
    def most(self) -> float:
        """The largest score of an answer so far."""
        return max(self.series.get("critic/score/max") or [1.0])

    def of_range(self, score: float) -> float:
        """1 for the largest score of an answer so far, 0 for the smallest, or for 0 where all are positive."""
        least = min([*self.series.get("critic/score/min", []), *([0.0] if self.most > 0 else [self.most])])
        return (score - least) / (self.most - least) if self.most > least else 0.0

    @property
    def solved(self) -> bool:
        """Whether nearly all answers have the largest score, and those to held-out prompts are not much worse."""
        scores = self.series.get(SCORE, [])[-HOLD:]
        held = not self.validations or self.of_range(self.validations[-1].value) >= 0.5
        return bool(scores) and self.of_range(fmean(scores)) >= SOLVED and held

    @property
    def improved(self) -> bool:
        """Whether the score is higher than at the start: its own answers', or that of held-out data."""
        if self.rose(SCORE):
            return True
        return len(self.validations) > 1 and self.worse_by(self.validations[-1], self.validations[0]) > 0

    @property
    def best(self) -> HeldOut:
        """The best validation; of equal ones the first."""
        return reduce(lambda best, each: each if better_than(each, best) else best, self.validations)

    @property
    def held_out_fine(self) -> bool:
        """Whether a validation of late is not worse than any before."""
        if len(self.validations) < 2 or self.validations[-1].step < 0.8 * self.steps:
            return False
        return self.worse_by(self.best, self.validations[-1]) <= 0

    def worse(self, before: HeldOut, now: HeldOut) -> float:
        """How much worse `now` is, which may be chance."""
        return before.value - now.value if better(before.name) != "down" else now.value - before.value

    def worse_by(self, before: HeldOut, now: HeldOut, chance: float = CHANCE) -> float:
        """How much worse `now` is, beyond what chance does with this probability; at most 0 where it may be chance, as
        where `before` is the best of many."""
        up = better(before.name) != "down"
        if up and 0 < self.held_out_rows < FEW_ROWS:
            return 0.0
        apart = self.worse(before, now)
        many = 1 if before == self.validations[0] or now == self.validations[0] else len(self.validations)
        z = NormalDist().inv_cdf(1 - chance / many)
        if before.low is not None and before.high is not None and now.low is not None and now.high is not None:
            margin = z / Z95 * math.hypot((before.high - before.low) / 2, (now.high - now.low) / 2)
            least = 0.03 * max(1.0, abs(before.value))  # of shares, and of scores beyond 1
            return apart - max(margin + 1 / (self.held_out_rows or math.inf), least)  # shares of few rows are far apart
        least = max(0.07, 0.14 * abs(before.value)) if up else max(0.02, 0.04 * abs(before.value))
        return apart - max(z * math.sqrt(2) * self._held_out_error(up), least)

    def _held_out_error(self, scored: bool) -> float:
        """Standard error of a validation whose interval is unknown: from the bends of the curve of all validations
        and, of scores, from the noise of the steps' own, as if the answers to a prompt were independent."""
        values = [each.value for each in self.validations]
        bends = [abs(a - 2 * b + c) for a, b, c in zip(values, values[1:], values[2:], strict=False)]
        error = median(bends) / 0.6745 / math.sqrt(6) * (1 + 4 / len(values)) if len(bends) > 1 else 0.0
        scores = self.series.get(SCORE, [])
        if not scored or len(scores) < HOLD:
            return error
        answers, sampler = self.run.data.train_batch_size * self.run.sampler.n, self.run.sampler
        asked = self.held_out_rows * sampler.val_n or answers
        return max(error, noise(scores) * math.sqrt(answers / asked))

    # ---- settings that would help

    def slower(self, factor: float) -> str:
        """A smaller learning rate; of one that is beyond reason, one that is within it. Before it a weight decay that
        is beyond reason."""
        if self.run.optim.weight_decay > 1:
            return "optim.weight_decay=0.01"
        return f"optim.lr={min(self.run.optim.lr / factor, LARGEST_LR):.3g}"

    @property
    def faster(self) -> str:
        """A learning rate with which something should be learnt; before it what else keeps the updates small."""
        rates = self.series.get(self.any_of(("actor/lr", "train/lr")), [])
        if self.run.optim.lr_warmup_steps and rates and max(rates) < 0.5 * self.run.optim.lr:
            return f"optim.lr_warmup_steps={self.steps // 10}"
        if self.run.optim.clip_grad < 1e-4:
            return "optim.clip_grad=1"
        beta, kl = self.setting("beta"), self.setting("kl_loss_coef")
        if isinstance(beta, float) and beta < 1e-3:
            return "algorithm.beta=0.1"
        if isinstance(kl, float) and kl > 1:
            return "algorithm.kl_loss_coef=0.04"
        usual = USUAL_LR["adapters" if self.run.model.lora_rank else self.run.algorithm.data]
        return f"optim.lr={max(10 * self.run.optim.lr, usual):.3g}"

    @property
    def more_different(self) -> str:
        """What makes the answers to a prompt differ."""
        if self.run.sampler.temperature < 0.3:
            return "sampler.temperature=1"
        return f"sampler.n={max(2 * self.run.sampler.n, 8)}"

    def setting(self, name: str) -> object:
        """The algorithm's setting of that name; None where it has none."""
        return vars(self.run.algorithm).get(name)


@dataclass(frozen=True)
class Change:
    """From the beginning of a series to its end."""

    first: float
    best: float
    """Highest mean of so many values in a row."""
    least: float
    last: float
    error: float
    """Standard error of the difference of two."""

    @classmethod
    def of(cls, values: Sequence[float]) -> Change:
        window = min(max(len(values) // 5, 3), 50)
        means = [fmean(values[start : start + window]) for start in range(0, len(values) - window + 1, window)]
        last = fmean(values[-window:])
        error = noise(values) * math.sqrt(2 / window)
        return cls(means[0], max(*means, last), min(*means, last), last, error)

    @property
    def rose(self) -> bool:
        return self.last - self.first > max(SIGNIFICANT * self.error, 1e-12)

    @property
    def fell(self) -> bool:
        return self.first - self.last > max(SIGNIFICANT * self.error, 1e-12)

    @property
    def fell_from_best(self) -> bool:
        """With a margin for the best of several, which chance favours."""
        return self.best - self.last > max(1.25 * SIGNIFICANT * self.error, 1e-12)

    @property
    def rose_from_least(self) -> bool:
        return self.last - self.least > max(1.25 * SIGNIFICANT * self.error, 1e-12)


def noise(values: Sequence[float]) -> float:
    """Standard deviation of a value around the trend; of few values it is an upper bound."""
    return series.noise(values[-series.NOISE :]) * (1 + 8 / len(values)) if len(values) > 1 else 0.0
