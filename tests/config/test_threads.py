"""Many runs are planned at once in one process, each as the command line plans it alone."""

from __future__ import annotations

import json
import os
import random
from concurrent.futures import ThreadPoolExecutor
from itertools import islice, product
from pathlib import Path

import pytest
from typer.testing import CliRunner

from launcher.cli.main import app
from launcher.preflight.plan import plan
from launcher.spec.stored import to_node

THREADS, DIFFERENT, PLANS = 16, 10, int(os.environ.get("PLANS", "32"))


def asked(config_dir: Path) -> list[tuple[list[str], Path | None]]:
    """Different arguments, right and wrong ones, one with a config group of a person's own."""
    own = config_dir / "algorithm" / "mine.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("_target_: launcher.algorithms.grpo.GRPO\nkl_loss_coef: 0.25\n")
    more = [["optim.lr=3e-5"], ["optim.lrr=1", "learning_rate=2"], ["seed=7", "trainer.save_freq=4"], ["model=tinny"]]
    combined = islice(product(["grpo", "sft", "gropo"], more), DIFFERENT - 1)
    found = [([f"algorithm={algorithm}", "model=tiny", "data=reverse", *words], None) for algorithm, words in combined]
    return [*found, (["algorithm=mine", "model=tiny", "data=reverse"], config_dir)]


@pytest.mark.slow
def test_plans_of_threads_are_those_of_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    every = asked(tmp_path / "conf")
    own = [["--config-dir", str(config_dir)] if config_dir else [] for _, config_dir in every]
    nodes = [
        json.loads(CliRunner().invoke(app, ["plan", "--json", *option, *words]).stdout)
        for option, (words, _) in zip(own, every, strict=True)
    ]
    assert len({str(node["run"]) for node in nodes}) == 6  # five that can run, and none for the others
    order = [number % DIFFERENT for number in range(PLANS)]
    random.Random(0).shuffle(order)
    with ThreadPoolExecutor(THREADS) as threads:
        pages = list(threads.map(lambda number: plan(*every[number]), order))
    for number, page in zip(order, pages, strict=True):
        node = nodes[number]
        assert node["run"] == (to_node(page.run) if page.run else None)
        # the free disk changes while tests write
        results = [(each.level, each.subject, each.message) for each in page.results if each.subject != "disk"]
        assert results == [(each["level"], each["subject"], each["message"]) for each in node["results"]
                           if each["subject"] != "disk"]  # fmt: skip
