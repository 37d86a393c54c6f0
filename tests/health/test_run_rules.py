"""Rules that know a run's settings: what each finds in curves.yaml, and that healthy runs are left alone."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from curves import series_of

from launcher.config.resolve import resolve
from launcher.core.events import Alert, Loaded, Step, WeightsMoved
from launcher.core.metrics import wilson
from launcher.health.advice import leading_arguments
from launcher.health.run_judge import RunJudge
from launcher.spec.run import RunSpec

CURVES = yaml.safe_load((Path(__file__).parent / "curves.yaml").read_text(encoding="utf-8"))
SFT = resolve(["algorithm=sft", "model=tiny", "data=reverse", "optim.lr=1e-5"])
GRPO = resolve(["algorithm=grpo", "model=tiny", "data=reverse", "sampler.n=8", "optim.lr=1e-5"])
RUNS = {
    "sft": SFT,
    "sft ordered": replace(SFT, data=replace(SFT.data, shuffle=False)),
    "dpo": resolve(["algorithm=dpo", "model=tiny", "data=reverse"]),
    "dpo small": resolve(["algorithm=dpo", "model=tiny", "data=reverse", "algorithm.beta=0.01"]),
    "grpo": GRPO,
    "grpo ordered": replace(GRPO, data=replace(GRPO.data, shuffle=False)),
    "ppo": resolve(["algorithm=ppo", "model=tiny", "data=reverse"]),
    "dapo": resolve(["algorithm=dapo", "model=tiny", "data=reverse", "sampler.n=8", "algorithm.min_group_std=0.9"]),
}
NAMES = {
    "loss": "train/loss", "dpo_loss": "actor/dpo_loss", "sft_norm": "train/grad_norm", "sft_lr": "train/lr",
    "loss_tokens": "train/loss_tokens", "end_share": "train/end_token_share", "score": "critic/score/mean",
    "flat": "critic/frac_reward_zero_std", "high": "critic/score/max", "low": "critic/score/min",
    "groups_kept": "train/groups_kept", "faults": "reward/faults", "cut": "response_length/clip_ratio",
    "length": "response_length/mean", "kl": "actor/kl_loss", "entropy": "actor/entropy", "vf_loss": "critic/vf_loss",
    "accuracy": "rewards/accuracies", "margin": "rewards/margins", "norm": "actor/grad_norm", "lr": "actor/lr",
    "skipped": "actor/skipped_nonfinite",
}  # fmt: skip
OF_SCORES = {"flat": 0.2, "high": 1.0, "low": 0.0, "cut": 0.0, "entropy": 0.5, "norm": 0.3, "lr": 1e-5, "skipped": 0.0}
VAL, ROWS = "val-core/reverse/reward/mean@1", 400


def steps_of(case: Mapping[str, Any], seed: int) -> list[dict[str, float]]:
    """Step 0 with its validation, and the steps of a case."""
    chance, curves = random.Random(seed), {name: case[name] for name in NAMES if name in case}
    curves = {**OF_SCORES, **curves} if "score" in curves else {"sft_norm": 1.0, **curves}
    steps = max(sum(int(part[0]) for part in curve) for curve in curves.values() if isinstance(curve, list))
    curves = {name: curve if isinstance(curve, list) else [[steps, curve]] for name, curve in curves.items()}
    spread = case.get("spread", {})
    series = {n: [v + chance.gauss(0, spread.get(n, 0.0)) for v in series_of(c)] for n, c in curves.items()}
    found = [{}, *({NAMES[name]: values[at] for name, values in series.items()} for at in range(steps))]
    for step, value in case.get("held_out", {}).items():
        low, high = wilson(value, ROWS)
        stem = VAL.replace("val-core", "val-aux")
        found[step] |= {
            VAL: value,
            stem.replace("mean", "wilson95_low"): low,
            stem.replace("mean", "wilson95_high"): high,
        }
        found[step] |= {stem.replace("mean", "scored"): case["scored"]} if "scored" in case else {}
    for step, value in case.get("val_loss", {}).items():
        found[step] |= {"val/loss": value}
    return found


def judged(run: RunSpec, steps: Sequence[Mapping[str, float]], moved: float | None) -> tuple[list[Alert], list[Alert]]:
    """The alerts while it ran, and the verdict at its end."""
    judge, alerts = RunJudge(run), list[Alert]()
    judge.hear(Loaded(rows=8, refused=0, val_rows=ROWS, val_refused=0, steps_per_epoch=1, steps=len(steps) - 1))
    for number, metrics in enumerate(steps):
        alerts += judge.hear(Step(step=number, metrics=metrics))
    if moved is not None:
        alerts += judge.hear(WeightsMoved(step=len(steps) - 1, distance={"attention": moved, "mlp": moved}))
    return alerts, judge.standing()


@pytest.mark.parametrize("name", CURVES["ruined"])
def test_what_ruins_a_run_is_named_while_it_runs_and_at_its_end(name: str) -> None:
    case = CURVES["ruined"][name]
    alerts, verdict = judged(RUNS[case["run"]], steps_of(case, 0), case.get("moved"))
    assert {each.rule for each in verdict} & {*case["found"]}
    named = [each for each in alerts if each.rule in case["found"]]
    assert named and named[0].step <= case.get("first", 10**9)
    assert len({each.text.partition(";")[0] for each in alerts}) == len(alerts)
    for each in verdict:  # whatever is advised may be typed
        assert each.fix and all(re.fullmatch(r"[a-z_.]+=[a-z0-9.+-]+", word) for word in leading_arguments(each.fix))


@pytest.mark.parametrize("name", CURVES["healthy"])
def test_a_healthy_run_is_left_alone(name: str) -> None:
    case = CURVES["healthy"][name]
    assert judged(RUNS[case["run"]], steps_of(case, 0), 0.01) == ([], [])


@pytest.mark.parametrize(
    ("words", "name", "fix"),
    [
        (["algorithm=sft", "optim.lr=1e-3", "optim.weight_decay=50"], "loss at once", "optim.weight_decay=0.01"),
        (["algorithm=sft", "optim.lr=2"], "loss at once", "optim.lr=0.001"),
        (["algorithm=sft", "optim.lr=1e-5"], "loss at once", "optim.lr=1e-06"),
        (["algorithm=sft", "optim.lr=1e-9"], "flat loss", "optim.lr=0.002"),  # what a plan calls usual for model=tiny
        (["algorithm=sft", "optim.lr=1e-9", "model.lora_rank=4"], "flat loss", "optim.lr=0.005"),
        (["algorithm=sft", "optim.clip_grad=1e-9"], "flat loss", "optim.clip_grad=1"),
        (["algorithm=dpo", "algorithm.beta=1e-6"], "flat pairs", "algorithm.beta=0.1"),
        (["algorithm=grpo", "sampler.n=8", "sampler.temperature=0.01"], "no signal", "sampler.temperature=1"),
        (["algorithm=grpo", "sampler.n=8"], "no signal", "sampler.n=16"),
        (["algorithm=grpo", "sampler.n=8"], "answers cut and all wrong", "data.max_response_length=24"),
        (["algorithm=grpo", "algorithm.entropy_coeff=1"], "entropy exploded", "algorithm.entropy_coeff=0"),
        (["algorithm=sft", "model.dtype=bfloat16"], "weights still", "model.dtype=float32"),
    ],
)
def test_the_argument_is_the_one_that_caused_it(words: list[str], name: str, fix: str) -> None:
    case, run = CURVES["ruined"][name], resolve([*words, "model=tiny", "data=reverse"])
    assert leading_arguments(judged(run, steps_of(case, 0), case.get("moved"))[1][0].fix) == (fix,)


def test_a_run_of_no_steps_says_so() -> None:
    assert [each.rule for each in judged(SFT, [{}], None)[1]] == ["no-step"]


def test_what_is_solved_from_the_start_is_said_and_ruins_nothing() -> None:
    case = {"score": [[60, 1.0, 1.0]], "low": [[1, 0.0, 0.0], [59, 1.0, 1.0]], "flat": [[1, 0.9, 0.9], [59, 1.0, 1.0]]}
    alerts, verdict = judged(GRPO, steps_of({**case, "held_out": {0: 1.0, 60: 1.0}}, 0), 1e-5)
    assert [each.rule for each in alerts] == ["solved"] and not verdict


def test_what_was_logged_before_is_not_said_again() -> None:
    steps = steps_of(CURVES["ruined"]["no signal"], 0)
    events = [Step(step=number, metrics=metrics) for number, metrics in enumerate(steps)]
    alerts = RunJudge(GRPO).replay(events)
    assert alerts and RunJudge(GRPO).replay([*events, *alerts]) == []


def test_a_fix_of_the_profile_suits_the_run() -> None:
    """Settings that the run does not have, and values that it has, are left out of it."""
    hot = replace(GRPO, trainer=replace(GRPO.trainer, ppo_epochs=2))

    def fixes(run: RunSpec) -> list[str]:
        judge = RunJudge(run)
        return [a.fix for n in range(1, 13) for a in judge.hear(Step(step=n, metrics={"actor/pg_clipfrac": 0.8}))]

    assert fixes(GRPO) == ["a larger trainer.ppo_mini_batch_size"]
    assert fixes(hot) == ["trainer.ppo_epochs=1, or a larger trainer.ppo_mini_batch_size"]
