"""What rules may know of a run of ours behind `run.`: its settings, how far it is, and its validations.

A validation is called worse than another only beyond what chance does, as a rule looks at many. How far apart two must
be comes from their intervals, or from the bends of the curve of all validations and the noise of the steps' own scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import NormalDist, fmean, median
from typing import Any

from launcher.core.events import Loaded, Step
from launcher.core.metrics import Z95, HeldOut, better, held_out, mean_of_validations, ties_as_half, wilson
from launcher.health.advice import LARGEST_LR, setting
from launcher.health.held_out import best_of
from launcher.health.series import Series, UnknownValue
from launcher.spec.run import RunSpec, usual_lr

FEW = 3  # steps that say more than one
GROUPS = 64  # groups of answers that must agree before a rule speaks of all answers
FIRST_SIGNAL = 16  # steps without a reward after which a run that goes on is called lost: it may find one late
LONG = (50, 4)  # steps, or a part of those so far, for which a trend must hold while the run goes on, at most
SOLVED = 0.9  # of the range of scores that was seen: groups without a spread have nothing left to learn
CHANCE = 0.0005  # probability that a validation is called worse than another by chance
LIKELY = 0.01  # the same for a held-out score that is halved while the reward rises
LOST = 0.1  # share of the best held-out score that is left where it is lost
FEW_ROWS = 10  # held-out rows below which scores say nothing
HARDLY = 1e-3  # relative distance of the weights below which the loss may not show it
HIDDEN, HIDDEN_IF_STILL = 0.012, 0.03  # share by which the loss may have fallen, hidden by its noise
_NOT_FACTS = {"load", "see", "find"}  # public methods that rules cannot name
ACCURACY = "val/rewards/accuracies"


class OwnRun:
    """Facts of a run."""

    series: Mapping[str, Series] = {}
    """The judge's, by the names of conf/health/run/rules.yaml."""

    def __init__(self, run: RunSpec) -> None:
        self.run = run
        self.steps, self.planned, self.val_rows = 0, 0, 0
        self.validations = list[HeldOut]()
        self.moved: Mapping[str, float] = {}
        """How far each part of the weights moved, where that was measured."""
        self._scored_share: float | None = None  # the smallest share of held-out prompts with a score, of a data source
        self._first_metrics: dict[str, float] | None = None  # all metrics of the first validation
        self._same_answers = True
        self._steps_above_start = 0  # steps in a row, up to the one before, at which the score was above its start
        self.names = {*FACTS, *vars(run)}

    def load(self, event: Loaded) -> None:
        self.planned, self.val_rows = event.steps, event.val_rows

    def see(self, event: Step) -> None:
        """Call it before the judge sees the step."""
        self.steps = max(self.steps, event.step)
        self._steps_above_start = self._steps_above_start + 1 if self.series["score"].gained() else 0
        measured = held_out(event.step, ties_as_half(event.metrics))
        if measured is None:
            return
        if measured.name == ACCURACY and self.val_rows:
            low, high = wilson(measured.value, self.val_rows)
            measured = replace(measured, low=low, high=high)
        self.validations.append(measured)
        measured_values = {name: value for name, value in event.metrics.items() if name.startswith("val")}
        self._scored_share = min((x for name, x in measured_values.items() if "/reward/scored@" in name), default=None)
        self._same_answers = self._same_answers and self._first_metrics in (None, measured_values)
        self._first_metrics = self._first_metrics or measured_values

    def find(self, path: str) -> Any:
        """A fact, or a setting. Raises `UnknownValue` where the run's choices do not have it."""
        if path in FACTS:
            return FACTS[path](self)
        value = setting(self.run, path)
        if value is None:
            raise UnknownValue
        return value

    # ---- how far it is

    def over(self) -> bool:
        return 0 < self.planned <= self.steps

    def few(self) -> int:
        """Three steps, or all of a run that ended before."""
        return min(FEW, self.steps) if self.over() else FEW

    def enough(self) -> int:
        """Steps after which all that was sampled says something."""
        enough = max(FEW, -(-GROUPS // self.run.data.train_batch_size))
        return min(enough, self.steps) if self.over() else enough

    def without_signal(self) -> int:
        """Steps after which no signal is taken for none at all."""
        return self.enough() if self.over() else max(FIRST_SIGNAL, self.enough())

    def without_signal_at_end(self) -> int:
        """As `long`, but at the end of the run at once: how far the weights moved is known last."""
        return 1 if self.over() else self.long()

    def long(self) -> int:
        """Steps for which something must hold that may dip and rise again."""
        return FEW if self.over() else max(FEW, min(self.planned // 4, max(LONG[0], self.steps // LONG[1])))

    # ---- what is trained

    def asked(self) -> int:
        """Answers of a step."""
        return self.run.data.train_batch_size * self.run.sampler.n

    def grouped(self) -> bool:
        """Whether answers to one prompt are compared: not by a critic, nor across prompts."""
        return "critic" not in self.run.algorithm.needs and self.run.sampler.n > 1

    # ---- scores

    def scores_lost(self) -> bool:
        """Whether a quarter of the answers or more had no score, at each of the last steps or in the mean of ten."""
        faults = self.series["faults"]
        if not faults.size:
            return False
        of_ten = faults.average(10) if faults.size >= 10 or self.over() else 0.0
        return max(min(faults.lately(FEW)), of_ten) >= 0.25 * self.asked()

    def flat(self) -> bool:
        """Whether the answers of late gave nothing to learn from: all had one score, or, where answers to one prompt
        are compared, those to a prompt had."""
        largest, smallest, zero_std = (self.series[name] for name in ("score_max", "score_min", "zero_std"))
        steps = self.without_signal()
        if min(largest.size, smallest.size) >= steps and max(largest.lately(steps)) == min(smallest.lately(steps)):
            return True
        if not self.grouped() or zero_std.size < steps:
            return False
        return zero_std.mean(steps) >= 0.98 or (self.over() and zero_std.mean_of_all() >= 0.95)

    def _place_in_range(self, score: float) -> float:
        """1 for the largest score of an answer so far, 0 for the smallest, or for 0 where all are positive."""
        smallest = self.series["score_min"]
        largest = self.max_score()
        lowest = min([*([smallest.min] if smallest.size else []), 0.0 if largest > 0 else largest])
        return (score - lowest) / (largest - lowest) if largest > lowest else 0.0

    def max_score(self) -> float:
        """The largest score of an answer so far."""
        return self.series["score_max"].max if self.series["score_max"].size else 1.0

    def score_share(self) -> float:
        """Where in its range the score is now."""
        return self._place_in_range(fmean(self.series["score"].lately(FEW) or [math.nan]))

    def halved(self) -> bool:
        """Whether the score fell to half of its best, counted from the smallest score of an answer, or further."""
        score = self.series["score"].fifths()
        fell = score.top - score.end > 5 * score.end_error  # chance favours the best of several
        return fell and self._place_in_range(score.end) <= self._place_in_range(score.top) / 2

    def solved(self) -> bool:
        """Whether nearly all answers have the largest score, and those to held-out prompts are not much worse."""
        held_out_good = not self.validations or self._place_in_range(self.validations[-1].value) >= 0.5
        return self.score_share() >= SOLVED and held_out_good

    def constant(self) -> bool:
        """Whether every answer of the run had the same score: then nothing says that the reward tells answers apart."""
        largest, smallest = self.series["score_max"], self.series["score_min"]
        return bool(largest.size and smallest.size) and largest.max == smallest.min

    def always_largest(self) -> bool:
        """Whether nearly every answer of the run had the largest score, held-out ones too: nothing is left to learn."""
        flat = self.series["zero_std"]
        if not self.constant() and not (self.grouped() and flat.size and flat.mean_of_all() > 0.99):
            return False
        return all(self._place_in_range(each.value) >= 0.999 for each in self.validations)

    def improved(self) -> bool:
        """Whether the score is higher than at the start: its own answers', or that of held-out data."""
        if self.series["score"].gained():
            return True
        return len(self.validations) > 1 and self._worse_by(self.validations[-1], self.validations[0]) > 0

    # ---- validations

    def scored_share(self) -> float:
        """Share of the held-out prompts that have a score; of several sources the smallest."""
        if self._scored_share is None:
            raise UnknownValue
        return self._scored_share

    def worse_than_start(self) -> bool:
        """Whether the latest validation is worse than that before training."""
        curve = self.validations
        return len(curve) > 1 and not curve[0].step and self._worse_by(curve[0], curve[-1]) > 0

    def worse_than_best(self) -> bool:
        return len(self.validations) > 1 and self._worse_by(best_of(self.validations), self.validations[-1]) > 0

    def held_out_fine(self) -> bool:
        """Whether a validation of late is not worse than any before."""
        curve = self.validations
        return len(curve) > 1 and curve[-1].step >= 0.8 * self.steps and self._worse_by(best_of(curve), curve[-1]) <= 0

    def exploited(self) -> bool:
        """The reward is up, and the mean of the last two validations is significantly worse than the best before them:
        the first of the two may precede the step at which the rise of the reward is significant. Where the held-out
        score is halved, a weaker test is enough: a correct reward rises with the held-out score. Where it is lost, the
        reward has only to stay: a correct one would have fallen with it."""
        latest = self.validations[-1:] if self.over() else self.validations[-2:]
        if len(self.validations) < 2 or self.series["score"].size < 2 * FEW:
            return False
        score, best, now = self.series["score"].fifths(), best_of(self.validations), mean_of_validations(latest)
        halved = len(latest) > 1 and better(now.name) != "down" and now.value <= best.value / 2
        chance, steps = (LIKELY, 1) if halved else (CHANCE, FEW)
        if min(self._worse_by(best, now, chance), *(_decline(best, each) for each in latest)) <= 0:
            return False
        lost = halved and latest[-1].value <= LOST * best.value and self._worse_by(best, latest[-1]) > 0
        rose = self.series["score"].gained() and self._steps_above_start >= steps - 1
        return rose or (lost and not self.series["score"].lost() and score.end >= score.start)

    def same_answers(self) -> bool:
        """Whether several validations, of 100 answers or more, all came out the same."""
        repeats = len(self.validations) - 1
        return repeats > 0 and self.val_rows * repeats >= 100 and self._same_answers

    def held_out_moved(self) -> bool:
        if len(self.validations) < 2:
            return False
        first, now = self.validations[0], self.validations[-1]
        return abs(now.value - first.value) > 0.005 * abs(first.value)

    def _worse_by(self, before: HeldOut, now: HeldOut, chance: float = CHANCE) -> float:
        """How much worse `now` is than `before`, less what chance does with this probability (divided by the number of
        validations, unless one of the two is the first); at most 0 where the difference may be chance."""
        up = better(before.name) != "down"
        if up and 0 < self.val_rows < FEW_ROWS:
            return 0.0
        decline = _decline(before, now)
        comparisons = 1 if self.validations[0] in (before, now) else len(self.validations)
        z = NormalDist().inv_cdf(1 - chance / comparisons)
        if before.low is not None and before.high is not None and now.low is not None and now.high is not None:
            margin = z / Z95 * math.hypot((before.high - before.low) / 2, (now.high - now.low) / 2)
            bound = 0.03 * max(1.0, abs(before.value))  # of shares, and of scores beyond 1
            return decline - max(margin + 1 / (self.val_rows or math.inf), bound)  # shares of few rows are far apart
        # where no interval is known, a change of 14 % of a score or of 4 % of a loss may be that of other rows
        bound = max(0.07, 0.14 * abs(before.value)) if up else max(0.02, 0.04 * abs(before.value))
        return decline - max(z * math.sqrt(2) * self._held_out_error(up), bound)

    def _held_out_error(self, scored: bool) -> float:
        """Standard error of a validation whose interval is unknown: from the bends of the curve of all validations
        and, of scores, from the noise of the steps' own, as if the answers to a prompt were independent."""
        values = [each.value for each in self.validations]
        bends = [abs(a - 2 * b + c) for a, b, c in zip(values, values[1:], values[2:], strict=False)]
        error = median(bends) / 0.6745 / math.sqrt(6) * (1 + 4 / len(values)) if len(bends) > 1 else 0.0
        if not scored or self.series["score"].size < FEW:
            return error
        rows = self.val_rows * self.run.sampler.val_n or self.asked()
        return max(error, self.series["score"].spread_of_one * math.sqrt(self.asked() / rows))

    # ---- weights and pairs

    def hidden(self) -> float:
        """Share by which the loss may have fallen, hidden by noise, in a run that seems to learn nothing: more where
        the weights are known to have hardly moved, and 0 where they moved, unless they are adapters, which may move
        and change little."""
        relative = [x for part, x in self.moved.items() if part != "lora_B"]  # which begins at 0
        if relative and max(relative) < HARDLY:
            return HIDDEN_IF_STILL
        return 0.0 if relative and not self.run.model.lora_rank else HIDDEN

    def pairs_apart(self) -> bool:
        """Whether chosen answers became likelier than rejected ones; with a small beta the loss hides that."""
        accuracy, margin = self.series["accuracy"], self.series["margin"]
        rose, beta = accuracy.gained() or margin.gained(), setting(self.run, "algorithm.beta")
        if not isinstance(beta, float) or margin.size < 2 * FEW:
            return rose
        fifths = margin.fifths()
        return rose and fifths.end - fifths.start > 0.02 * beta  # nats of the answers' log-probabilities

    # ---- arguments that help

    def _smaller_lr(self, factor: float) -> str:
        """Argument for a learning rate smaller by `factor`, at most `LARGEST_LR`; with a weight decay above 1, the
        argument for a usual weight decay instead."""
        if self.run.optim.weight_decay > 1:
            return "optim.weight_decay=0.01"
        return f"optim.lr={min(self.run.optim.lr / factor, LARGEST_LR):.3g}"

    def score_test(self) -> str:
        several = self.run.environment.several_turns
        return "rlrun env check, to test the environment" if several else "rlrun reward bench, to test the reward"

    def lr_by_5(self) -> str:
        return self._smaller_lr(5)

    def faster(self) -> str:
        """The argument for a higher learning rate, or first for whatever else keeps the updates small."""
        run, lr = self.run, self.series["lr"]
        if run.optim.lr_warmup_steps and lr.size and lr.max < 0.5 * run.optim.lr:
            return f"optim.lr_warmup_steps={self.steps // 10}"
        if run.optim.clip_grad < 1e-4:
            return "optim.clip_grad=1"
        if self._restraining_setting:
            return f"{self._restraining_setting[0]}={self._restraining_setting[1]}"
        return f"optim.lr={max(10 * run.optim.lr, usual_lr(run.algorithm, run.model)):.3g}"

    @property
    def _restraining_setting(self) -> tuple[str, str] | None:
        """(setting that holds the policy near the model it began with, a usual value); None where none does."""
        beta, kl = setting(self.run, "algorithm.beta"), setting(self.run, "algorithm.kl_loss_coef")
        if isinstance(beta, float) and beta < 1e-3:
            return "algorithm.beta", "0.1"
        return ("algorithm.kl_loss_coef", "0.04") if isinstance(kl, float) and kl > 1 else None

    def restraint(self) -> str:
        found = self._restraining_setting
        return f"{found[0]}={setting(self.run, found[0]):g}" if found else ""

    def alike(self) -> str:
        return "the answers to a prompt" if self.grouped() and not self.constant() else "all answers"

    def other_answers(self) -> str:
        """What makes the answers to a prompt differ, where several are compared."""
        sampler, data = self.run.sampler, "easier data, or a reward that tells answers apart"
        if not self.grouped():
            return data
        argument = "sampler.temperature=1" if sampler.temperature < 0.3 else f"sampler.n={max(2 * sampler.n, 8)}"
        return f"{argument}, with {data}"

    def rate_above_0(self) -> str:
        return "optim.lr_warmup_steps=0" if self.run.optim.lr_warmup_steps else "optim.lr_scheduler_type=constant"

    def moving_weights(self) -> str:
        if self.run.trainer.critic_warmup >= self.steps:
            return "trainer.critic_warmup=0"
        return "model.dtype=float32" if self.run.model.dtype == "bfloat16" else self.faster()

    def answers_that_end(self) -> str:
        """A smaller learning rate where answers ended before and the score fell with their ends, else more tokens:
        twice as many, or as the model's positions leave."""
        cut, score = self.series["cut"], self.series["score"]
        if cut.min < 0.5 and self.score_share() <= self._place_in_range(score.max) / 2:
            return self.lr_by_5()
        limit, positions = self.run.data.max_response_length, self.run.model.positions
        new_limit = 2 * limit if positions is None else min(2 * limit, positions - self.run.max_sequence_length + limit)
        model = "a model that ends its answers"
        return model if new_limit <= limit else f"data.max_response_length={new_limit}, or {model}"

    def bound_to_reference(self) -> str:
        return "algorithm.kl_loss_coef=0.04" if setting(self.run, "algorithm.kl_loss_coef") == 0 else self.lr_by_5()


def _decline(before: HeldOut, now: HeldOut) -> float:
    """How much worse `now` is, which may be chance."""
    return before.value - now.value if better(before.name) != "down" else now.value - before.value


FACTS: Mapping[str, Callable[[OwnRun], float | str]] = {
    "steps": lambda facts: facts.steps,
    "planned": lambda facts: facts.planned,
    "usual_lr": lambda facts: usual_lr(facts.run.algorithm, facts.run.model),
    "half_done": lambda facts: facts.steps >= max(10, facts.planned / 2),
    "sampled": lambda facts: facts.run.algorithm.sampled,
    "trained_on": lambda facts: facts.run.algorithm.data,
    "first_validation": lambda facts: facts.validations[0].value,
    "best_validation": lambda facts: best_of(facts.validations).value,
    "best_step": lambda facts: max(best_of(facts.validations).step, 1),
    "lr_by_10": lambda facts: facts._smaller_lr(10),
    "held_back": lambda facts: facts._restraining_setting is not None,
    "less_random": lambda facts: (
        "algorithm.entropy_coeff=0" if setting(facts.run, "algorithm.entropy_coeff") else facts.lr_by_5()
    ),
    **{name: method for name, method in vars(OwnRun).items() if not name.startswith("_") and name not in _NOT_FACTS},
}
"""What may stand behind `run.` beside the run's settings; some are arguments for a rule's `fix`."""
