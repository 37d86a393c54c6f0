"""One run in the forms of many programs (`same_run.py`): each value is read at its step, and the findings are equal."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.core.events import Step
from launcher.core.metric_aliases import canonical
from launcher.views.findings import find_problems
from launcher.views.read import LogOrRun, find
from tests.logs.same_run import FORMS, collapse, rollouts

RUN = collapse()
OURS = {
    "reward": "critic/score/mean", "kl": "actor/kl_loss", "entropy": "actor/entropy", "length": "response_length/mean",
}  # fmt: skip
GENERAL = {"actor/loss": "loss", "actor/pg_loss": "loss", "actor/grad_norm": "grad_norm", "actor/lr": "lr"}


def log_of(text: str | bytes, folder: Path) -> LogOrRun:
    path = folder / "a.log"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return find(str(path), folder)


def values(source: LogOrRun, first: int) -> Iterator[tuple[int, str, float]]:
    """What is read of the run's metrics, by its names: those of single precision are as near as that is."""
    names = {ours: name for name, ours in OURS.items()} | GENERAL
    names |= {ours.replace("actor/", "train/"): name for ours, name in GENERAL.items()}
    for event in source.events():
        if isinstance(event, Step):
            for metric, value in event.metrics.items():
                if name := names.get(canonical(metric)):
                    yield event.step - first, name, single(value)


def single(value: float) -> float:
    found: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return found


@pytest.mark.parametrize("form", FORMS)
def test_a_run_is_the_same_in_every_form(form: str, tmp_path: Path) -> None:
    source, first = log_of(FORMS[form](RUN), tmp_path), 0 if form == "slime" else 1
    wanted = {(i, name, single(value)) for i, step in enumerate(RUN) for name, value in step.items()}
    found = Counter(values(source, first))
    assert found.keys() == wanted and set(found.values()) == {1}
    alerts = [(alert.rule, alert.level, alert.step - first) for alert in find_problems(source, None).alerts]
    assert alerts == [("reward-collapsed", "critical", 12), ("entropy-exploded", "critical", 13)]


@pytest.mark.parametrize("per", [1, 3])
def test_what_is_numbered_by_the_rollout_is_of_its_steps(per: int, tmp_path: Path) -> None:
    source = log_of(rollouts(per)(RUN), tmp_path)
    found = [(event.step, name) for event in source.events() if isinstance(event, Step) for name in event.metrics]
    assert [step for step, name in found if name == "train/loss"] == list(range(24))
    assert [step for step, name in found if name == "rollout/raw_reward"] == list(range(0, 24, per))
    assert [step for step, name in found if name == "perf/rollout_time"] == list(range(per - 1, 24, per))


def test_an_evaluation_is_one_with_a_name_that_lacks_its_prefix(tmp_path: Path) -> None:
    step = "{'loss': 0.5, 'grad_norm': 0.1, 'reward': 4.0, 'completions/mean_length': %d.5, 'epoch': 0.1}\n"
    evaluation = "{'eval_loss': 3.4e-08, 'eval_runtime': 62.4, 'completions/mean_length': 40.1, 'eval_reward': 3.1}\n"
    source = log_of(step % 77 + step % 78 + evaluation + step % 79, tmp_path)
    found = [(event.step, dict(event.metrics)) for event in source.events() if isinstance(event, Step)]
    assert [number for number, _ in found] == [1, 2, 2, 3]
    assert found[2][1] == {
        "eval_loss": 3.4e-08, "eval_runtime": 62.4, "eval_completions/mean_length": 40.1, "eval_reward": 3.1,
    }  # fmt: skip


@pytest.mark.parametrize(("value", "found"), [("0.0", []), ("nan", [("warn", "step-not-finite")])])
def test_a_step_that_every_rank_prints_counts_once(value: str, found: list[tuple[str, str]], tmp_path: Path) -> None:
    text = f"step 1 | loss: 0.5 | grad_norm: 0.0 | reward: {value} | reward_std: 0.0\n" * 8
    assert [(alert.level, alert.rule) for alert in find_problems(log_of(text, tmp_path), None).alerts] == found


NAMES = {
    "optim/entropy": "actor/entropy", "optim/kl_sample_train_v1": "rollout_corr/kl",
    "Val. Reward": "val-core/eval/reward/mean@1",
    "completions / mean_length": "response_length/mean", "Average sequence length": "response_length/mean",
    "eval_Accuracy": "val-core/eval/reward/mean@1", "ppo_actor/update/clip_ratio/avg": "actor/pg_clipfrac",
    "train loss": "train/loss", "train_mean_nll": "train/loss", "gpt_loss": "train/loss", "test/nll": "val/loss",
    "train/reward_std_dev": "critic/score/std", "train/kl_div": "actor/kl_loss", "chosen_reward": "rewards/chosen",
    "train_step_timing in s": "timing_s/step", "perf/step_time": "timing_s/step", "time/total": "timing_s/step",
    "train_loss": "train_loss",  # that of a whole training, in logs of transformers
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_words_of_other_programs(name: str) -> None:
    assert canonical(name) == NAMES[name]


MISMATCH: dict[str, tuple[float, float, list[str]]] = {
    "sampler-mismatch": (0.45, 0.0008, [
        "rollout_corr/k3_kl", "mismatch/mismatch_k3_kl", "mismatch/mismatch_kl", "rollout_correction/k3_kl",
        "gen_kl_error", "train/gen_kl_error", "Generation KL Error", "mismatch_kl/all/mean",
    ]),
    "log-probabilities-unrelated": (0.45, 0.0008, [
        "policy/rollout_train_logprobs_abs_diff_mean", "train/train_rollout_logprob_abs_diff",
        "sampling/sampling_logp_difference/mean",
    ]),
    "probabilities-unlike": (1.6, 1.01, ["train/token_mult_prob_error", "token_mult_prob_error"]),
    "sampler-drifts": (0.04, 1.0, ["sampling_importance_ratio", "mismatch/rollout_is_mean"]),
}  # fmt: skip
"""The rule, a value that is wrong, one that is right, and the names of the metric."""


@pytest.mark.parametrize(("rule", "name"), [(rule, name) for rule, (*_, names) in MISMATCH.items() for name in names])
def test_a_mismatch_is_critical_in_the_words_of_every_program(rule: str, name: str, tmp_path: Path) -> None:
    wrong, right, _ = MISMATCH[rule]
    for value, found in ((wrong, [("critical", rule)]), (right, [])):
        text = "".join(
            f"{{'step': {i}, 'reward': {0.4 + i % 2 / 50}, 'loss': 0.01, '{name}': {value}}}\n" for i in range(1, 31)
        )
        alerts = find_problems(log_of(text, tmp_path), None).alerts
        assert [(alert.level, alert.rule) for alert in alerts] == found
