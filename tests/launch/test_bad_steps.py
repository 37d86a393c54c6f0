"""A reward that gives no number: the run says so step by step, changes nothing, and ends with 2."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from launcher.core.checkpoints import sha256
from launcher.core.events import Alert, Crashed, Ended, Step, events_of

REWARD = """
from launcher.rewards.exact import Exact
from launcher.core.settings import settings

@settings
class Breaks(Exact):
    after: int = 0
    times = 0

    def score(self, answers):
        type(self).times += len(answers) > 1  # a plan tries answers one at a time
        found = super().score(answers)
        return [float("nan")] * len(found) if type(self).times > self.after else found
"""


@pytest.fixture(scope="module")
def rlrun(tmp_path_factory: pytest.TempPathFactory, commands: Any) -> Any:
    folder = tmp_path_factory.mktemp("home")
    (folder / "conf" / "reward").mkdir(parents=True)
    (folder / "conf" / "breaks.py").write_text(REWARD)
    (folder / "conf" / "reward" / "breaks.yaml").write_text("_target_: breaks.Breaks\n")
    return commands(folder)


@pytest.mark.slow
@pytest.mark.long  # the loop in tests/engines/torch/test_guard.py, the exit code in test_supervise.py
def test_it_ends_with_two_and_a_line(rlrun: Any, small: list[str]) -> None:
    words = ["algorithm=grpo", *small, "reward=breaks", "reward.after=2", "sampler.n=4",
             "trainer.total_training_steps=9", "trainer.max_bad_steps=3", "trainer.save_freq=1",
             "trainer.val_before_train=false", "trainer.keep_last=9"]  # fmt: skip
    ran = rlrun("train", *words, "--config-dir", "conf", "trainer.experiment_name=bad")
    line = "step 5: no group of answers could be scored, 3 steps in a row; use a reward that gives numbers"
    assert ran.returncode == 2 and f"✗ {line}" in ran.stderr.splitlines()
    assert re.search(r"^✗ reverse:train:\d+: gave nan; expected a finite number; 32 of 32 answers", ran.stderr, re.M)
    run: Path = rlrun.run("bad")
    told = [e for e in events_of(run / "events.jsonl") if isinstance(e, Step | Alert | Crashed | Ended)]
    assert [(type(event).__name__, getattr(event, "step", None)) for event in told] == [
        ("Step", 1), ("Step", 2),
        *[(kind, step) for step in (3, 4, 5) for kind in ("Alert", "Alert", "Step")],
        ("Alert", 5), ("Crashed", None), ("Ended", None),
    ]  # fmt: skip
    assert told[-3].text == "32 of 32 answers of a step had no score; use rlrun reward bench, to test the reward"
    files = {name: [sha256(run / "checkpoints" / f"step_{step:06d}" / name) for step in (1, 2, 3, 4)]
             for name in ("policy/model.safetensors", "state/optimizer.safetensors")}  # fmt: skip
    for first, second, third, fourth in files.values():
        assert second == third == fourth  # bit for bit
        assert first != second
