"""`rlrun compare`: what differs, and whether the held-out scores do, by the items that both runs answered."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.core.events import Event, Restarted, Step
from launcher.reports.comparison import NO_EVIDENCE, compare_runs
from launcher.runs.folder import Folder
from tests.reports.made import begin, pair_steps, scores_of, validated

SPEC = """
algorithm: {{_target_: launcher.algorithms.grpo.GRPO, kl_loss_coef: {kl}}}
optim: {{lr: 1.0e-06}}
trainer: {{experiment_name: {name}}}
"""


NAMES = ("one", "two", "three", "four", "five", "few")


@pytest.fixture
def pair(make_run: Any) -> Any:
    """Makes a run whose answers at `step` have these scores."""

    def make(name: str, scores: list[float], step: int = 10) -> Folder:
        right = round(sum(score for score in scores if math.isfinite(score)))
        events = [*begin(rows=len(scores)), *scores_of(step, scores),
                  validated(step, right, len(scores), **{"critic/score/mean": right / len(scores)})]  # fmt: skip
        return make_run(events, name, SPEC.format(kl=NAMES.index(name) / 10, name=name))  # type: ignore[no-any-return]

    return make


def compare(*folders: Folder) -> Any:
    return compare_runs([str(folder.path) for folder in folders], folders[0].path.parent.parent)


@pytest.mark.slow
def test_two_real_runs(trained: Any, look: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trained.folder)
    ran = look("compare", "one", "two", "--json")
    assert ran.exit_code == 0, ran.stderr
    node = json.loads(ran.stdout)
    assert node["runs"] == {"A": ["rlrun/one", "rlrun/two"]} and node["settings"] == {"seed": {"A": "0; 1"}}
    (test,) = node["tests"]
    assert test["found"]["items"] == 8 and test["steps"] == [12, 12] and test["paired"]
    text = look("compare", "one", "two").stdout
    assert "A2 - A1 at step 12: " in text and "what differs is the noise between runs" in text


def test_what_cannot_be_compared_is_a_problem(make_run: Any, look: Any) -> None:
    make_run([], "one"), make_run([], "two")
    for words, problem in (
        (["one"], "compare: 1 run was given; use two or more"),
        (["one", "runs/p/one"], "a run was given twice"),
        (["one", "three"], "no run of that name"),
    ):
        ran = look("compare", *words)
        assert ran.exit_code == 2 and problem in ran.stderr, ran.stderr


def test_a_difference_on_the_same_items(pair: Any) -> None:
    found = compare(pair("one", [0.0] * 12 + [1.0] * 8), pair("two", [1.0] * 20))
    (test,) = found.tests
    assert (test.found.method, test.found.only_a, test.found.only_b) == ("McNemar exact", 0, 12)
    assert test.differs and not test.significant and test.outcome == ""
    assert test.p_adjusted == pytest.approx(2 / 2**12)
    text = "B - A at step 10: +0.6 (1 and 0.4): the answers of these two runs differ (95 % interval +0."
    assert test.text.startswith(text)
    assert found.remarks == [NO_EVIDENCE] and found.settings == [("algorithm.kl_loss_coef", "0.0", "0.1")]


def test_several_runs_are_adjusted_together(pair: Any) -> None:
    """6 to 0 alone is p = 0.031; of four comparisons it is not enough, 12 to 0 is."""
    base = [0.0] * 14 + [1.0] * 6
    runs = [pair("one", base)]
    for name, more in (("two", 6), ("three", 12), ("four", 1), ("five", 0)):
        runs.append(pair(name, [1.0] * more + base[more:]))
    found = compare(*runs)
    assert [test.differs for test in found.tests] == [False, True, False, False]
    assert "may differ by chance (95 % interval" in found.tests[0].text and found.tests[0].outcome == ""
    assert found.tests[0].found.p == pytest.approx(2 / 2**6)
    assert found.tests[0].p_adjusted == pytest.approx(3 * 2 / 2**6)
    assert "p is adjusted for 4 comparisons" in found.tests[0].text


def test_few_prompts_in_common_are_not_taken_for_all(pair: Any) -> None:
    """4 of 20 prompts have a score in both: the intervals of all are compared, and that is said."""
    found = compare(pair("one", [0.0] * 4 + [math.nan] * 16), pair("two", [1.0] * 20))
    assert not found.tests[0].found.paired and "not paired: from two intervals" in found.tests[0].text
    why = "only 4 held-out prompts have a gsm8k of their own in both logs"
    assert found.remarks == [f"B - A: the test is not paired, as {why}", NO_EVIDENCE]


def test_scores_of_an_earlier_common_step_and_of_two_sources(make_run: Any) -> None:
    """Their last common validation is neither the first nor the last of the longer run."""

    def run(name: str, rights: dict[int, float]) -> Folder:
        events = [*begin(rows=24)]
        for step, right in rights.items():
            events += [*scores_of(step, [right] * 12, "easy"), *scores_of(step, [0.0] * 12, "hard")]
            events.append(validated(step, round(12 * right), 24))
        return make_run(events, name)  # type: ignore[no-any-return]

    runs = run("one", {0: 0.0, 5: 0.0, 10: 1.0}), run("two", {0: 1.0, 5: 1.0})
    tests = compare(*runs).tests
    assert [(test.steps, test.source, test.found.value, test.differs) for test in tests] == [
        ((5, 5), "", 0.5, True), ((5, 5), "easy", 1.0, True), ((5, 5), "hard", 0.0, False),
    ]  # fmt: skip
    assert "A2 - A1 on hard at step 5: +0 (0 and 0): the answers of these two runs may differ" in tests[2].text


def test_scores_of_steps_that_were_undone_do_not_count(make_run: Any) -> None:
    def validation(step: int, right: float) -> list[Event]:
        return [*scores_of(step, [right] * 8), validated(step, round(8 * right), 8)]

    first, again = [*begin(rows=8), *validation(4, 0.0)], validation(8, 1.0)
    undone = [*validation(8, 0.0), Restarted(attempt=2, step=4, why="killed", cause="killed")]
    found = compare(make_run([*first, *again], "one"), make_run([*first, *undone, *again], "two"))
    assert [(test.found.items, test.found.value) for test in found.tests] == [(8, 0.0)]


def test_answers_without_a_score_are_left_out(pair: Any) -> None:
    found = compare(pair("one", [1.0] * 8 + [math.nan] * 2), pair("two", [0.0] * 10))
    assert found.tests[0].found.items == 8 and found.tests[0].differs
    assert "2 prompts lack a score in one of the runs" in found.remarks[0]


def test_the_last_common_step_is_tested_else_the_ends(make_run: Any) -> None:
    steps = {"one": (0, 5, 10, 20), "two": (0, 5, 10, 30), "three": (0, 7)}
    one, two, three = (
        make_run([*begin(), *(validated(n, 10 + n, 100) for n in of)], name) for name, of in steps.items()
    )
    assert [test.steps for test in compare(one, two, three).tests] == [(10, 10), (20, 7)]


def test_losses_have_no_interval_and_are_not_tested(make_run: Any) -> None:
    steps = {loss: Step(at=9.0, step=5, metrics={"val/loss": loss}) for loss in (1.0, 0.5)}
    found = compare(*(make_run([*begin(), step], f"r{loss}") for loss, step in steps.items()))
    assert found.tests[0].p_adjusted is None and "not tested, as no interval is known" in found.tests[0].text
    assert "only 0 held-out prompts have a val loss of their own in both logs" in found.remarks[0]
    assert "the standard deviation of their val loss is 0.35 (2 runs)" in found.remarks[1]
    assert json.loads(json.dumps(found.node))["tests"][0]["significant"] is False


@pytest.mark.parametrize("other", ["nothing", "another metric", "no spec"])
def test_a_run_that_lacks_something(make_run: Any, other: str) -> None:
    one = make_run([*begin(), validated(5, 1, 10)], "one")
    events = {"nothing": [], "another metric": [Step(at=9.0, step=5, metrics={"val/loss": 1.0})]}
    spec = "a: [" if other == "no spec" else "{}"
    two = make_run(events.get(other, [*begin(), validated(5, 1, 10)]), "two", spec)
    found = compare(one, two)
    if other == "no spec":
        assert any("its settings are left out" in note for note in found.notes) and len(found.tests) == 1
    else:
        assert found.tests == [] and "no held-out metric in common" in found.remarks[0]


def test_losses_are_compared_row_by_row_where_they_are_logged(make_run: Any) -> None:
    runs = []
    for name, losses in (("one", [1.0, 2.0] * 10), ("two", [0.9, 1.8] * 10)):
        scores = [replace(event, metric="loss") for event in scores_of(5, losses)]
        runs.append(make_run([*begin(), *scores, Step(at=9.0, step=5, metrics={"val/loss": 1.5})], name))
    (test,) = compare(*runs).tests
    assert (test.found.paired, test.found.items, test.differs) == (True, 20, True)
    assert test.found.value == pytest.approx(-0.15)


def test_training_scores_of_different_kinds_are_named(make_run: Any) -> None:
    scored = [*begin(), Step(at=9.0, step=1, metrics={"critic/score/mean": 0.25})]
    one, two, three = make_run(scored, "one"), make_run(scored, "two"), make_run([*begin(), *pair_steps()], "three")
    for other, expected in ((two, ("score 0.25",)), (three, ("score 0.25; accuracy 0.75",))):
        assert ("training score, last steps", *expected) in compare(one, other).results


def seeds(make_run: Any, kl: float, rights: list[int]) -> list[Folder]:
    """Runs of a setting with these numbers of right answers out of 200, and a seed each."""
    found = []
    for seed, right in enumerate(rights):
        name, events = f"kl-{kl}-{seed}", [*begin(rows=200), validated(9, right, 200)]
        found.append(make_run(events, name, SPEC.format(kl=kl, name=name) + f"seed: {seed}\n"))
    return found


@pytest.mark.parametrize(("rights", "outcome"), [
    ([130, 136, 133], "better"),  # 0.15 more, where seeds differ by 0.015
    ([103, 140, 110], ""),  # as much as seeds differ
    ([70, 74, 72], "worse"),
    ([133], "better"),  # the noise between its seeds is taken to be that of the others
])  # fmt: skip
def test_a_setting_is_judged_over_its_seeds(make_run: Any, rights: list[int], outcome: str) -> None:
    found = compare(*seeds(make_run, 0.0, [100, 103, 106]), *seeds(make_run, 0.1, rights))
    (test,) = found.tests
    assert (test.outcome, test.runs, test.found.method) == (outcome, (3, len(rights)), "t test over runs")
    assert found.label("B") == "algorithm.kl_loss_coef=0.1" and len(found.sides["B"]) == len(rights)
    assert {name: cells for name, *cells in found.results}["held out, last"][0].count(";") == 2


def test_seeds_alone_are_the_noise(make_run: Any) -> None:
    found = compare(*seeds(make_run, 0.0, [60, 100, 140]))
    assert not any(test.significant or test.outcome for test in found.tests) and list(found.sides) == ["A"]
    assert "the standard deviation of their gsm8k is 0.2 (3 runs)" in found.remarks[-1]


def test_a_sweep_is_the_runs_of_its_points(make_run: Any, look: Any, tmp_path: Path) -> None:
    for name, right, lr in (("s-sweep1-a", 5, 1), ("s-sweep1-b", 9, 2)):
        make_run([*begin(), validated(9, right, 10)], name, SPEC.format(kl=lr, name=name))
    sweep = tmp_path / "runs" / "p" / "s-sweep1"
    sweep.mkdir()
    (sweep / "sweep.json").write_text("{}")
    ran = look("compare", "s-sweep1")
    assert ran.exit_code == 0 and "B  algorithm.kl_loss_coef=2: p/s-sweep1-b" in ran.stdout, ran.output
    assert "one run of each setting is no evidence" in ran.stdout
