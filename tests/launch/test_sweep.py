"""A sweep before it runs: its points' names, its problems, its record, and what has room side by side."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from launcher.config.grammar import Point
from launcher.config.resolve import resolve
from launcher.core.events import Ended, to_line
from launcher.core.problems import Problems
from launcher.launch import queue
from launcher.launch import sweep as points
from launcher.launch.queue import Needs, Queue, QueuedRun, needs

WORDS = ["algorithm=sft", "model=tiny", "data=reverse"]


pytestmark = pytest.mark.usefixtures("here")


def names(*differs: dict[str, str]) -> list[str]:
    return points.names_of([Point((), each) for each in differs])


def test_a_point_is_named_by_what_differs_and_names_are_short_safe_and_all_different() -> None:
    for differs, name in (
        ({"optim.lr": "1e-06", "seed": "0"}, "lr_1e-06-seed_0"),
        ({"algorithm": "grpo", "sampler.n": "8"}, "grpo-n_8"),  # a choice says what it is
        ({"optim.lr": "1e+16"}, "lr_1e16"),  # 1e-16 would be another number
        ({"model.path": "Qwen/Qwen3-0.6B"}, "path_Qwen-Qwen3-0.6B"),
        ({"data.instruction": "'../../x; rm'"}, "instruction_x-rm"),
        ({}, "only"),
    ):
        assert names(differs) == [name]
    long = [{f"data.key{key}": f"{'v' * 40}{value}" for key in range(6)} for value in range(3)]
    alike = [{"a.b": "x/y"}, {"a.b": "x:y"}, {"a.b": "X_y"}]  # one folder where case does not count
    for found in (names(*long), names(*alike)):
        assert len({name.lower() for name in found}) == 3
        assert all(re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,59}", name) for name in found), found


def test_problems_go_by_the_words_that_make_them() -> None:
    planned = points.plan([*WORDS, "optim.lr=1e-3,fast", "seed=0,1,x", "sampler.m=1"], None)
    assert len(planned) == 6 and all(each.problems for each in planned)
    found = [str(problem) for problem in points.problems(planned)]
    assert [line for line in found if "'fast'" in line] == ["optim.lr=fast: optim.lr: got 'fast'; use a number"]
    assert [line for line in found if "'x'" in line] == ["seed=x: seed: got 'x'; use a whole number"]
    (common,) = [line for line in found if "sampler.m" in line]
    assert common.startswith("sampler.m: ")  # of all points: no point is named
    with pytest.raises(Problems):
        points.begin([], None, planned, None)
    assert not Path("runs").exists()
    planned = points.plan([*WORDS, "data.train_batch_size=8,9", "hardware.nproc_per_node=1,2"], None)
    assert [bool(each.problems) for each in planned] == [False, False, False, True]
    combination = "data.train_batch_size=9 hardware.nproc_per_node=2: data.train_batch_size: 9 rows do not"
    assert str(points.problems(planned)[0]).startswith(combination), "what fails for one combination only"


def test_equal_surroundings_are_judged_once() -> None:
    judged = []
    points.plan([*WORDS, "optim.lr=1e-3,1e-4", "seed=0,1,2"], None, check=lambda run: judged.append(run) or [])
    assert len(judged) == 1
    points.plan([*WORDS, "data.train_batch_size=4,8"], None, check=lambda run: judged.append(run) or [])
    assert len(judged) == 3


def begun(*words: str) -> points.Sweep:
    every = [*WORDS, *words]
    return points.begin(every, None, points.plan(every, None, check=lambda _: []), None)


def test_the_record_is_read_back_and_each_sweep_has_a_number_of_its_own(here: Path) -> None:
    made = begun("seed=0,1")
    assert made.path == here / "runs/rlrun/sft-llama-64x2-sweep1" and points.read(made.path) == made
    assert begun("seed=0,1").path.name[-6:] == "sweep2"
    (made.path.parent / "sft-llama-64x2-sweep3-seed_0").mkdir()  # somebody's copy of a run
    assert begun("seed=0,1").path.name[-6:] == "sweep4"
    for sweep, name in (
        (made, "sft-llama-64x2-sweep1"),
        (begun("trainer.experiment_name=mine", "seed=0,1"), "mine-sweep1"),
        (begun("model.hidden_size=16,32", "seed=0,1"), "sweep-sweep1"),  # labels differ
        (begun(f"trainer.experiment_name={'n' * 128}", "seed=0,1"), f"{'n' * 50}-sweep1"),
    ):
        assert sweep.path.name == name
        for entry in sweep.points:  # the name is given once, and fit for a folder
            run = resolve(entry.words)
            assert run.trainer.experiment_name == entry.run == f"{name}-{entry.name}"
            assert run.seed == int(entry.differs["seed"])


def seen(made: points.Sweep) -> list[tuple[str, str]]:
    """What another process sees of the points."""
    return [(view.entry.status, view.entry.why) for view in points.views(points.read(made.path))]


def test_points_of_a_sweep_that_was_killed_are_as_their_runs_say() -> None:
    made = begun("seed=0,1,2")
    for entry in made.points[:2]:
        entry.status = "running"
    made.write()
    run = made.run_of(made.points[0])
    run.path.mkdir()
    run.spec.touch()
    run.events.write_text(to_line(Ended(how="stopped", why="w")) + "\n")
    assert seen(made) == [("stopped", "w"), ("waiting", ""), ("waiting", "")]


class Process:
    """Has ended with the code, and printed the lines, that `ends` has for its point; with None it goes on."""

    ends: ClassVar[dict[str, tuple[int | None, list[str]]]] = {}

    def __init__(self, words: object, log: Path, *_: object, **__: object) -> None:
        self.code, self.printed = self.ends[log.stem]

    def poll(self) -> int | None:
        return self.code

    def lines(self, *, last: bool) -> list[str]:
        return self.printed


def test_how_points_end_that_never_began_is_kept_until_they_are_queued_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "RunProcess", Process)
    made, during = begun("seed=0,1"), list[list[tuple[str, str]]]()
    gone = ("failed", "data: is gone")
    Process.ends = {"seed_0": (1, ["✗ data: is gone", "next: x"]), "seed_1": (143, [])}
    assert points.drive(replace(made, parallel=1), lambda *_: during.append(seen(made))) == 1
    assert [gone, ("waiting", "")] in during and seen(made) == [gone, ("stopped", "")]
    assert points.read(made.path).parallel == 1
    during.clear()
    Process.ends = {"seed_0": (-9, []), "seed_1": (2, [])}
    points.drive(points.read(made.path), lambda *_: during.append(seen(made)))
    assert not any(gone in each for each in during) and during[0][1] == ("waiting", "")
    log = made.log_of(made.points[0])
    assert seen(made)[0] == ("failed", f"killed by SIGKILL; its log is {log}"), "no problem of the drive before"


def rewrite(made: points.Sweep, change: Callable[[Any], None]) -> None:
    node = json.loads((made.path / points.FILE).read_text())
    change(node)
    (made.path / points.FILE).write_text(json.dumps(node))


def test_a_record_of_an_earlier_version_is_read() -> None:
    made, old = begun("seed=0,1"), {"needs": {"cores": 0, "gpus": 0}, "exit_code": 143, "why": "x"}
    rewrite(made, lambda node: [point.update(old) for point in node["points"]])
    rewrite(made, lambda node: (node["points"][0].update(status="stopped"), node["points"][1].pop("status")))
    assert seen(made) == [("stopped", "x"), ("waiting", "x")]


@pytest.mark.parametrize(
    "change",
    [
        lambda node: node.update(points=5),
        lambda node: node.update(points=[{"name": "a"}]),
        lambda node: node["points"][0].update(run="../../elsewhere"),
        lambda node: node["points"][0].update(status="../../elsewhere"),
    ],
)
def test_a_record_that_was_changed_is_refused(change: Callable[[Any], None]) -> None:
    rewrite(made := begun("seed=0,1"), change)
    with pytest.raises(Problems, match=r"sweep.json: cannot be read"):
        points.read(made.path)


# ---- room


Placed = Callable[..., tuple[Queue, list[object]]]


@pytest.fixture
def placed(monkeypatch: pytest.MonkeyPatch) -> Placed:
    """The queue, and the GPUs of each run that finds a place, False for each that does not; they go on until `ends`
    says otherwise."""
    monkeypatch.setattr(queue, "RunProcess", Process)
    Process.ends = {"a": (None, [])}

    def place(parallel: int | None, *wanted: Needs) -> tuple[Queue, list[object]]:
        waiting = Queue(parallel)
        waiting.cores, waiting.gpus = 2, ("a", "b")
        waiting.runs = [QueuedRun((), Path("a"), None, each) for each in wanted]
        waiting.advance()
        return waiting, [run.gpus if run.process else False for run in waiting.runs]

    return place


@pytest.mark.parametrize(
    ("parallel", "wanted", "expected"),
    [
        (None, [Needs(1)] * 3, [None, None, False]),  # two cores
        (None, [Needs()] * 2, [None, False]),  # does not say how many threads: all
        (None, [Needs(9)] * 2, [None, False]),  # more than there is: alone, as it would run by hand
        (3, [Needs(9)] * 4, [None, None, None, False]),  # the user says how many, whatever they need
        (1, [Needs(1)] * 2, [None, False]),
        (3, [Needs(1, exclusive=True), Needs(1)], [None, False]),  # the second would wait for the same nodes
        (3, [Needs(1), Needs(1, exclusive=True)], [None, False]),
        (8, [Needs(1, 1)] * 3, [("a",), ("b",), False]),  # no GPU is shared, however many runs are asked for
        (8, [Needs(1, 2), Needs(1, 1), Needs(1)], [("a", "b"), False, None]),
        (8, [Needs(1, 3), Needs(1, 1), Needs(1)], [None, False, None]),  # more GPUs than are here
    ],
)
def test_who_finds_a_place(parallel: int | None, wanted: list[Needs], expected: list[object], placed: Placed) -> None:
    assert placed(parallel, *wanted)[1] == expected


def test_a_place_that_is_given_back_is_taken_again(placed: Placed) -> None:
    waiting, found = placed(None, Needs(1, 2), Needs(1, 1))
    assert found == [("a", "b"), False]
    first, second = waiting.runs
    assert first.process
    first.process.code = 0
    assert waiting.advance() == [first] and waiting.advance() == [second] and second.gpus == ("a",)


def test_what_a_run_needs() -> None:
    assert needs(resolve([*WORDS, "engine.num_threads=2", "hardware.nproc_per_node=2"])) == Needs(4)
    assert needs(resolve(WORDS)) == Needs()
    two = [*WORDS, "engine.num_threads=1", "hardware.nnodes=2"]
    assert needs(resolve([*two, "cluster=ray"])) == Needs(1, exclusive=True)
    assert needs(resolve([*two, "cluster=slurm"])) == Needs(1), "Slurm has a queue of its own"
    assert needs(resolve([*WORDS, "hardware=h100x8", "data.train_batch_size=8"])) == Needs(8, 8)
