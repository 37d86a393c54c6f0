"""Lines about agents: the table of a group's turns, the summary of a step, and the statistics of an evaluation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from launcher.core.events import HeldOutEpisodes, Step, TrainingGroup
from launcher.core.rubric import Evaluation, evaluation_of

RULE = "─" * 80
EARLY = "train/num_early_exit"


def turn_table(advantages: Sequence[Sequence[float]]) -> list[str]:
    """The advantage of each turn of the policy: a row for each rollout of a group, a column for each turn; cells are
    empty where a rollout has fewer turns, or a turn has no advantage (NaN)."""
    most = max(map(len, advantages), default=0)
    head = "".join(f"| Turn {turn:2} " for turn in range(1, most + 1))
    rows = []
    for number, row in enumerate(advantages, start=1):
        padded = [*row, *[math.nan] * (most - len(row))]
        cells = "".join(f"| {'' if math.isnan(x) else format(x, '+.3f'):6} " for x in padded)
        rows.append(f"{number:5}  {cells}|")
    return [RULE, "📊 Turn-by-Turn Advantage Table:", RULE, f"Rollout {head}|", RULE, *rows, RULE]


def episode_lines(event: TrainingGroup | HeldOutEpisodes, first_reward: float | None, *, verbose: bool) -> list[str]:
    """The statistics of an evaluation; if `verbose`, the rollouts of a group and the table of their turns."""
    if isinstance(event, HeldOutEpisodes):
        evaluation = evaluation_of(event, first_reward)
        return rubric_lines(evaluation) if evaluation else []
    if not verbose or not event.episodes:
        return []
    rollouts = zip(event.scores, event.episodes, strict=True)
    details = [
        f"    {number}  reward {score:+.3f}, {episode.outcome}, {len(episode.turns)} turns"
        for number, (score, episode) in enumerate(rollouts, start=1)
    ]
    nan = math.nan
    advantages = [[nan if (x := turn.advantage) is None else x for turn in episode.turns] for episode in event.episodes]
    return [f"Group {event.group} of step {event.step}: {event.prompt}", *details, *turn_table(advantages)]


def rubric_lines(found: Evaluation) -> list[str]:
    n = found.total_samples

    def share(count: int) -> str:
        return f"{count}/{n} ({count / n:.1%})"

    counts = f"total: {found.total_searches}, unique: {found.total_unique_searches}"
    return [
        "📊 Detailed Rubric Statistics:",
        f"   Attempted answers: {share(found.attempted_answer)}",
        f"   Found correct email: {share(found.found_correct_email)}",
        f"   Read correct email: {share(found.read_correct_email)}",
        f"   Repeated searches: {found.total_repeated_searches} ({counts})",
        f"   Avg turns (correct): {_mean_turns(found.avg_turns_correct)} turns",
        f"   Avg turns (I don't know): {_mean_turns(found.avg_turns_idk)} turns (count: {found.num_idk})",
        f"   Avg search attempts: {found.avg_search_attempts:.2f}",
        "   ",
    ]


def _mean_turns(turns: float | None) -> str:
    return "-" if turns is None else f"{turns:.2f}"


def saved_line(path: str) -> str:
    return f"💾 Eval stats saved to: {path}"


def trend_line(found: Evaluation) -> str:
    """`Step   10: Acc= 85.0%, Found=87/100, Read=82/100, Repeats=15`"""
    n = found.total_samples
    shares = f"Found={found.found_correct_email}/{n}, Read={found.read_correct_email}/{n}"
    return f"Step {found.step:4d}: Acc={found.accuracy * 100:5.1f}%, {shares}, Repeats={found.total_repeated_searches}"


# ---- a step


def step_lines(event: Step, steps: int, *, verbose: bool) -> list[str]:
    """The lines of a step with an environment; empty for other steps."""
    if EARLY not in event.metrics or "agent/episodes" not in event.metrics:
        return []
    return detailed_lines(event.metrics) if verbose else short_lines(event, steps)


def short_lines(event: Step, steps: int) -> list[str]:
    rollouts, kept, filtered, groups = _group_counts(event.metrics)
    return [
        f"📊 Step {event.step}/{steps}",
        f"📊 Collecting {rollouts // max(groups, 1)} rollouts for {groups} queries...",
        f"  Groups: {kept}/{groups} kept ({filtered} filtered), {_early_share(event.metrics)} finished early",
    ]


def detailed_lines(metrics: Mapping[str, float]) -> list[str]:
    _, kept, filtered, groups = _group_counts(metrics)
    tokens, learnt = _count(metrics, "perf/total_num_tokens"), _count(metrics, "train/loss_tokens")
    rollout_s = sum(metrics.get(f"timing_s/{name}", 0.0) for name in ("gen", "reward"))
    return [
        RULE, "STEP PHASE 4: BACKPROPAGATION & OPTIMIZATION", RULE,
        f"✓ Grad norm (clipped): {metrics.get('actor/grad_norm', 0.0):.4f}",
        f"✓ Tokens trained: {learnt:,}",
        f"✓ Total loss: {metrics.get('actor/loss', 0.0):.4f}",
        "",
        "📊 Group Summary:",
        f"  - Total groups: {groups}",
        f"  - Groups kept for training: {kept}",
        f"  - Groups filtered (low variance): {filtered}",
        f"  - Rollouts that finished early (didn't exhaust turns): {_early_share(metrics)}",
        f"  - Total rollout time: {rollout_s:.1f}s",
        f"  - Total training time: {metrics.get('timing_s/update_actor', 0.0):.1f}s",
        f"  - Total tokens: {tokens:,}",
        f"  - Trainable tokens: {learnt:,} ({learnt / max(tokens, 1):.1%})",
        RULE,
    ]  # fmt: skip


def _group_counts(metrics: Mapping[str, float]) -> tuple[int, int, int, int]:
    """(rollouts, groups kept, groups filtered, all groups); a group with only faults is neither kept nor filtered."""
    names = ("agent/episodes", "train/groups_kept", "train/groups_filtered", "agent/prompts")
    rollouts, kept, filtered, prompts = (_count(metrics, name) for name in names)
    return rollouts, kept, filtered, max(kept + filtered, prompts)


def _early_share(metrics: Mapping[str, float]) -> str:
    return f"{_count(metrics, EARLY)}/{_count(metrics, 'agent/episodes')}"


def _count(metrics: Mapping[str, float], name: str) -> int:
    return round(metrics.get(name, 0.0))
