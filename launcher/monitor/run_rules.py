"""Health rules that know a run's settings, and so which argument would help: over the steps so far.

No rule has an absolute band for a quantity whose healthy values differ from model to model. Each compares a run with
its own beginning, in units of its own noise, and most need two signs together. A rule is reported once, when it has
held for a while, and what holds at the end is the run's verdict.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean, median

from launcher.core.events import Level
from launcher.core.metrics import better, mean_of_validations
from launcher.monitor.history import CHANCE, FEW, HOLD, SCORE, Change, History

LOSSES = ("train/loss", "actor/dpo_loss")
NORMS, RATES = ("actor/grad_norm", "train/grad_norm"), ("actor/lr", "train/lr")
KLS = ("actor/kl_loss", "actor/reward_kl_penalty")
LOW_LOSS = 0.05  # nats a token: nearly all is learnt
STILL = 1e-7  # relative distance of weights that did not move
HARDLY = 1e-3  # and of those that a loss need not show
LIKELY = 0.01  # the significance level for a halved held-out score while the reward rises
LOST = 0.1  # share of the best held-out score that is left where it is lost
LONGEST = 50  # looks for which a trend must hold while the run goes on
EVERY_STEP = 200  # after as many steps, only as many more looks as the run has steps in 200 parts


@dataclass(frozen=True)
class Finding:
    """What a rule found, what to do about it, and the settings with which to try again."""

    rule: str
    what: str
    fix: str
    settings: tuple[str, ...] = ()
    ruins: bool = True
    """Whether it says that the run went wrong; otherwise it is only reported."""

    @property
    def text(self) -> str:
        return f"{self.what}; {self.fix}"


def found(rule: str, what: str, *settings: str, more: str = "") -> Finding:
    """With `settings` that would help, and what else would."""
    return Finding(rule, what, " ".join(["use", " ".join(settings), *([more] if more else [])]), settings)


# ---- what was trained on


def not_finite(seen: History) -> Finding | None:
    name = seen.any_of(("train/skipped_nonfinite", "actor/skipped_nonfinite"))
    skipped = seen.lately(name) and seen.series[name][-10:]
    asked = seen.run.data.train_batch_size * seen.run.sampler.n
    unscored = [float(faults >= asked) for faults in seen.series.get("reward/faults", [])[-10:]]  # skipped for that
    share = fmean(skipped) if skipped else 0.0
    if share - (fmean(unscored) if unscored else 0.0) < 0.3 or scores_missing(seen):
        return None
    what = f"{share:.0%} of the last updates were skipped, as numbers were not finite"
    return found("not-finite", what, seen.slower(10))


def scores_missing(seen: History) -> Finding | None:
    missing, asked = seen.lately("reward/faults"), seen.run.data.train_batch_size * seen.run.sampler.n
    fix = "test the reward with rlrun reward bench"
    if missing and (min(missing) >= 0.25 * asked or fmean(seen.lately("reward/faults", 10) or [0.0]) >= 0.25 * asked):
        missing = seen.lately("reward/faults", 10) or missing
        return Finding("scores-missing", f"{fmean(missing):.0f} of {asked} answers of a step had no score", fix)
    shares = [x for name, x in (seen.answers[-1] if seen.answers else {}).items() if "/reward/scored@" in name]
    if not shares or min(shares) > 0.5:
        return None
    return Finding("scores-missing", f"{1 - min(shares):.0%} of the held-out prompts had no score", fix)


def no_groups(seen: History) -> Finding | None:
    kept = seen.lately("train/groups_kept", seen.enough)
    if not kept or max(kept) > 0 or seen.improved:
        return None
    if least := seen.setting("min_group_std"):
        what = f"no group of answers had scores that differ by algorithm.min_group_std={least}"
        return found("no-groups", what, "algorithm.min_group_std=0")
    what = "no group of answers was kept to train on, as the answers to a prompt had equal scores"
    return found("no-groups", what, seen.more_different, more="or easier data")


def no_signal(seen: History) -> Finding | None:
    scores = seen.lately(SCORE, seen.enough)
    if not scores or not _flat(seen) or seen.improved or (seen.solved and not _always_largest(seen)):
        return None
    if seen.solved and not _constant(seen):
        what = f"nearly all answers had the largest score, {seen.most:.4g}, from the start: nothing is left to learn"
        return Finding("solved", what, "use harder data", ruins=False)
    what = f"answers to a prompt had the same score, {fmean(scores):.4g}, so nothing was learnt from them"
    if seen.solved:
        return Finding("no-signal", what, "use harder data, or a reward that tells answers apart")
    score = seen.change(SCORE)
    if score is not None and _halved(seen, score):
        return found("no-signal", f"{what}; at its best the score was {score.best:.3g}", seen.slower(5))
    return found("no-signal", what, seen.more_different, more="with easier data, or a reward that tells answers apart")


def _halved(seen: History, score: Change) -> bool:
    """Whether the score fell to half of its best, counted from the smallest score of an answer, or further."""
    return score.fell_from_best and seen.of_range(score.last) <= seen.of_range(score.best) / 2


def _flat(seen: History) -> bool:
    """Whether the answers of late gave nothing to learn from."""
    maximum, minimum = (seen.lately(f"critic/score/{end}", seen.enough) for end in ("max", "min"))
    if maximum and minimum and max(maximum) == min(minimum):
        return True
    if "critic" in seen.run.algorithm.needs or seen.run.sampler.n < 2:  # answers to different prompts are compared
        return False
    name = "critic/frac_reward_zero_std"
    flat = seen.lately(name, seen.enough)
    return bool(flat) and (fmean(flat) >= 0.98 or (seen.over and fmean(seen.series[name]) >= 0.95))


def _constant(seen: History) -> bool:
    """Whether every answer of the run had the same score: then nothing says that the reward tells answers apart."""
    maximum, minimum = (seen.series.get(f"critic/score/{end}", []) for end in ("max", "min"))
    return bool(maximum and minimum) and max(maximum) == min(minimum)


def _always_largest(seen: History) -> bool:
    """Whether nearly every answer of the run had the largest score, held-out ones too: nothing is left to learn."""
    flat = seen.series.get("critic/frac_reward_zero_std", [])
    compared = "critic" not in seen.run.algorithm.needs and seen.run.sampler.n > 1
    if not _constant(seen) and not (compared and flat and fmean(flat) > 0.99):
        return False
    return all(seen.of_range(each.value) >= 0.999 for each in seen.validations)


def no_tokens(seen: History) -> Finding | None:
    tokens = seen.lately("train/loss_tokens", seen.enough)
    if not tokens or max(tokens) > 0 or seen.run.algorithm.sampled:
        return None
    return Finding("no-tokens", "no token had a loss, so nothing was learnt", "use data with answers to learn")


def no_end(seen: History) -> Finding | None:
    """An answer whose end is not learnt goes on for ever."""
    shares = seen.series.get("train/end_token_share", [])
    if seen.run.algorithm.data != "answers" or not seen.lately("train/end_token_share", seen.enough) or max(shares) > 0:
        return None
    what = "no answer ended with an end-of-sequence token that had a loss, so the model does not learn to stop"
    return Finding("no-end", what, "use a chat template or answers that end with the tokenizer's eos_token")


def no_gradient(seen: History) -> Finding | None:
    norms, learnt = seen.lately(seen.any_of(NORMS), 5), seen.lately("train/gradient_share") or [1.0]
    flat = seen.lately("critic/frac_reward_zero_std") or [0.0]
    if not norms or max(norms) > 1e-9 or fmean(flat) > 0.8 or fmean(learnt) < 0.2:
        return None
    return Finding("no-gradient", "the gradient was 0, so the weights did not move",
                   "use data with answers to learn, or other model.target_modules")  # fmt: skip


def rate_zero(seen: History) -> Finding | None:
    rates = seen.lately(seen.any_of(RATES))
    if not rates or max(rates) > 0:
        return None
    fix = "optim.lr_warmup_steps=0" if seen.run.optim.lr_warmup_steps else "optim.lr_scheduler_type=constant"
    return found("rate-zero", f"the learning rate was 0 for {len(rates)} steps", fix)


def weights_still(seen: History) -> Finding | None:
    late = seen.over or (seen.steps >= max(10, seen.planned / 2) and seen.steps > seen.run.trainer.critic_warmup)
    if not late or not seen.moved or not max(seen.moved.values()) < STILL:  # a warm-up begins with nothing
        return None
    if seen.run.trainer.critic_warmup >= seen.steps:
        return found("weights-still", "only the critic was trained", "trainer.critic_warmup=0")
    if seen.run.model.dtype == "bfloat16":
        what = "the weights did not move: the updates were smaller than bfloat16 can add"
        return found("weights-still", what, "model.dtype=float32")
    return found("weights-still", "the weights did not move", seen.faster)


# ---- where it went


def loss_exploded(seen: History) -> Finding | None:
    values = seen.series.get(seen.any_of(LOSSES), [])
    few = min(HOLD, len(values) // 2)
    if not few or (few < HOLD and not seen.over):
        return None
    first, last = min(values[:few]), min(values[-few:])
    if last <= 10 * first + 1:
        return None
    return found("loss-diverged", f"the loss rose from {first:.4g} to {last:.4g}", seen.slower(10))


def loss_diverged(seen: History) -> Finding | None:
    """It rose, or rose again."""
    values = seen.series.get(seen.any_of(LOSSES), [])
    if len(values) < FEW or not seen.run.data.shuffle or loss_exploded(seen):  # rows in their order may become harder
        return None
    loss, early = Change.of(values), max(len(values) // 5, 3)
    first, last = median(values[:early]), median(values[-min(early, 10) :])
    if loss.rose and last > 1.3 * first + 0.1:
        return found("loss-diverged", f"the loss rose from {first:.4g} to {last:.4g}", seen.slower(10))
    lost = loss.last - loss.least
    least = max(0.5 * (loss.first - loss.least), 0.15 * abs(loss.first), 0.15 * abs(loss.least))
    if len(values) < 4 * FEW or not loss.rose_from_least or lost < least:
        return None
    what = f"the loss rose again, from {loss.least:.4g} to {loss.last:.4g}"
    return found("loss-diverged", what, seen.slower(5))


def held_out_below_start(seen: History) -> Finding | None:
    if len(seen.validations) < 2 or seen.validations[0].step:
        return None
    first, now = seen.validations[0], seen.validations[-1]
    if seen.worse_by(first, now) <= 0:
        return None
    what = f"held-out data is worse than before training: {first.shown} then, {now.shown} at step {now.step}"
    return found("worse-than-before", what, seen.slower(5))


def held_out_below_best(seen: History) -> Finding | None:
    if len(seen.validations) < 2:
        return None
    best, now = seen.best, seen.validations[-1]
    if seen.worse_by(best, now) <= 0:
        return None
    what = f"held-out data is worse than at step {best.step}: {best.shown} then, {now.shown} now"
    return found("past-its-best", what, f"trainer.total_training_steps={max(best.step, 1)}", more="or a smaller rate")


def reward_hacked(seen: History) -> Finding | None:
    """The reward is up, and the mean of the last two validations is significantly worse than the best before them: the
    first of the two may precede the step at which the rise of the reward is significant. Where the held-out score is
    halved, a weaker test is enough: a correct reward rises with the held-out score. Where it is lost, the reward has
    only to stay: a correct one would have fallen with it."""
    score, fell = seen.change(SCORE), seen.validations[-1:] if seen.over else seen.validations[-2:]
    if score is None or len(seen.validations) < 2:
        return None
    now = mean_of_validations(fell)
    halved = len(fell) > 1 and better(now.name) != "down" and now.value <= seen.best.value / 2
    chance, steps = (LIKELY, 1) if halved else (CHANCE, HOLD)
    if any(seen.worse(seen.best, each) <= 0 for each in fell) or seen.worse_by(seen.best, now, chance) <= 0:
        return None
    lost = halved and fell[-1].value <= LOST * seen.best.value
    stayed = lost and seen.worse_by(seen.best, fell[-1]) > 0 and not score.fell and score.last >= score.first
    if not stayed and not seen.rose_for(SCORE, steps):
        return None
    what = f"the reward went from {score.first:.3g} to {score.last:.3g} while the held-out score fell: it is exploited"
    bound = seen.setting("kl_loss_coef") == 0
    more = "and a reward that only right answers get"
    return found("reward-exploited", what, "algorithm.kl_loss_coef=0.04" if bound else seen.slower(5), more=more)


def score_fell(seen: History) -> Finding | None:
    score = seen.change(SCORE)
    if score is None or not seen.run.data.shuffle or seen.held_out_fine:  # rows in their order may become harder
        return None
    if score.fell and score.last <= score.first - 0.2 * abs(score.first):
        what = f"the score of its own answers fell from {score.first:.3g} to {score.last:.3g}"
    elif score.fell_from_best and score.last <= score.best - 0.4 * abs(score.best):
        what = f"the score of its own answers fell from {score.best:.3g}, at its best, to {score.last:.3g}"
    else:
        return None
    return found("score-fell", what, seen.slower(5))


def entropy_collapsed(seen: History) -> Finding | None:
    entropy = seen.change("actor/entropy")
    if entropy is None or seen.rose(SCORE) or seen.solved:
        return None
    if entropy.last > max(0.02, 0.02 * entropy.first) or entropy.last > 0.2 * entropy.first:
        return None
    what = f"the policy's entropy fell from {entropy.first:.3g} to {entropy.last:.3g}, and its score did not rise"
    more = [] if seen.setting("clip_ratio_high") is None else ["algorithm.clip_ratio_high=0.28"]
    return found("entropy-collapsed", what, seen.slower(5), *more)


def entropy_exploded(seen: History) -> Finding | None:
    entropy = seen.change("actor/entropy")
    if entropy is None or seen.rose(SCORE) or seen.solved or entropy.last < max(1.0, 4 * entropy.first):
        return None
    what = f"the policy's entropy rose from {entropy.first:.3g} to {entropy.last:.3g}: its answers become random"
    return found(
        "entropy-exploded", what, "algorithm.entropy_coeff=0" if seen.setting("entropy_coeff") else seen.slower(5)
    )


def answers_cut(seen: History) -> Finding | None:
    cut, scores = seen.lately("response_length/clip_ratio", seen.enough), seen.lately(SCORE)
    if not cut or min(cut) < 0.9 or not scores or seen.of_range(fmean(scores)) >= 0.5 or seen.rose(SCORE):
        return None
    before, best = min(seen.series["response_length/clip_ratio"]), max(seen.series[SCORE])
    if before < 0.5 and seen.of_range(fmean(scores)) <= seen.of_range(best) / 2:
        what = f"{fmean(cut):.0%} of the answers do not end, of which {before:.0%} were cut before, and the score fell"
        return found("answers-cut", f"{what}, from {best:.3g} to {fmean(scores):.3g}", seen.slower(5))
    longest, known, prompt = seen.run.data.max_response_length, seen.run.model.positions, seen.run.max_sequence_length
    what = f"{fmean(cut):.0%} of the answers were cut at data.max_response_length: no end was sampled"
    more = 2 * longest if known is None else min(2 * longest, known - prompt + longest)
    if more <= longest:
        return Finding("answers-cut", what, "use a model that ends its answers")
    return found("answers-cut", what, f"data.max_response_length={more}", more="or a model that ends its answers")


def length_changed(seen: History) -> Finding | None:
    """Answers became nothing, or filled all there is, without a better score."""
    length, cut = seen.change("response_length/mean"), seen.lately("response_length/clip_ratio")
    if length is None or not seen.run.algorithm.sampled or seen.rose(SCORE) or seen.solved or seen.held_out_fine:
        return None
    shrank = length.fell and length.last < 0.2 * length.first
    if not shrank and not (length.rose and length.last > 3 * length.first and cut and min(cut) > 0.5):
        return None
    what = f"answers {'shrank' if shrank else 'grew'} from {length.first:.0f} to {length.last:.0f} tokens"
    return found("length-changed", f"{what}, and their score did not rise", seen.slower(5))


def far_from_reference(seen: History) -> Finding | None:
    values = seen.series.get(seen.any_of(KLS), [])
    if len(values) < FEW:
        return None
    early, late = median(values[: max(len(values) // 5, 3)]), min(values[-HOLD:])
    if late < max(1.0, 10 * abs(early)) or (seen.rose(SCORE) and late < 10):
        return None
    what = f"the KL divergence to the reference rose to {fmean(values[-HOLD:]):.3g} nats a token"
    return found("far-from-reference", what, seen.slower(5))


def critic_diverged(seen: History) -> Finding | None:
    values = seen.series.get("critic/vf_loss", [])
    if len(values) < FEW or seen.rose(SCORE):
        return None
    early, late = median(values[: max(len(values) // 5, 3)]), min(values[-HOLD:])
    if late < max(100 * early, 1.0):
        return None
    what = f"the critic's loss rose from {early:.3g} to {late:.3g}, and the score did not rise"
    return found("critic-diverged", what, f"critic.optim.lr={seen.run.critic.optim.lr / 10:.3g}")


def nothing_learnt(seen: History) -> Finding | None:
    """Once half of the steps are done."""
    if seen.steps < max(10, seen.planned / 2):
        return None
    loss = seen.change(seen.any_of(LOSSES))
    if loss is not None:
        changed, hidden = abs(loss.last - loss.first), _may_be_hidden(seen) * abs(loss.first)
        fell, rose = loss.first - loss.last > loss.error, loss.last - loss.first > 2 * loss.error
        fell = fell and loss.first - loss.last > 0.002 * loss.first
        if fell or rose or changed + 2 * loss.error > hidden or max(loss.first, loss.last) < LOW_LOSS:
            return None
        if _held_out_moved(seen) or _pairs_apart(seen):
            return None
        what = f"the loss did not move beyond its noise: {loss.first:.4g} then, {loss.last:.4g} now"
        return found("nothing-learnt", what, seen.faster)
    count = seen.held_out_rows * (len(seen.answers) - 1)
    if len(seen.answers) < 2 or count < 100 or seen.solved or any(each != seen.answers[0] for each in seen.answers):
        return None
    what = "every validation came out the same: the policy's answers did not change"
    return found("nothing-learnt", what, seen.faster)


def _may_be_hidden(seen: History) -> float:
    """The share of the loss that may have been learnt, hidden by noise, in a run that is said to learn nothing: more
    where it is known that the weights hardly moved, and none where they did; adapters may move and change little."""
    relative = [x for part, x in (seen.moved or {}).items() if part != "lora_B"]  # which begins at 0
    if relative and max(relative) < HARDLY:
        return 0.03
    return 0.0 if relative and not seen.run.model.lora_rank else 0.012


def _pairs_apart(seen: History) -> bool:
    """Whether chosen answers became likelier than rejected ones: a small beta hides that from the loss."""
    accuracy, margin = (seen.change(f"rewards/{name}") for name in ("accuracies", "margins"))
    rose = any(each is not None and each.rose for each in (accuracy, margin))
    beta = seen.setting("beta")
    if not isinstance(beta, float) or margin is None:
        return rose
    return rose and margin.last - margin.first > 0.02 * beta  # nats of the answers' log-probabilities


def _held_out_moved(seen: History) -> bool:
    if len(seen.validations) < 2:
        return False
    first, now = seen.validations[0], seen.validations[-1]
    return abs(now.value - first.value) > 0.005 * abs(first.value)


Rule = Callable[[History], Finding | None]
RULES: tuple[Rule, ...] = (
    not_finite, scores_missing, answers_cut, no_groups, no_signal, no_tokens, rate_zero, no_gradient, weights_still,
    no_end, loss_exploded, loss_diverged, held_out_below_start, reward_hacked, score_fell, critic_diverged,
    far_from_reference, entropy_exploded, entropy_collapsed, length_changed, held_out_below_best, nothing_learnt,
)  # fmt: skip
"""The most telling first."""
FACTS = (
    not_finite, scores_missing, answers_cut, no_groups, no_signal, no_tokens, rate_zero, no_gradient, weights_still,
    no_end, loss_exploded, reward_hacked,
)  # fmt: skip
"""These look at several steps or validations themselves, and need not hold."""
PATIENT = (loss_diverged, score_fell, critic_diverged, far_from_reference, entropy_exploded, entropy_collapsed,
           length_changed, nothing_learnt)  # fmt: skip
"""These speak of what may dip, and rise again."""
OF_VALIDATIONS = (held_out_below_start, held_out_below_best)
NO_GRADIENT = {"no-signal", "no-gradient", "weights-still", "nothing-learnt", "length-changed", "entropy-collapsed"}
COVERED = {
    "worse-than-before": {"past-its-best", "no-signal", "weights-still"},
    "score-fell": {"no-signal"},
    "reward-exploited": {"past-its-best", "worse-than-before"},
    "answers-cut": NO_GRADIENT - {"no-signal"},
    "no-groups": NO_GRADIENT,
    "scores-missing": {*NO_GRADIENT, "not-finite"},
    "not-finite": NO_GRADIENT,
    "no-signal": NO_GRADIENT - {"no-signal"},
    "solved": NO_GRADIENT,
    "no-tokens": NO_GRADIENT,
    "rate-zero": NO_GRADIENT,
    "no-gradient": {"weights-still", "nothing-learnt"},
    "weights-still": {"nothing-learnt"},
    "loss-diverged": {"past-its-best", "worse-than-before"},
}
"""What a finding makes superfluous."""

DOUBTFUL = {
    "worse-than-before",
    "past-its-best",
    "nothing-learnt",
    "solved",
    "no-end",
    "weights-still",
    "rate-zero",
    "no-step",
    "entropy-collapsed",
    "length-changed",
}
"""Findings that a run may live with: warnings; all others are critical."""


def level_of(finding: Finding) -> Level:
    if not finding.ruins:
        return "info"
    return "warn" if finding.rule in DOUBTFUL else "critical"


METRICS = {
    "not-finite": ("actor/skipped_nonfinite", "train/skipped_nonfinite"), "scores-missing": ("reward/faults",),
    "answers-cut": ("response_length/clip_ratio",), "no-groups": ("train/groups_kept",),
    "no-signal": ("critic/frac_reward_zero_std", SCORE), "solved": (SCORE,), "no-tokens": ("train/loss_tokens",),
    "rate-zero": RATES, "no-gradient": NORMS, "no-end": ("train/end_token_share",), "loss-diverged": LOSSES,
    "score-fell": (SCORE,), "reward-exploited": (SCORE,), "critic-diverged": ("critic/vf_loss",),
    "far-from-reference": KLS, "entropy-exploded": ("actor/entropy",), "entropy-collapsed": ("actor/entropy",),
    "length-changed": ("response_length/mean",), "nothing-learnt": (*LOSSES, SCORE),
}  # fmt: skip
"""What each rule looks at, the first that a run has."""
