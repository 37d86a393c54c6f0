"""Mistakes of all kinds in one command: each is named, whatever the others are."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import launches
import names
import pytest
from launch_site import Site, site

from launcher.preflight.plan import plan

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
