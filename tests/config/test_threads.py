"""Many runs are resolved at once in one process, and each as it is resolved alone."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from itertools import islice, product
from pathlib import Path

import pytest
from typer.testing import CliRunner

from launcher.cli.main import app
from launcher.config.resolve import try_resolve
from launcher.preflight.plan import plan
from launcher.spec.stored import to_node, to_yaml

THREADS, RUNS, DIFFERENT = 16, 200, 20


def asked(config_dir: Path) -> list[tuple[list[str], Path | None]]:
    """Different arguments, right and wrong ones, one with a config group of a person's own."""
    own = config_dir / "algorithm" / "mine.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("_target_: launcher.algorithms.grpo.GRPO\nkl_loss_coef: 0.25\n")
    more = [["optim.lr=3e-5"], ["optim.lrr=1", "learning_rate=2"], ["seed=7", "trainer.save_freq=4"], ["model=tinny"]]
    combined = islice(product(["grpo", "sft", "dpo", "ppo", "gropo"], more), DIFFERENT - 1)
    found = [([f"algorithm={algorithm}", "model=tiny", "data=reverse", *words], None) for algorithm, words in combined]
    return [*found, (["algorithm=mine", "model=tiny", "data=reverse"], config_dir)]


def resolved(words: list[str], config_dir: Path | None) -> tuple[str, list[str]]:
    found = try_resolve(words, config_dir)
    return to_yaml(found.run) if found.run else "", [str(problem) for problem in found.problems]


def test_threads_resolve_what_each_would_alone(tmp_path: Path) -> None:
    every = asked(tmp_path)
    expected = [resolved(*each) for each in every]
    assert len(set(map(str, expected))) == DIFFERENT
    order = [number % DIFFERENT for number in range(RUNS)]
    random.Random(0).shuffle(order)
    with ThreadPoolExecutor(THREADS) as threads:
        found = list(threads.map(lambda number: resolved(*every[number]), order))
    assert found == [expected[number] for number in order]


@pytest.mark.slow
def test_a_plan_of_a_thread_is_the_command_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    some = [words for words, config_dir in asked(tmp_path / "conf") if not config_dir][::3]
    with ThreadPoolExecutor(THREADS) as threads:
        pages = list(threads.map(plan, some))
    for words, page in zip(some, pages, strict=True):
        node = json.loads(CliRunner().invoke(app, ["plan", "--json", *words]).stdout)
        assert node["run"] == (to_node(page.run) if page.run else None)
        lines = [[result.level, result.subject, result.message] for result in page.results if result.subject != "disk"]
        assert lines == [[each["level"], each["subject"], each["message"]] for each in node["results"]
                         if each["subject"] != "disk"]  # fmt: skip
