"""What a run came to, in one line: learned, not learned, harmed, or cannot tell.

The first validation is compared with the last: row by row where the log has the score or loss of each (`paired.py`),
else by their intervals. Held-out answers decide; a loss decides where there are none, or where the change of the score
may be chance. Why nothing was learned is what the health rules found, else what the numbers of the run show.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

from launcher.core.events import Alert, Event, HeldOutScores, Loaded, Saved, Step
from launcher.core.metrics import Z95, HeldOut, better_than, held_out
from launcher.core.state import RunState
from launcher.core.verdict import RunVerdict
from launcher.health.paired import ScoreDifference, by_prompt, compare_paired, compare_unpaired, pairs_of

ALPHA = 0.01  # two-sided: one in 200 runs whose scores change by chance alone is called "learned"
LEAST = 0.01  # smallest change, as a share of the score or of the loss at the start, that counts if it is significant
UNTESTED = 0.05  # the same without an interval, as of a mean loss in another program's log
FELL_BACK = 1 / 3  # share of the gain at the best validation whose loss counts as overfitting
WIDE = 0.1  # half width of an interval (share of a loss) above which a change may have been missed
FEW_UPDATES, FEW_ROWS = 20, 8  # 8 rows that all change one way are just below ALPHA
HARDLY_RIGHT, ALL_RIGHT = 0.05, 0.95
GUESSING = 0.9  # share of the loss of a uniform guess over the vocabulary
STILL = 1e-4  # relative distance below which weights count as not moved
Z99, Z80 = 2.576, 0.842  # an effect is found in 80 % of the cases at ALPHA


def best_of(validations: Sequence[HeldOut]) -> HeldOut:
    """The best validation; of equal ones the first."""
    return reduce(lambda best, each: each if better_than(each, best) else best, validations)


@dataclass
class Validations:
    """The validations of one metric; scores of single rows are kept of the first, the best and the last."""

    all: list[HeldOut] = field(default_factory=list)
    rows: dict[int, list[HeldOutScores]] = field(default_factory=dict)

    def add(self, now: HeldOut) -> None:
        self.all.append(now)
        kept_steps = {self.all[0].step, best_of(self.all).step, now.step}
        self.rows = {step: events for step, events in self.rows.items() if step in kept_steps}

    def change(self, before: HeldOut, now: HeldOut) -> ScoreDifference:
        a, b = (self.rows.get(validation.step, []) for validation in (before, now))
        pairs = pairs_of(by_prompt(a), by_prompt(b))
        if pairs and 2 * len(pairs) >= sum(len(event.prompts) for event in a):
            return compare_paired([one for _, one, _ in pairs], [other for _, _, other in pairs])
        return compare_unpaired(before, now)


class HeldOutResults:
    """Collects the validations and the scores of held-out rows from a run's events."""

    def __init__(self) -> None:
        self.score, self.loss = Validations(), Validations()
        self.row_count, self.saved = 0, set[int]()

    def see(self, event: Event) -> None:
        match event:
            case HeldOutScores(step=step, metric=metric):
                (self.score if metric == "score" else self.loss).rows.setdefault(step, []).append(event)
            case Loaded(val_rows=val_rows):
                self.row_count = val_rows
            case Saved(step=step):
                self.saved.add(step)
            case Step(step=step, metrics=metrics):
                measured = held_out(step, metrics)
                if measured and measured.name.startswith("val-core/"):
                    self.score.add(measured)
                if math.isfinite(loss := metrics.get("val/loss", math.nan)):
                    self.loss.add(HeldOut(step, "val/loss", loss))


class Trend:
    """The change of a metric from its first validation to its last."""

    def __init__(self, found: Validations, rows: int) -> None:
        self.first, self.best, self.last = found.all[0], best_of(found.all), found.all[-1]
        self.is_loss, self.validations = self.last.name == "val/loss", found
        self.change = found.change(self.first, self.last)
        self.row_count = self.change.items or rows
        self.gain = self._gain(self.change)
        self.is_sure = self._is_sure(self.change, ALPHA)

    def _gain(self, change: ScoreDifference) -> float:
        return -change.value if self.is_loss else change.value

    @property
    def unit(self) -> float:
        return abs(self.first.value) if self.is_loss else max(1.0, abs(self.first.value))

    def _is_sure(self, change: ScoreDifference, alpha: float) -> bool:
        if change.p is None:
            return abs(change.value) >= UNTESTED * self.unit
        return change.p < alpha and abs(change.value) >= LEAST * self.unit

    @property
    def fell_back(self) -> bool:
        """Whether much of the gain at the best validation is lost; tested as the best of several."""
        if self.best.step in (self.first.step, self.last.step):
            return False
        lost, gained = (self.validations.change(validation, self.best) for validation in (self.last, self.first))
        lost_much = self._gain(lost) >= FELL_BACK * self._gain(gained) or self.gain < 0
        return lost_much and self._is_sure(lost, ALPHA / len(self.validations.all))

    @property
    def interval(self) -> tuple[float, float] | None:
        low, high = self.change.low, self.change.high
        return None if low is None or high is None else (low, high)

    @property
    def is_wide(self) -> bool:
        """Whether the interval is so wide that a change that matters may have been missed."""
        return self.interval is None or self.interval[1] - self.interval[0] > 2 * WIDE * self.unit

    @property
    def rows_needed(self) -> str:
        """Rows at which the change, or one of half of WIDE if that is larger, is found in 80 % of the cases."""
        if self.interval is None or not self.row_count:
            return "more held-out rows"
        error = (self.interval[1] - self.interval[0]) / 2 / Z95
        effect = max(abs(self.change.value), WIDE / 2 * self.unit)
        needed = self.row_count * ((Z99 + Z80) * error / effect) ** 2
        return f"about {max(float(f'{needed:.1g}'), 2 * self.row_count, FEW_ROWS):.0f} held-out rows"

    @property
    def text(self) -> str:
        """`held-out score 0.105 at step 0, 0.625 at step 60 (+0.52, 95 % interval +0.453 to +0.578, 256 rows)`"""
        values = ", ".join(f"{end.value:.3g} at step {end.step}" for end in (self.first, self.last))
        interval = f", 95 % interval {self.interval[0]:+.3g} to {self.interval[1]:+.3g}" if self.interval else ""
        rows = f", {self.row_count} rows" if self.row_count else ""
        return f"held-out {'loss' if self.is_loss else 'score'} {values} ({self.change.value:+.3g}{interval}{rows})"


@dataclass(frozen=True)
class EndFacts:
    """What else is known of a run, for its verdict."""

    reasons: Sequence[Alert] = ()
    """Findings of health rules at its end."""
    training: tuple[float, float, bool] | None = None
    """(mean training score of the first fifth of the run, of the last fifth, whether it rose beyond noise)."""
    vocab_size: int = 0
    """0 where it is unknown."""
    slower: str = "a smaller optim.lr"
    faster: str = "a larger optim.lr"

    def guesses(self, loss: float) -> bool:
        """Whether a loss, in nats per token, is near log(vocab_size), that of a uniform guess."""
        return self.vocab_size > 1 and loss >= GUESSING * math.log(self.vocab_size)


def judge_end(state: RunState, results: HeldOutResults, facts: EndFacts) -> RunVerdict:
    """The verdict on the run, or on what there is of it so far."""
    score, loss = (
        Trend(each, results.row_count) if len(each.all) > 1 else None for each in (results.score, results.loss)
    )
    trend = loss if loss and not (score and score.is_sure) and (loss.is_sure or not score) else score
    if trend is None:
        return _verdict_without_trend(results, facts)
    if trend.fell_back:
        return _verdict_overfitted(trend, results)
    if trend.is_sure and trend.gain < 0:
        return _with_reasons(RunVerdict("harmed", trend.text, facts.slower), facts.reasons)
    if not trend.is_sure:
        return _verdict_uncertain(state, trend, facts)
    return _verdict_better(state, trend, score, facts)


def _verdict_better(state: RunState, trend: Trend, score: Trend | None, facts: EndFacts) -> RunVerdict:
    """Verdict on a significant gain: not learned if answers stay wrong, or if only token frequencies were learned."""
    accuracy = score.last.value if score and trend.is_loss else 1.0
    if accuracy <= HARDLY_RIGHT:
        text = f"{trend.text}, but {accuracy:.0%} of the held-out answers are right: {state.step} updates are too few"
        return RunVerdict("not learned", text, _more_steps(state))
    if trend.is_loss and facts.guesses(trend.first.value) and trend.last.value > trend.first.value / 2:
        text = f"{trend.text}: not halved, and random weights first learn how often each token comes"
        return RunVerdict("not learned", f"{text}; {state.step} updates are too few", _more_steps(state))
    preferred = state.validation.get("val/rewards/accuracies") if trend.is_loss else None
    notes = "" if preferred is None else f"; the chosen answer is preferred in {preferred:.0%} of the pairs"
    if trend.best.step != trend.last.step:
        notes += f"; best {trend.best.value:.3g} at step {trend.best.step}"
    return RunVerdict("learned", f"{trend.text}{notes}")


def _more_steps(state: RunState) -> str:
    return f"trainer.total_training_steps={max(100, 10 * state.step)}"


def _with_reasons(verdict: RunVerdict, reasons: Sequence[Alert]) -> RunVerdict:
    if not reasons:
        return verdict
    texts = [*([verdict.text] if verdict.text else []), "; ".join(alert.text for alert in reasons)]
    return RunVerdict(verdict.kind, ": ".join(texts), next((alert.fix for alert in reasons if alert.fix), ""))


def _verdict_without_trend(results: HeldOutResults, facts: EndFacts) -> RunVerdict:
    if facts.reasons:
        return _with_reasons(RunVerdict("not learned", ""), facts.reasons)
    validations = [*results.score.all, *results.loss.all]
    if not validations:
        return RunVerdict("cannot tell", "nothing is held out", "data.val_files=FILE, of other rows")
    text = f"only step {validations[0].step} was validated"
    return RunVerdict("cannot tell", text, "trainer.val_before_train=true, and trainer.test_freq=20")


def _verdict_overfitted(trend: Trend, results: HeldOutResults) -> RunVerdict:
    best = trend.best
    where = f"{best.value:.3g} at step {best.step}"
    is_saved = best.step in results.saved
    checkpoint = f"the best checkpoint is that of step {best.step}" if is_saved else "it is not saved"
    text = f"overfitted since step {best.step}: {trend.text}, and {where}; {checkpoint}"
    return RunVerdict("harmed", text, f"trainer.total_training_steps={best.step}")


def _verdict_uncertain(state: RunState, trend: Trend, facts: EndFacts) -> RunVerdict:
    """The verdict on a change that may be chance."""
    if facts.reasons:
        return _with_reasons(RunVerdict("not learned", trend.text), facts.reasons)
    reason = _reason(state, trend, facts)
    if reason is None:
        text = f"{trend.text} may be chance; {trend.rows_needed} would tell"
        return RunVerdict("cannot tell", text, "more rows in data.val_files")
    return RunVerdict("not learned", f"{trend.text}: {reason[0]}", reason[1])


def _reason(state: RunState, trend: Trend, facts: EndFacts) -> tuple[str, str] | None:
    """(why nothing was learned, what helps); None where something may have been learned."""
    if not trend.is_loss and trend.first.value >= ALL_RIGHT:
        return "nearly all answers were right from the start", "harder data"
    if state.step < FEW_UPDATES:
        return f"{state.step} updates are too few", _more_steps(state)
    moved = _largest_distance(state.moved)
    if moved is not None and moved < STILL:
        return f"the learning rate is too small: the weights moved {100 * moved:.2g} %", facts.faster
    if (cut := state.metrics.get("response_length/clip_ratio", 0.0)) >= 0.5:
        return f"{cut:.0%} of the answers were cut at their longest length", "a larger data.max_response_length"
    if trend.is_wide and (facts.training is None or facts.training[2]):
        return None
    if facts.training is None:
        return "it did not change", facts.faster
    start, end, rose = facts.training
    if rose:
        text = f"the score of its own answers rose from {start:.3g} to {end:.3g}, and does not carry over"
        return text, "training data that is like the held-out rows"
    return f"the score of its own answers did not rise either: {start:.3g}, then {end:.3g}", facts.faster


def _largest_distance(moved: Mapping[str, float]) -> float | None:
    """The largest relative distance; None without any, or where a part (`lora_B`) began at 0."""
    return None if "lora_B" in moved else max(moved.values(), default=None)
