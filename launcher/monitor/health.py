"""What is wrong with a run's training, from its metrics alone: rules over the steps so far.

No rule has an absolute band for a quantity whose healthy values differ from model to model. Each compares a run with
its own beginning, in units of its own noise, and most need two signs together. A rule is reported once, when it has
held for `HOLD` steps in a row; what holds at the end is the run's verdict.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import pairwise
from statistics import fmean, median

from launcher.core.events import Alert, Event, Loaded, Step
from launcher.core.metrics import HeldOut, better, better_than, held_out
from launcher.spec.run import RunSpec

HOLD = 3
FEW = 6  # steps below which a trend means nothing
LARGEST_LR = 1e-3
USUAL_LR = {"adapters": 1e-4, "answers": 1e-5, "pairs": 1e-6, "prompts": 1e-6, "mixed": 1e-6}
"""By what is trained: adapters, or on what all weights."""
RECENT = 200  # values that noise is measured on
SIGNIFICANT = 4.0  # standard errors; a run is looked at hundreds of times
SCORE, LOSSES = "critic/score/mean", ("train/loss", "actor/dpo_loss")
SOLVED = 0.9  # of the largest score that was seen: groups without a spread have nothing left to learn


@dataclass(frozen=True)
class Finding:
    """What a rule found."""

    rule: str
    what: str
    fix: str

    @property
    def text(self) -> str:
        return f"{self.what}; {self.fix}"


@dataclass
class History:
    """The metrics of a run's steps, and its validations."""

    run: RunSpec
    series: dict[str, list[float]] = field(default_factory=dict)
    validations: list[HeldOut] = field(default_factory=list)
    answers: list[dict[str, float]] = field(default_factory=list)
    """All metrics of each validation."""
    steps: int = 0
    planned: int = 0

    def add(self, event: Step) -> None:
        for name, value in event.metrics.items():
            self.series.setdefault(name, []).append(value)
        self.steps = max(self.steps, event.step)
        if measured := held_out(event.step, event.metrics):
            self.validations.append(measured)
            self.answers.append({name: x for name, x in event.metrics.items() if name.startswith("val")})

    def finite(self, name: str) -> list[float]:
        return [value for value in self.series.get(name, ()) if math.isfinite(value)]

    def any_of(self, names: Iterable[str]) -> str:
        """The first of these metrics that the run has; empty where it has none."""
        return next((name for name in names if name in self.series), "")

    def lately(self, name: str, count: int = HOLD) -> list[float]:
        """The last `count` values; none where there are fewer."""
        values = self.finite(name)
        return values[-count:] if len(values) >= count else []

    def change(self, name: str) -> Change | None:
        values = self.finite(name)
        return Change.of(values) if len(values) >= FEW else None

    def slower(self, factor: float) -> str:
        """A smaller learning rate; of one that is beyond reason, one that is within it."""
        return f"use optim.lr={min(self.run.optim.lr / factor, LARGEST_LR):.3g}"

    @property
    def faster(self) -> str:
        """A larger learning rate, with which something should be learnt."""
        usual = USUAL_LR["adapters" if self.run.model.lora_rank else self.run.algorithm.data]
        return f"use optim.lr={max(10 * self.run.optim.lr, usual):.3g}"

    @property
    def best(self) -> HeldOut:
        """The best validation; of equal ones the first."""
        return reduce(lambda best, each: each if better_than(each, best) else best, self.validations)


@dataclass(frozen=True)
class Change:
    """From the beginning of a series to its end."""

    first: float
    last: float
    error: float
    """Standard error of the difference."""

    @classmethod
    def of(cls, values: Sequence[float]) -> Change:
        window = min(max(len(values) // 5, 3), 50)
        return cls(fmean(values[:window]), fmean(values[-window:]), noise(values) * math.sqrt(2 / window))

    @property
    def rose(self) -> bool:
        return self.last - self.first > max(SIGNIFICANT * self.error, 1e-12)

    @property
    def fell(self) -> bool:
        return self.first - self.last > max(SIGNIFICANT * self.error, 1e-12)


def noise(values: Sequence[float]) -> float:
    """Standard deviation of a value from its neighbours', whatever the trend: from the absolute differences, by their
    mean or their median, whichever is larger. Of few values it is an upper bound."""
    apart = [abs(b - a) for a, b in pairwise(values[-RECENT:])]
    if not apart:
        return 0.0
    return max(fmean(apart) / 0.7979, median(apart) / 0.6745) / math.sqrt(2) * (1 + 8 / len(values))


def better_up(measured: HeldOut) -> bool:
    return better(measured.name) != "down"


def margin(one: HeldOut, other: HeldOut) -> float:
    """The difference of two validations that may be chance."""
    if one.low is not None and one.high is not None and other.low is not None and other.high is not None:
        return max(math.hypot((one.high - one.low) / 2, (other.high - other.low) / 2), 0.02)
    return 0.02 * abs(one.value) if not better_up(one) else max(0.05, 0.1 * abs(one.value))


def worse_by(before: HeldOut, now: HeldOut) -> float:
    """How much worse `now` is, beyond chance; at most 0 where it may be chance."""
    apart = before.value - now.value if better_up(before) else now.value - before.value
    return apart - margin(before, now)


# ---- the rules: what each finds in a history, or None


def not_finite(seen: History) -> Finding | None:
    name = seen.any_of(("train/skipped_nonfinite", "actor/skipped_nonfinite"))
    skipped = seen.series.get(name, [])
    share = fmean(skipped[-10:]) if skipped else 0.0
    if share < 0.3 or "reward/faults" in seen.series:
        return None
    what = f"{share:.0%} of the last updates were skipped, as numbers were not finite"
    return Finding("not-finite", what, seen.slower(10))


def loss_diverged(seen: History) -> Finding | None:
    values = seen.finite(seen.any_of(LOSSES))
    if len(values) < 4:
        return None
    first, last = median(values[:3]), median(values[-3:])
    if last <= 1.3 * first + 0.1:
        return None
    return Finding("loss-diverged", f"the loss rose from {first:.4g} to {last:.4g}", seen.slower(10))


def held_out_below_start(seen: History) -> Finding | None:
    if len(seen.validations) < 2 or seen.validations[0].step:
        return None
    first, now = seen.validations[0], seen.validations[-1]
    if worse_by(first, now) <= 0:
        return None
    what = f"held-out data is worse than before training: {first.shown} then, {now.shown} at step {now.step}"
    return Finding("worse-than-before", what, seen.slower(5))


def held_out_below_best(seen: History) -> Finding | None:
    if len(seen.validations) < 2:
        return None
    best, now = seen.best, seen.validations[-1]
    if worse_by(best, now) <= 0:
        return None
    what = f"held-out data is worse than at step {best.step}: {best.shown} then, {now.shown} now"
    return Finding("past-its-best", what, f"use fewer steps: trainer.total_training_steps={max(best.step, 1)}")


def no_signal(seen: History) -> Finding | None:
    flat, scores = seen.lately("critic/frac_reward_zero_std"), seen.lately(SCORE)
    if not flat or not scores or min(flat) < 0.95:
        return None
    most = max(seen.series.get("critic/score/max", [1.0]))
    solved = not seen.validations or seen.validations[-1].value >= 0.5 * most
    if fmean(scores) >= SOLVED * most > 0 and solved:
        return None
    what = f"answers to a prompt all had the same score, {fmean(scores):.4g}, so nothing was learnt from them"
    return Finding("no-signal", what, "look at the answers, and use easier data, sampler.n=16 or another reward")


def no_groups(seen: History) -> Finding | None:
    kept = seen.lately("train/groups_kept")
    if not kept or max(kept) > 0:
        return None
    return Finding("no-groups", "no group of answers was kept to train on", "use easier data, or sampler.n=16")


def scores_missing(seen: History) -> Finding | None:
    missing, asked = seen.lately("reward/faults"), seen.run.data.train_batch_size * seen.run.sampler.n
    if not missing or min(missing) < 0.5 * asked:
        return None
    what = f"{fmean(missing):.0f} of {asked} answers of a step had no score"
    return Finding("scores-missing", what, "test the reward with rlrun reward bench")


def no_gradient(seen: History) -> Finding | None:
    norms = seen.lately(seen.any_of(("actor/grad_norm", "train/grad_norm")), 5)
    flat = seen.lately("critic/frac_reward_zero_std") or [0.0]
    if not norms or max(norms) > 1e-9 or fmean(flat) > 0.8:
        return None
    return Finding("no-gradient", "the gradient was 0, so the weights did not move",
                   "use data with answers to learn, or other model.target_modules")  # fmt: skip


def entropy_collapsed(seen: History) -> Finding | None:
    entropy, score = seen.change("actor/entropy"), seen.change(SCORE)
    if entropy is None or score is None or score.rose or entropy.last > max(0.02, 0.02 * entropy.first):
        return None
    what = f"the policy's entropy fell from {entropy.first:.3g} to {entropy.last:.3g}, and its score did not rise"
    return Finding("entropy-collapsed", what, f"{seen.slower(5)} or a larger algorithm.clip_ratio_high")


def entropy_exploded(seen: History) -> Finding | None:
    entropy, score = seen.change("actor/entropy"), seen.change(SCORE)
    if entropy is None or score is None or score.rose or entropy.last < max(1.0, 4 * entropy.first):
        return None
    what = f"the policy's entropy rose from {entropy.first:.3g} to {entropy.last:.3g}: its answers become random"
    return Finding("entropy-exploded", what, seen.slower(5))


def score_fell(seen: History) -> Finding | None:
    score = seen.change(SCORE)
    if score is None or not score.fell or score.last > 0.8 * score.first:
        return None
    what = f"the score of its own answers fell from {score.first:.3g} to {score.last:.3g}"
    return Finding("score-fell", what, seen.slower(5))


def reward_hacked(seen: History) -> Finding | None:
    score = seen.change(SCORE)
    if score is None or not score.rose or not seen.validations:
        return None
    if len(seen.validations) < 2 or worse_by(seen.best, seen.validations[-1]) <= 0:
        return None
    what = f"the reward rose from {score.first:.3g} to {score.last:.3g} while the held-out score fell: it is exploited"
    return Finding("reward-exploited", what, "look at the answers, and use a reward that only right answers get")


def answers_cut(seen: History) -> Finding | None:
    cut, score = seen.lately("response_length/clip_ratio"), seen.change(SCORE)
    if not cut or min(cut) < 0.9 or score is None or score.rose:
        return None
    more = 2 * seen.run.data.max_response_length
    what = f"{fmean(cut):.0%} of the answers were cut at data.max_response_length: no end was sampled"
    return Finding("answers-cut", what, f"use data.max_response_length={more}, or a model that ends its answers")


def far_from_reference(seen: History) -> Finding | None:
    values = seen.finite("actor/kl_loss")
    if len(values) < FEW or fmean(values[-2:]) < max(1.0, 10 * median(values)):
        return None
    what = f"the KL divergence to the reference rose to {fmean(values[-2:]):.3g} nats a token"
    return Finding("far-from-reference", what, seen.slower(5))


def nothing_learnt(seen: History) -> Finding | None:
    """Once half of the steps are done."""
    if seen.steps < max(10, seen.planned / 2):
        return None
    loss = seen.change(seen.any_of(LOSSES))
    if loss is not None:
        if abs(loss.last - loss.first) > 1.5 * loss.error + 0.005 * abs(loss.first) or _held_out_moved(seen):
            return None
        what = f"the loss did not move beyond its noise: {loss.first:.4g} then, {loss.last:.4g} now"
        return Finding("nothing-learnt", what, seen.faster)
    if len(seen.answers) < 2 or any(each != seen.answers[0] for each in seen.answers):
        return None
    what = "every validation came out the same: the policy's answers did not change"
    return Finding("nothing-learnt", what, seen.faster)


def _held_out_moved(seen: History) -> bool:
    if len(seen.validations) < 2:
        return False
    first, now = seen.validations[0], seen.validations[-1]
    return abs(now.value - first.value) > 0.005 * abs(first.value)


Rule = Callable[[History], Finding | None]
RULES: tuple[Rule, ...] = (
    not_finite, scores_missing, no_groups, no_signal, no_gradient, loss_diverged, held_out_below_start, reward_hacked,
    score_fell, entropy_exploded, entropy_collapsed, far_from_reference, answers_cut, held_out_below_best,
    nothing_learnt,
)  # fmt: skip
"""The most telling first."""
COVERED = {
    "worse-than-before": {"past-its-best", "no-signal"},
    "score-fell": {"no-signal"},
    "reward-exploited": {"past-its-best", "worse-than-before"},
    "no-groups": {"no-signal"},
    "scores-missing": {"no-signal", "not-finite"},
    "loss-diverged": {"past-its-best", "worse-than-before"},
}
"""What a finding makes superfluous."""


class Health:
    """Judges a run as it goes."""

    def __init__(self, run: RunSpec) -> None:
        self.seen = History(run)
        self._held: Counter[Rule] = Counter()
        self._reported: set[str] = set()
        self._now: dict[Rule, Finding] = {}

    def hear(self, event: Event) -> list[Alert]:
        """The alerts that a step gives rise to."""
        if isinstance(event, Loaded):
            self.seen.planned = event.steps
        if not isinstance(event, Step):
            return []
        self.seen.add(event)
        self._now = {rule: found for rule in RULES if (found := rule(self.seen))}
        self._held = Counter({rule: self._held[rule] + 1 for rule in self._now})
        new = [found for found in self._standing() if found.rule not in self._reported]
        self._reported |= {found.rule for found in new}
        return [Alert(step=event.step, text=found.text) for found in new]

    def replay(self, events: Iterable[Event]) -> list[Alert]:
        """Hear what was logged before; the alerts that are missing from it, as the launcher was killed."""
        given, logged = list[Alert](), set[tuple[int, str]]()
        for event in events:
            given += self.hear(event)
            if isinstance(event, Alert):
                logged.add((event.step, event.text))
        return [alert for alert in given if (alert.step, alert.text) not in logged]

    def verdict(self) -> list[Finding]:
        """What is wrong at the end; nothing for a run that learnt something."""
        if not self.seen.steps:
            return [Finding("no-step", "no step was taken", "use a larger trainer.total_training_steps")]
        return self._standing()

    def _standing(self) -> list[Finding]:
        found = [self._now[rule] for rule in RULES if self._held[rule] >= HOLD or (rule in self._now and _sudden(rule))]
        superfluous = set[str]().union(*(COVERED.get(each.rule, set()) for each in found))
        if len(found) > 1:
            superfluous.add("nothing-learnt")
        return [each for each in found if each.rule not in superfluous]


def _sudden(rule: Rule) -> bool:
    """Whether a rule speaks of validations, which are far apart."""
    return rule in (held_out_below_start, held_out_below_best, reward_hacked)
