"""The e-mail agent through the real command line: its files, lines and names are those of document 003."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.core.events import HeldOutEpisodes, TrainingGroup
from launcher.core.rubric import evaluation_of
from tests.launch.conftest import events

pytestmark = pytest.mark.slow

WORDS = [
    "algorithm=grpo", "model=tiny-email", "data=email_search", "data.n_mails=30", "data.n_prompts=16", "data.n_val=8",
    "data.train_batch_size=4", "environment=email_search", "environment.system_prompt=", "environment.max_turns=2",
    "data.max_response_length=64", "sampler.n=2", "trainer.total_training_steps=2", "trainer.test_freq=1",
    "trainer.keep_eval_logs=2", "trainer.project_name=p", "trainer.experiment_name=agent", "engine.num_threads=1",
]  # fmt: skip


@pytest.mark.parametrize("verbose", ["true", pytest.param("", marks=pytest.mark.long)])
def test_an_agent_is_evaluated_and_shown(tmp_path: Path, verbose: str) -> None:
    env = {**os.environ, "RLRUN_DATA": str(tmp_path / "data"), "VERBOSE": verbose}
    command = [sys.executable, "-m", "launcher"]
    ran = subprocess.run(
        [*command, "train", *WORDS], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    run = tmp_path / "runs" / "p" / "agent"
    assert sorted(path.name for path in (run / "eval_logs").iterdir()) == ["eval_step_0001.json", "eval_step_0002.json"]
    steps = events(run, HeldOutEpisodes)
    assert [event.step for event in steps] == [0, 1, 2]
    first = [reward for reward in steps[0].rewards if reward == reward]
    found = evaluation_of(steps[2], sum(first) / len(first))
    assert found and (run / "eval_logs" / "eval_step_0002.json").read_text() == found.json
    assert found.total_samples == 8
    assert "Eval stats saved to: runs/p/agent/eval_logs/eval_step_0002.json" in ran.stdout
    lines = ran.stdout.splitlines()
    assert ("📊 Group Summary:" in lines) == ("📊 Turn-by-Turn Advantage Table:" in lines) == bool(verbose)
    assert ("📊 Collecting 2 rollouts for 4 queries..." in lines) == (not verbose)
    assert all(group.episodes for group in events(run, TrainingGroup))
    asked = [*command, "samples", "agent", "--evaluations"]
    shown = subprocess.run(asked, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    assert [line[:14] for line in shown.stdout.splitlines()] == [f"Step    {step}: Acc" for step in (0, 1, 2)]
    shown = subprocess.run([*asked, "--json"], cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    assert [node["total_samples"] for node in json.loads(shown.stdout)] == [8, 8, 8]
