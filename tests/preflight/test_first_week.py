"""The tables of benchmarks/first_week can be read, are as large as they should be, and are judged as they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import launches
import names
import pytest

FIRST_WEEK = Path(launches.__file__).with_name("first_week")


def output(subject: str, message: str, fix: str, level: str = "FAIL") -> dict[str, str]:
    return {"level": level, "subject": subject, "message": message, "fix": fix}


def test_there_are_enough_launches_and_none_is_of_another_table() -> None:
    failing, well = launches.cases(FIRST_WEEK), launches.healthy(FIRST_WEEK)
    assert len(failing) >= 100 and len(well) >= 60 and sum(case.train for case in well) >= 20
    every = [*failing, *well, *launches.cases(), *launches.healthy()]
    assert len({case.name for case in every}) == len(every)
    assert len({(case.words, str(case.site)) for case in every}) == len(every)


def test_there_are_enough_names() -> None:
    others, misspelt = (names.names(table) for table in ("foreign", "misspelt"))
    assert len({name.key for name in others}) >= 150 and len({name.typed for name in misspelt}) >= 60
    assert all(name.right or name.none for name in [*others, *misspelt])


def test_combinations_are_drawn_purely_and_do_not_interfere() -> None:
    pool = names.mistakes().pool
    drawn = names.combinations(pool, 200, seed=3)
    assert len(pool) >= 60 and len(set(map(frozenset, drawn))) == 200
    assert drawn == names.combinations(pool, 200, seed=3) != names.combinations(pool, 200, seed=4)
    assert {mistake for combined in drawn for mistake in combined} == set(pool)
    for combined in drawn:
        assert len(combined) == 5
        assert not any(names.interfere(one, other) for one in combined for other in combined if one is not other)


def test_a_pool_that_is_too_small_is_said() -> None:
    with pytest.raises(ValueError, match="only 0 combinations"):
        names.combinations(names.mistakes().pool[:3], 1)


@pytest.mark.parametrize(
    ("subject", "message", "fix", "answered"),
    [
        ("max_steps", "no such setting", "use trainer.total_training_steps=100", True),
        ("max_steps", "TRL's name of trainer.total_training_steps", "", True),
        ("max_steps", "no such setting", "did you mean trainer.max_bad_steps?", False),
        (
            "max_steps",
            "no such setting",
            "it has keep_best, keep_last, save_freq, seed, test_freq, trainer.total_training_steps",
            False,
        ),
        ("trainer.max_steps", "no such setting", "use trainer.total_training_steps", False),  # not what was typed
        ("max_steps", "no such setting", "it may be data, model, optim, sampler, trainer.total_training_steps", False),
    ],
)
def test_a_name_is_answered_by_the_right_one_only(subject: str, message: str, fix: str, answered: bool) -> None:
    name = names.Name("max_steps=100", "sft", ("trainer.total_training_steps",))
    assert name.answered(launches.Answer((output(subject, message, fix),), 1)) == answered


@pytest.mark.parametrize(
    ("message", "fix", "answered"),
    [
        ("we have no dropout in adapters", "leave it out", True),
        ("Model has no setting 'lora_dropout'", "did you mean lora_rank?", False),
        ("no group or setting 'lora_dropout'", "it may be data, model, optim, sampler, trainer", False),
    ],
)
def test_what_we_do_not_have_is_said_so(message: str, fix: str, answered: bool) -> None:
    name = names.Name("lora_dropout=0.1", "sft", (), none="dropout")
    assert name.answered(launches.Answer((output("lora_dropout", message, fix),), 1)) == answered


def test_a_name_that_was_taken_for_ours_is_answered() -> None:
    name = names.Name("lr=1e-4", "sft", ("optim.lr",))
    assert name.answered(launches.Answer((), 0, run={"optim": {"lr": 1e-4}}))
    assert not name.answered(launches.Answer((), 0, run={"optim": {"lr": 1e-6}}))


@pytest.mark.parametrize(
    ("run", "fine"),
    [({"data": {"train_files": ["/somewhere/x.jsonl"]}}, True), ({"data": {"train_files": []}}, False), ({}, False)],
)
def test_a_healthy_launch_means_what_it_says(run: dict[str, Any], fine: bool, tmp_path: Path) -> None:
    case = launches.Healthy("a case", "data=x.jsonl", means={"data.train_files": r"~x\.jsonl$"})
    answer = launches.Answer((output("batch", "", "", "OK"),), 0, run=run)
    assert launches.judge_healthy(case, tmp_path / "here", lambda *_: answer).passed == fine


def test_only_what_is_well_is_really_run(tmp_path: Path) -> None:
    case = launches.Healthy("a case", "data=x.jsonl", train=True)
    fine, bad = launches.Answer((output("batch", "", "", "OK"),), 0), launches.Answer((output("batch", "", ""),), 1)
    ended = launches.judge_healthy(case, tmp_path / "one", lambda *_: fine, lambda *_: "train ended with 1")
    refused = launches.judge_healthy(case, tmp_path / "two", lambda *_: bad, lambda *_: "")
    assert ended.trained and not ended.passed and ended.saw == "train ended with 1"
    assert not refused.trained and not refused.passed


def test_a_plan_that_does_not_end_is_killed(tmp_path: Path) -> None:
    with launches.site(tmp_path / "here", {"files": {"model/x": ""}, "pipes": ["model/config.json"]}) as where:
        where.command = lambda *_: ["cat", "model/config.json"]
        answer = launches.in_a_process(where, [], 0.2)
    assert answer.code == 124 and "did not end" in answer.trouble
