"""Mistakes of all kinds in one command: each is named, whatever the others are; and many runs planned at once in one
process, each as the command line plans it alone."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice, product
from pathlib import Path

import launches
import names
import pytest
from launch_site import Site, site
from typer.testing import CliRunner

from launcher.cli.main import app
from launcher.preflight.plan import plan
from launcher.spec.stored import to_node

MISTAKES = names.mistakes()
"""The pool of tests/cases, of which `make first-week` draws 200 combinations."""
FIVE = names.combinations(MISTAKES.pool, int(os.environ.get("DRAWN", 6)))
OF_ROWS = [one for one in MISTAKES.pool if "bad.jsonl" in " ".join(one.words)]
(ALL,) = names.combinations([one for one in MISTAKES.pool if one not in OF_ROWS], 1, len(MISTAKES.pool))
"""As many as do not interfere; rows are read only where all that they depend on is right."""


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("site") / "here", MISTAKES.site) as built:
        yield built


@pytest.mark.parametrize("mistakes", [*FIVE, ALL], ids=lambda mistakes: f"{len(mistakes)}-{mistakes[0].words[0]}")
def test_mistakes_are_all_named_and_nothing_else(mistakes: tuple[names.Mistake, ...], where: Site) -> None:
    answer = launches.in_this_process(where, MISTAKES.words(mistakes))
    assert [mistake for mistake in mistakes if not mistake.named(answer)] == []
    others = [output for output in answer.fails if not any(mistake.named(answer_of(output)) for mistake in mistakes)]
    counted = ["data.on_bad_row"] if {*OF_ROWS} & {*mistakes} else []  # how many rows are bad
    assert {output["subject"] for output in others} <= {*counted}


def answer_of(output: launches.Said) -> launches.Answer:
    return launches.Answer((output,), 1)


def test_what_is_fitted_is_no_second_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that nobody gave fits few rows beside a wrong value, too."""
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": f"{number}+1=?", "ground_truth": str(number + 1)} for number in range(16)]
    Path("few.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = plan(["algorithm=grpo", "model=tiny", "data=few.jsonl", "reward=exact", "optim.lr=0"])
    assert [result.subject for result in found.results if result.level == "FAIL"] == ["optim.lr"]


def test_values_below_a_misspelt_choice_are_not_missed() -> None:
    found = plan(["algorithm=grpo", "model=tiny", "data=reverse", "sampler=vlm", "sampler.n=4"])
    assert not [result.line for result in found.results if result.subject == "sampler.n"]


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
