"""The feed numbers steps by a pure function of the log, leaves out what is undone, and goes on where it was."""

from __future__ import annotations

from itertools import islice

import pytest

from launcher.core.events import Alert, Distribution, Ended, Phase, Restarted, Resumed, Sample, Stalled, Step
from launcher.trackers.feed import Feed


def step(number: int, **metrics: float) -> Step:
    return Step(at=float(number), step=number, metrics=metrics or {"a": float(number)})


def sample(number: int) -> Sample:
    return Sample(at=1.0, step=number, data_source="s", prompt="", response="", ground_truth="", score=0.0)


def test_each_step_comes_once_with_what_was_reported_since_the_one_before(folder):
    spread = Distribution(step=2, name="x", edges=(0.0, 1.0), counts=(1,))
    folder.write(
        [step(0), Phase(name="update"), Alert(step=1, text="look", level="warn"), step(1), sample(2), spread, step(2)]
    )
    steps = list(Feed(folder.path / "events.jsonl").new())
    assert [(each.row, each.step, dict(each.metrics)) for each in steps] == [(n, n, {"a": float(n)}) for n in range(3)]
    assert [len(each.alerts) for each in steps] == [0, 1, 0]
    assert len(steps[2].samples) == len(steps[2].distributions) == 1


def test_repeated_steps_have_rows_of_their_own(folder):
    folder.write([step(n) for n in range(6)])
    feed = Feed(folder.path / "events.jsonl")
    assert [each.row for each in feed.new()] == [0, 1, 2, 3, 4, 5]
    folder.write([Restarted(step=2, attempt=2, cause="killed", why=""), *(step(n) for n in range(3, 8))])
    later = list(feed.new())
    assert [(each.row, each.step, each.went_back) for each in later] == [
        (6, 3, 2), (7, 4, None), (8, 5, None), (9, 6, None), (10, 7, None),
    ]  # fmt: skip


def test_steps_that_are_undone_already_are_left_out_and_keep_their_rows(folder):
    folder.write([step(n) for n in range(6)])
    folder.write(
        [Resumed(step=2, attempt=2), *(step(n) for n in range(3, 8)), Resumed(step=0, attempt=3), step(0), step(1)]
    )
    assert [(each.row, each.step) for each in Feed(folder.path / "events.jsonl").new()] == [(11, 0), (12, 1)]


@pytest.mark.parametrize("cut", range(8))
def test_from_any_position_on_it_gives_the_same_steps(folder, cut):
    folder.write([step(n) for n in range(4)])
    folder.write(
        [
            Restarted(step=1, attempt=2, cause="killed", why=""),
            sample(2),
            step(2),
            step(3),
            step(4),
            Ended(how="finished"),
        ]
    )
    log = folder.path / "events.jsonl"
    whole = list(Feed(log).new())
    first = list(islice(Feed(log).new(), cut))
    rest = list(Feed(log, first[-1].after if first else None).new())
    assert [*first, *rest] == whole


def test_alerts_that_must_not_wait_come_before_their_step_is_done(folder):
    folder.write([step(0), Alert(step=0, text="soon", level="warn")])
    feed = Feed(folder.path / "events.jsonl")
    assert [len(each.alerts) for each in feed.new()] == [0]
    folder.write([Alert(step=0, text="now", level="critical"), Stalled(step=0, rank=1, why="rank 1 waits", stack="")])
    assert [[alert.text for alert in each.alerts] for each in feed.new()] == [
        ["soon", "now"],
        ["stalled: rank 1 waits"],
    ]


def test_samples_behind_the_last_step_have_a_row_of_their_own(folder):
    folder.write([step(0), sample(0), Ended(how="stopped")])
    feed = Feed(folder.path / "events.jsonl")
    assert [(each.row, len(each.samples)) for each in feed.new()] == [(0, 0), (1, 1)]
    assert feed.ended and feed.ended.how == "stopped"
    folder.write([Resumed(step=0, attempt=2), step(1)])
    assert [(each.row, each.step) for each in feed.new()] == [(2, 1)]
    assert feed.ended is None


def test_damaged_and_half_written_lines_and_unknown_kinds_are_passed_over(folder):
    folder.write([step(0)])
    with (folder.path / "events.jsonl").open("ab") as log:
        log.write(
            b'{"kind":"Step","step":1,"metrics":{"a":\xff\xff\n{"kind":"FromLater","x":1}\n\n[]\n{"kind":"Step","st'
        )
    feed = Feed(folder.path / "events.jsonl")
    assert [each.step for each in feed.new()] == [0]
    with (folder.path / "events.jsonl").open("ab") as log:
        log.write(b'ep":1,"metrics":{"a":"NaN"}}\n')
    (found,) = feed.new()
    assert found.row == 1 and found.metrics["a"] != found.metrics["a"]
