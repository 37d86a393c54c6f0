"""A run's log after a kill: it reads as if nothing had broken, whoever reported what, and nothing is thrown away."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import closing

import pytest

from launcher.config.resolve import resolve
from launcher.core.events import (
    MARK,
    PROCESS_EVENTS,
    Alert,
    Ended,
    Event,
    Loaded,
    Restarted,
    Resumed,
    Saved,
    Stalled,
    Started,
    Step,
    WentOn,
    events_of,
    to_line,
)
from launcher.core.state import fold
from launcher.launch.follow import Follower
from launcher.runs.folder import Folder, unheard_events
from launcher.runs.store import RunReader

RUN = resolve(["algorithm=sft", "model=tiny", "data=reverse"])
STARTED = Started(at=1.0, run="p/a", algorithm="SFT", processes=1)
LOADED = Loaded(at=2.0, rows=8, refused=0, val_rows=0, val_refused=0, steps_per_epoch=4, steps=4)
ENDED = Ended(at=90.0, how="stopped", why="w")
AGAIN = Restarted(at=50.0, step=2, attempt=2, cause="killed", why="w")
ALERT = Alert(at=50.0, step=2, text="t")
FINDING = Alert(at=50.0, step=1, text="f", rule="no-progress")
STALLED = Stalled(at=51.0, step=2, rank=None, why="w", stack="")
WENT_ON = WentOn(at=52.0, step=2, after_s=30.0)


def step(number: int) -> Step:
    return Step(at=float(number), step=number, metrics={"train/loss": 1.0})


def saved(number: int) -> Saved:
    return Saved(at=number + 0.5, step=number, path=f"checkpoints/step_{number:06d}")


def text_of(events: Iterable[Event | str]) -> str:
    return "".join((event if isinstance(event, str) else to_line(event)) + "\n" for event in events)


NEWER = '{"kind":"Newer","at":1.0,"x":[1]}'  # of a later version
DAMAGED = '{"kind":"St\ufffd'


def rank_0(*events: Event | str) -> str:
    return "".join(event if isinstance(event, str) else f"{MARK}{to_line(event)}\n" for event in events)


TALK = "INFO torch: hello\n"
REPORTED: list[tuple[str, int, str, list[Event]]] = [
    # events.jsonl, its lines of an earlier attempt, what its rank 0 wrote, what the launcher did not hear
    ("", 0, rank_0(STARTED, LOADED, step(1)), [STARTED, LOADED, step(1)]),  # the launcher was gone
    (text_of([STARTED, step(1)]), 2, rank_0(step(7)), [step(7)]),  # of the attempt before, all was heard
    (text_of([STARTED]), 0, rank_0(STARTED, TALK, LOADED, TALK, step(1)), [LOADED, step(1)]),
    (text_of([STARTED, step(1), ENDED]), 0, rank_0(STARTED, step(1)), []),  # the end is the launcher's
    (text_of([STARTED, step(1), step(2)]), 0, "", []),  # its log was cleaned up
    (text_of([STARTED, step(1), step(2)]), 2, rank_0(step(2), step(3)), [step(3)]),
    (text_of([STARTED, step(1)]) + to_line(step(2))[:9], 2, rank_0(step(2)), [step(2)]),  # cut
    (text_of([STARTED]), 1, rank_0(step(2), f"{MARK}{to_line(step(3))}"), [step(2)]),  # killed within a line
    (text_of([STARTED]), 1, rank_0("score: ", step(2)), [step(2)]),  # a reward printed, and ended no line
    (text_of([STARTED]), 1, rank_0(TALK, "\udcff\0\n", step(2)), [step(2)]),
    (text_of([NEWER, STARTED, DAMAGED]), 3, rank_0(step(2)), [step(2)]),
    (text_of([STARTED]), 1, rank_0(f"{MARK}{NEWER}\n", step(2)), [step(2)]),
    # what the launcher wrote by itself meanwhile
    (text_of([STARTED, STALLED, WENT_ON]), 0, rank_0(STARTED, step(1)), [step(1)]),
    (text_of([STARTED, step(2), AGAIN, ALERT, saved(2), STALLED]), 2, rank_0(saved(2), step(3)), [step(3)]),
    # a damaged line was one event; an alert that was not heard is another
    (text_of([STARTED, step(1)]) + "{\n" + text_of([step(3)]), 0,
     rank_0(STARTED, step(1), step(2), step(3), ALERT), [ALERT]),
    # a health rule's alert is the launcher's own, and none that rank 0 reported
    (text_of([STARTED, step(1), FINDING]), 0, rank_0(STARTED, step(1), ALERT), [ALERT]),
]  # fmt: skip


@pytest.mark.parametrize(("written", "first", "log", "unheard"), REPORTED)
def test_what_the_launcher_did_not_hear_is_found(
    folder: Folder, written: str, first: int, log: str, unheard: list[Event]
) -> None:
    for _ in range(1 + (first > 0)):
        logs = folder.new_attempt()
    lines = enumerate(written.splitlines(keepends=True))
    texts = [line.replace('{"kind"', f'{{"attempt":{1 + (place >= first > 0)},"kind"') for place, line in lines]
    folder.events.write_text("".join(texts))
    (logs / "rank-0.log").write_bytes(log.encode("utf-8", "surrogateescape"))
    assert unheard_events(folder) == unheard


@pytest.mark.parametrize("cut", range(1, 12))
def test_wherever_the_launcher_dies_each_step_stands_once(folder: Folder, cut: int) -> None:
    """Two attempts with a restart between them; the launcher dies after `cut` lines of what it writes, the last of
    them half-written."""
    first: list[Event] = [STARTED, step(1), step(2), saved(2), step(3)]
    second: list[Event] = [saved(2), step(3), step(4), saved(4)]
    logs = folder.new_attempt()
    (logs / "rank-0.log").write_text(rank_0(*first))
    _write(folder, first, cut)
    if cut > 5:
        _write(folder, [AGAIN], 1)
        logs = folder.new_attempt()
        (logs / "rank-0.log").write_text(rank_0(*second))
        _write(folder, [STALLED, *second], cut - 6)
    before = folder.events.read_bytes()
    unheard = unheard_events(folder)
    with closing(Follower(RUN, folder, [], 2)) as follower:
        follower.tell(unheard)
        follower.begin(3)
        follower.tell([Resumed(at=0.0, step=4 if cut > 5 else 2, attempt=3)])
        state = follower.state
    assert folder.events.read_bytes().startswith(before), "it is only ever appended to"
    lines = folder.events.read_text().splitlines()
    assert all(json.loads(line)["seq"] == place for place, line in enumerate(lines) if line.startswith('{"seq"'))
    stands = list(events_of(folder.events))
    assert [event.step for event in stands if isinstance(event, Step)] == ([1, 2, 3, 4] if cut > 5 else [1, 2])
    history = [event for event in stands if isinstance(event, PROCESS_EVENTS)]
    assert history[:-1] == [*([AGAIN] if cut > 5 else []), *([STALLED] if cut > 6 else [])]
    assert state == fold(stands) and state.alerts <= 1, "a half-written line is ended, and counts as damaged"


def _write(folder: Folder, events: list[Event], whole: int) -> None:
    text = text_of(events[:whole]) + "".join(to_line(event)[:9] for event in events[whole : whole + 1])
    with folder.events.open("a") as log:
        log.write(text)


def test_a_reader_that_saw_what_is_undone_later_shows_what_stands(folder: Folder) -> None:
    reader = RunReader(folder.events)
    with closing(Follower(RUN, folder, [], 1)) as follower:
        follower.tell([STARTED, step(1), step(2), Step(step=3, metrics={"val/loss": 9.0, "train/loss": 9.0}), ENDED])
        assert (reader.look().step, reader.look().status, reader.look().score) == (3, "stopped", 9.0)
        follower.begin(2)
        follower.tell([AGAIN])
        state = reader.look()
        assert (state.step, state.status, state.score, state.restarts) == (2, "running", 1.0, 1)
        assert not state.validation and len(state.marks) == 2
        assert state == follower.state
    console = folder.console.read_text().splitlines()
    assert console[-1] == "restart 1: w; attempt 2 went back to step 2"
    assert len([line for line in console if line.startswith("step:")]) == 3, "the console is only appended to, too"
