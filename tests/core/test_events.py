"""The event log: whole lines or none, nothing lost on the way to disk and back, and one state however it is read."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.core.episode_record import CalledTool, EpisodeRecord, EpisodeTurn
from launcher.core.events import (
    Alert,
    Crashed,
    Ended,
    Event,
    HeldOutScores,
    Loaded,
    LoggedEvent,
    LogReader,
    Phase,
    Restarted,
    Resumed,
    Sample,
    Saved,
    Stalled,
    Started,
    Step,
    Usage,
    Waiting,
    WeightsMoved,
    WentOn,
    events_of,
    from_line,
    is_damage,
    scan,
    to_line,
)
from launcher.core.files import NewLines
from launcher.core.metrics import HeldOut
from launcher.core.prompt_scores import held_out_scores, prompt_digest
from launcher.core.state import HISTORY, POINTS, Curve, RunState, after, fold
from launcher.core.verdict import RunVerdict

STARTED = Started(at=10.0, run="p/é", algorithm="GRPO", processes=2)
LOADED = Loaded(at=11.0, rows=60, refused=4, val_rows=8, val_refused=0, steps_per_epoch=7, steps=20)
USAGE = Usage(
    at=16.5, rank=1, host="h", cpu_percent=99.5, memory_bytes=1 << 40, machine_cpu_percent=50.0, machine_memory_bytes=2,
    machine_memory_total_bytes=4, disk_free_bytes=None, gpu_percent=87.0, gpu_memory_bytes=3, gpu_watts=612.5,
)  # fmt: skip
TURN = EpisodeTurn("search", "3 mails", 0.5, -0.25, (CalledTool("search", '{"words": "a"}', 0.25),))
TURNS = Sample(
    at=14.0, step=1, data_source="m", prompt="p", response="r", ground_truth="", score=0.0,
    episodes=(EpisodeRecord("turn-limit", (TURN, EpisodeTurn("so")), ""),),
)  # fmt: skip
LIFE: list[Event] = [
    STARTED,
    Phase(at=10.0, name="loading"),
    LOADED,
    Step(at=12.0, step=0, metrics={"val-core/x/reward/mean@1": 0.25}),
    Phase(at=12.0, name="rollout"),
    Step(at=14.0, step=1, metrics={"critic/score/mean": 0.5, "actor/entropy": math.nan}),
    Sample(at=14.0, step=1, data_source="x", prompt="1+1?", response="it’s\n2", ground_truth="2", score=math.inf),
    TURNS,
    HeldOutScores(at=14.0, step=1, data_source="x", prompts=("0a1b2c3d", "00000000"), scores=(0.5, -math.inf)),
    WeightsMoved(at=15.0, step=1, distance={"mlp": 0.25, "norms": math.inf}),
    Saved(at=15.0, step=1, path="checkpoints/step_000001"),
    Alert(at=16.0, step=1, text="a “thing”\nof two lines"),
    USAGE,
    Step(at=18.0, step=2, metrics={"critic/score/mean": -math.inf, "val/loss": 1e-300}),
    Stalled(at=18.5, step=2, rank=1, why="nothing for 20 s", stack='  File "x", line 1\n'),
    Stalled(at=18.5, step=2, rank=None, why="", stack=""),
    WentOn(at=18.7, step=2, after_s=34.5),
    Crashed(at=19.0, lines=("a", "b"), cause="configuration"),
    Restarted(at=19.5, step=1, attempt=2, cause="killed", why="rank 0: killed by SIGKILL"),
    Ended(at=20.0, how="failed", why="a; b", following=("rerun", "seed=1")),
]


def log(path: Path, events: list[Event]) -> Path:
    path.write_text("".join(to_line(event) + "\n" for event in events), encoding="utf-8")
    return path


def strictly(line: str) -> Any:
    """As a reader that is not Python parses it: NaN is no JSON."""

    def no(constant: str) -> None:
        raise ValueError(constant)

    return json.loads(line, parse_constant=no)


# ---- one event, one line


def test_an_event_comes_back_as_it_was() -> None:
    for event in LIFE:
        line = to_line(event)
        assert "\n" not in line and strictly(line)["kind"] == type(event).__name__
        assert repr(from_line(line)) == repr(event)  # NaN is not even equal to itself
        assert ('"episodes"' in line) == (event is TURNS)  # only where there are any


@given(st.dictionaries(st.text(), st.floats(), max_size=5), st.text(), st.floats(0, 2e9))
def test_any_number_and_any_text_comes_back(metrics: dict[str, float], text: str, at: float) -> None:
    for event in (Step(at=at, step=1, metrics=metrics), Alert(at=at, step=1, text=text)):
        line = to_line(event)
        strictly(line)
        assert repr(from_line(line.encode())) == repr(event)


def test_what_json_or_utf8_has_no_word_for_is_written_as_text() -> None:
    line = to_line(Step(at=0.0, step=1, metrics={"a": math.nan, "b": math.inf, "c": -math.inf, "\udce9": 1.0}))
    assert strictly(line)["metrics"] == {"a": "NaN", "b": "Infinity", "c": "-Infinity", "\\udce9": 1.0}
    assert from_line(to_line(Alert(at=0.0, step=1, text="\ud800"))) == Alert(at=0.0, step=1, text="\\ud800")
    odd, read = EpisodeTurn("half of \ud83d", advantage=math.inf), EpisodeTurn("half of \\ud83d", advantage=math.inf)
    turns = [replace(TURNS, episodes=(EpisodeRecord("", (turn,)),)) for turn in (odd, read)]
    assert from_line(to_line(turns[0])) == turns[1]


def test_a_newer_writer_is_understood_as_far_as_it_goes() -> None:
    assert from_line('{"kind":"Rewarded","at":1.0,"by":"x"}') is None
    assert from_line('{"kind":"Saved","at":1.0,"step":2,"path":"p","bytes":7}') == Saved(at=1.0, step=2, path="p")


# ---- the file


def test_a_line_holds_its_place_and_a_reader_goes_on_after_any(tmp_path: Path) -> None:
    logged = LoggedEvent(7, 2, Saved(at=1.0, step=2, path="p"))
    assert logged.line == '{"seq":7,"attempt":2,"kind":"Saved","at":1.0,"step":2,"path":"p"}'
    lines = [LoggedEvent(place, 1 + place // 2, event).line for place, event in enumerate(LIFE)]
    (tmp_path / "events.jsonl").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    for last in (-1, 0, 7, len(LIFE)):
        assert [logged.line for logged in LogReader(tmp_path / "events.jsonl", last).new()] == lines[last + 1 :]


def test_a_half_written_line_waits(tmp_path: Path) -> None:
    """The file is cut at every byte: what is read then and what is read later is everything once."""
    whole = log(tmp_path / "whole", LIFE[:4]).read_bytes()
    path = tmp_path / "events.jsonl"
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        reader = LogReader(path)
        first = list(reader.new())
        assert len(first) == whole[:cut].count(b"\n")
        path.write_bytes(whole)
        found = first + list(reader.new())
        assert repr([logged.event for logged in found]) == repr(LIFE[:4])
        assert [logged.seq for logged in found] == list(range(4))


def test_a_log_that_is_not_written_yet_has_no_events(tmp_path: Path) -> None:
    assert list(events_of(tmp_path / "none")) == [] == list(LogReader(tmp_path / "none").new())


DAMAGE = [
    b"",  # an empty line
    b"null",
    b'{"kind":["Step"]}',
    b'{"kind":"Step","at":1.0}',  # fields are missing
    b'{"kind":"Step","at":1.0,"step":1,"metrics":{"a":"x"}}',
    b'{"kind":"Step","at":1e300,"step":1,"metrics":{}}',  # no clock shows it
    b'{"kind":"Step","at":1.0,"step":9223372036854775808,"metrics":{}}',
    b'{"kind":"Step","at":1.0,"step":Infinity,"metrics":{}}',
    b'{"kind":"Step","at":1.0,"step":' + b"9" * 5000 + b',"metrics":{}}',
    b"[" * 5000,
    b'{"kind":"Saved","at":NaN,"step":1,"path":"p"}',
    b'{"kind":"Saved","at":1.0,"step":%d,"path":"p"}' % 10**400,  # more than a float holds
    b'{"kind":"Alert","at":1.0,"step":1,"text":"\xff"}',  # no UTF-8
    b'{"kind":"HeldOutScores","at":1.0,"step":1,"data_source":"x","prompts":["a","b"],"scores":[1.0]}',
    b"\0" * 64,  # what a power cut leaves in a file
    b'{"kind":"Saved","at":1.0,"st{"kind":"Saved","at":1.0,"step":1,"path":"p"}',  # two writers
]


def test_damaged_lines_are_told_and_the_others_are_read(tmp_path: Path) -> None:
    first, last = (to_line(event).encode() for event in (STARTED, LOADED))
    lines = [first, *DAMAGE, last]
    (tmp_path / "events.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    places = list(accumulate(len(line) + 1 for line in lines))[: len(DAMAGE)]
    alerts = [Alert(at=0.0, step=0, text=f"events.jsonl: the line at byte {place} is damaged") for place in places]
    assert list(events_of(tmp_path / "events.jsonl")) == [STARTED, *alerts, LOADED]
    assert is_damage(alerts[0]) and not any(map(is_damage, (STARTED, replace(alerts[0], at=1.0), LOADED)))


@pytest.mark.parametrize("ended", [True, False])
def test_a_line_without_end_is_not_kept_in_memory(ended: bool, tmp_path: Path) -> None:
    """What a crash of some file systems leaves: 64 GiB that take no room on the disk."""
    path, line = log(tmp_path / "events.jsonl", [STARTED]), to_line(LOADED).encode() + b"\n"
    first = path.stat().st_size
    os.truncate(path, first + 2**36)
    if ended:
        with path.open("ab") as file:
            file.write(b"\n" + line)
    reader = LogReader(path)
    found = [logged.event for logged in reader.new()]
    damaged = Alert(at=0.0, step=0, text=f"events.jsonl: the line at byte {first} is damaged")
    assert found == ([STARTED, damaged, LOADED] if ended else [STARTED])
    assert not list(reader.new()) and scan(path) == (len(found), False)
    assert sum(1 for _ in NewLines(path).read()) == len(found)


# ---- going back to a checkpoint


def step(number: int) -> Step:
    return Step(at=20.0 + number, step=number, metrics={})


def saved(number: int) -> Saved:
    return Saved(at=0.0, step=number, path="p")


def back(number: int) -> Restarted:
    return Restarted(at=0.0, step=number, attempt=2, cause="killed", why="w")


RESUMED = Resumed(at=0.0, step=2, attempt=2)
WENT_ON = WentOn(at=0.0, step=1, after_s=1.0)
END = Ended(at=0.0, how="stopped")
TRAINED: list[Event] = [STARTED, LOADED, step(0), step(1), step(2), saved(2), step(3), step(4), saved(4), END]
STITCHED: list[tuple[list[Event], list[Event]]] = [
    # what was written, what stands
    ([], []),
    (TRAINED, TRAINED),
    ([*TRAINED, back(4)], [*TRAINED[:8], back(4)]),  # that it is saved is reported again
    ([*TRAINED, back(2)], [*TRAINED[:5], back(2)]),
    ([*TRAINED, RESUMED], [*TRAINED[:5], RESUMED]),  # by hand
    ([*TRAINED, back(0)], [back(0)]),  # also the validation before training
    ([STARTED, step(1), back(2), step(3)], [STARTED, step(1), back(2), step(3)]),  # the log lost its end
    ([STARTED, step(1), step(3), back(2)], [STARTED, step(1), back(2)]),  # and its middle
    ([STARTED, step(1), step(2), Alert(step=2, text="t"), USAGE, WENT_ON, back(2), step(3)],
     [STARTED, step(1), step(2), USAGE, WENT_ON, back(2), step(3)]),  # what became of the processes stands
    ([STARTED, step(1), back(0), STARTED, step(1), step(2), back(1), step(2)],
     [back(0), STARTED, step(1), back(1), step(2)]),
    ([STARTED, step(2), back(2), saved(2), step(3), back(2), saved(2), step(3)],
     [STARTED, step(2), back(2), back(2), saved(2), step(3)]),
    ([STARTED, step(2), step(3), back(2), saved(2), step(3), step(4), back(3), step(4), back(0), STARTED],
     [back(2), back(3), back(0), STARTED]),  # one undoes what an earlier one left
]  # fmt: skip


@pytest.mark.parametrize(("written", "stands"), STITCHED)
def test_what_was_undone_is_left_out_of_every_view(written: list[Event], stands: list[Event], tmp_path: Path) -> None:
    path = log(tmp_path / "events.jsonl", written)
    assert list(events_of(path)) == stands
    for last in range(len(written)):  # at any moment
        shorter = log(tmp_path / f"{last}.jsonl", written[: last + 1])
        assert list(events_of(path, last)) == list(events_of(shorter))


# ---- the state


STEP = Step(at=5.0, step=3, metrics={"train/loss": 2.0, "val/loss": 3.0})
TOLD = [
    (STARTED, {"run": "p/é", "algorithm": "GRPO", "processes": 2, "status": "running", "started_at": 10.0}),
    (LOADED, {"steps": 20}),
    (Waiting(at=9.0, text="1 node", for_s=2.0), {"phase": "waiting", "waits_for": "1 node", "waits_since": 7.0}),
    (Phase(name="saving"), {"phase": "saving", "status": "running"}),
    (STEP, {"step": 3, "score": 2.0, "score_name": "train/loss", "validation": {"val/loss": 3.0}, "validated_step": 3,
            "metrics": STEP.metrics, "marks": ((3, 5.0),), "curve": Curve((2.0,)),
            **dict.fromkeys(("first", "best", "last"), HeldOut(3, "val/loss", 3.0))}),
    (Step(at=5.0, step=3, metrics={"train/loss_tokens": 7.0, "train/gradient_share": math.nan}),
     {"step": 3, "learnt_from": {"train/loss_tokens": (7.0, 1)}, "marks": ((3, 5.0),),
      "metrics": {"train/loss_tokens": 7.0, "train/gradient_share": math.nan}}),
    (WeightsMoved(step=3, distance={"mlp": 0.25}), {"moved": {"mlp": 0.25}}),
    (Saved(step=3, path="p"), {"checkpoint": "p"}),
    (Alert(step=3, text="t"), {"alert": "t", "alert_level": "warn", "alerts": 1, "alerts_by_level": {"warn": 1}}),
    (Crashed(lines=("a", "b"), cause="error"), {"why": "a; b"}),
    (Restarted(step=1, attempt=2, cause="killed", why="w"), {"status": "running", "restarts": 1}),
    (Resumed(step=1, attempt=2), {"status": "running"}),
    (Stalled(at=9.0, step=1, rank=1, why="w", stack="s", for_s=2.0), {"stalled": "w", "waits_since": 7.0}),
    (WentOn(step=1, after_s=3.0), {}),
    (USAGE, {"usage": {1: USAGE}}),
    (Ended(how="stopped", why="w"), {"status": "stopped", "phase": "", "why": "w"}),
    (Ended(how="finished", why="w", following=("logs",)), {"status": "finished", "why": "w", "following": ("logs",)}),
]  # fmt: skip


@pytest.mark.parametrize(("event", "changed"), TOLD, ids=[type(event).__name__ for event, _ in TOLD])
def test_what_an_event_changes(event: Event, changed: dict[str, Any]) -> None:
    assert repr(after(RunState(), event)) == repr(replace(RunState(), last_at=event.at, **changed))


def test_the_whole_life() -> None:
    state = fold(LIFE)
    assert (state.status, state.phase, state.step, state.steps, state.alerts) == ("failed", "", 2, 20, 1)
    assert state.validation == {"val/loss": 1e-300} and state.validated_step == 2  # the latest
    assert state.metrics["critic/score/mean"] == -math.inf
    assert state.checkpoint == "checkpoints/step_000001"
    assert state.why == "a; b"
    assert (state.elapsed_s, state.seconds_per_step, state.eta_s) == (10.0, 3.0, 54.0)  # 6 s for 2 steps, 18 are left


STALLED = [STARTED, USAGE, Stalled(step=1, rank=None, why="nothing for 20 s", stack="")]
AGAIN = Restarted(step=0, attempt=2, cause="killed", why="t")
LOST, LATER = Alert(step=1, text="lost", level="critical"), Alert(step=4, text="lost again", level="critical")
MILD = [Alert(step=2, text="slow", level="warn"), Alert(step=3, text="note", level="info")]
LEARNED = Ended(how="finished", verdict=RunVerdict("learned", "from 0.1 to 0.9"))
SLOW = [Step(at=100.0 * step, step=step, metrics={}) for step in range(10)]
FAST = [Step(at=1000.0 + step, step=10 + step, metrics={}) for step in range(HISTORY)]
FOLDED: dict[str, tuple[list[Event], dict[str, Any]]] = {
    "it is stalled": (STALLED, {"stalled": "nothing for 20 s", "usage": {1: USAGE}}),
    "until something goes on": ([*STALLED, WentOn(step=1, after_s=3.0)], {"stalled": "", "usage": {1: USAGE}}),
    "processes that ended use nothing": ([*STALLED, Ended(how="failed")], {"stalled": "", "usage": {}}),
    "nor do they after a restart": ([*STALLED, AGAIN], {"stalled": "", "usage": {}}),
    "the most serious alert stays": ([*MILD, LOST, *MILD], {"alert": "lost"}),
    "of milder ones, too": (MILD, {"alert": "slow"}),
    "of equals the latest": ([LOST, LATER], {"alert": "lost again"}),
    "until it is started again": ([LOST, AGAIN, *MILD], {"alert": "slow"}),
    "who goes on has no verdict yet": ([LEARNED, Resumed(step=1, attempt=2)], {"verdict": None, "status": "running"}),
    "only the latest steps tell the speed": ([*SLOW, *FAST], {"marks": tuple((each.step, each.at) for each in FAST)}),
}


@pytest.mark.parametrize(("events", "found"), FOLDED.values(), ids=FOLDED)
def test_what_several_events_come_to(events: list[Event], found: dict[str, Any]) -> None:
    state = fold(events)
    assert {name: getattr(state, name) for name in found} == found


@pytest.mark.parametrize(
    ("marks", "steps", "pace", "eta"),
    [
        ((), 4, None, None),
        (((1, 5.0),), 4, None, None),  # one step tells no speed
        (((1, 5.0), (2, 9.0)), 4, 4.0, 8.0),
        (((1, 9.0), (2, 5.0)), 4, None, None),  # a clock that was set back
        (((1, 0.0), (2, 0.0)), 4, None, None),  # a log without times
        (((4, 1.0), (4, 2.0)), 4, 1.0, 2.0),  # the same step once more
        (((1, 1.0), (2, 2.0)), 0, 1.0, None),  # without the number of steps
        (((1, 1.0), (2, 2.0)), 1, 1.0, None),  # with more steps than were planned
    ],
)
def test_speed(marks: Any, steps: int, pace: float | None, eta: float | None) -> None:
    state = RunState(marks=marks, step=2, steps=steps)
    assert (state.seconds_per_step, state.eta_s) == (pace, eta)


@given(st.lists(st.floats(-1e6, 1e6), max_size=500))
def test_a_curve_is_bounded_and_keeps_the_mean(values: list[float]) -> None:
    curve = Curve()
    for value in values:
        curve = curve.then(value)
    assert len(curve.points) < POINTS and len(curve.waiting) < curve.stride
    assert len(curve.points) * curve.stride + len(curve.waiting) == len(values)
    assert sum(curve.points) * curve.stride + sum(curve.waiting) == pytest.approx(sum(values), abs=1e-3)


def test_the_scores_of_held_out_prompts_by_their_source() -> None:
    digest = prompt_digest("1+1", "2")
    assert len(digest) == 8 and digest != prompt_digest("1+1\0", "2") and prompt_digest("\ud800", "")
    scores = [("ab"[number % 2], digest, float(number)) for number in range(5001)]
    found = held_out_scores(3, scores[:5000])
    assert [(each.step, each.data_source) for each in found] == [(3, "a"), (3, "b")]
    assert sum(len(each.scores) for each in found) == 5000 and tuple(found[1].scores[:2]) == (1.0, 3.0)
    assert held_out_scores(3, scores) == [], "not of so many"


def test_a_file_that_is_begun_anew_or_replaced_is_read_from_its_beginning(tmp_path):
    path, other = tmp_path / "a.log", tmp_path / "b.log"
    path.write_text("one\ntwo\nthree\n")
    lines = NewLines(path)
    found = list(lines.read())
    path.write_text("four\n")
    found += lines.read()
    other.write_text("five\nsix\nseven\n")
    other.replace(path)
    assert [*found, *lines.read()] == ["one", "two", "three", "four", "five", "six", "seven"]
