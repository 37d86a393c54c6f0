"""A run's log after a kill: it reads as if nothing had broken, whoever told what, and nothing is thrown away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from launcher.core.events import (
    MARK,
    Alert,
    Ended,
    Event,
    Loaded,
    Restarted,
    Saved,
    Stalled,
    Started,
    Step,
    WentOn,
    to_line,
)
from launcher.engines.torch import Torch
from launcher.runs.folder import Folder, heard_of, rewind, told_by

STARTED = Started(at=1.0, run="p/a", algorithm="SFT", processes=1)
LOADED = Loaded(at=2.0, rows=8, refused=0, val_rows=0, val_refused=0, steps_per_epoch=4, steps=4)
ENDED = Ended(at=90.0, how="stopped", why="w")
AGAIN = Restarted(at=50.0, step=2, attempt=2, cause="killed", why="w")
STALLED = Stalled(at=51.0, step=2, rank=None, why="w", stack="")
WENT_ON = WentOn(at=52.0, step=2, after_s=30.0)


def step(number: int) -> Step:
    return Step(at=float(number), step=number, metrics={"train/loss": 1.0})


def saved(number: int) -> Saved:
    return Saved(at=number + 0.5, step=number, path=f"checkpoints/step_{number:06d}")


def lines_of(events: Iterable[Event | str]) -> list[str]:
    return [event if isinstance(event, str) else to_line(event) for event in events]


def text_of(events: Iterable[Event | str]) -> str:
    return "".join(line + "\n" for line in lines_of(events))


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    path = tmp_path / "runs" / "p" / "a"
    path.mkdir(parents=True)
    return Folder(path)


# ---- back to a checkpoint

NEWER = '{"kind":"Newer","at":1.0,"x":[1]}'  # of a later version
DAMAGED = '{"kind":"St\ufffd'
LIFE: list[Event | str] = [STARTED, LOADED, step(0), step(1), step(2), saved(2), step(3), step(4), saved(4), ENDED]
BACK: list[tuple[list[Event | str], str | None, int]] = [
    # what was told, checkpoint, how much of it stays
    (LIFE, "step_000004", 8),  # that it is saved is told again
    (LIFE, "step_000002", 5),
    (LIFE, None, 0),
    (LIFE[:3], None, 0),  # killed before the first checkpoint
    ([], None, 0),
    ([STARTED, LOADED, step(0), step(1)], "step_000002", 4),  # the log lost its end
    ([STARTED, step(1), step(3), saved(3)], "step_000002", 2),  # and its middle
    ([*LIFE[:6], Alert(at=7.0, step=2, text="t"), step(3)], "step_000002", 5),
    ([STARTED, NEWER, step(1), DAMAGED, step(2), NEWER, step(3)], "step_000002", 5),  # what cannot be read stays too
]


@pytest.mark.parametrize(("told", "checkpoint", "stay"), BACK)
def test_the_log_goes_back_to_the_checkpoint_and_nothing_is_thrown_away(
    folder: Folder, told: list[Event | str], checkpoint: str | None, stay: int
) -> None:
    logs = folder.new_attempt()
    folder.console.write_text("step:99 - of an attempt that was undone\n")
    rewind(folder, lines_of(told), folder.checkpoints / checkpoint if checkpoint else None)
    assert folder.events.read_text() == text_of(told[:stay])
    undone = logs / "undone.jsonl"
    assert (undone.read_text() if undone.exists() else "") == text_of(told[stay:])
    steps = [event.step for event in told[:stay] if isinstance(event, Step)]
    shown = [line for line in folder.console.read_text().splitlines() if line.startswith("step:")]
    assert shown == [f"step:{number} - train/loss:1.0" for number in steps]  # each once, for who greps


RESTARTS: list[tuple[list[Event | str], str | None, list[Event | str]]] = [
    # what was told, checkpoint, what stays
    ([STARTED, step(1), AGAIN, STARTED, step(1)], None, [AGAIN]),  # from the beginning once more
    ([STARTED, step(2), saved(2), step(3), AGAIN], "step_000002", [STARTED, step(2), AGAIN]),
    ([STARTED, step(2), AGAIN, saved(2), step(3)], "step_000002", [STARTED, step(2), AGAIN]),  # the way back, again
    ([STARTED, step(2), AGAIN, saved(2), step(3), STALLED, WENT_ON, step(4), ENDED], "step_000003",
     [STARTED, step(2), AGAIN, saved(2), step(3), STALLED, WENT_ON]),
    ([STARTED, step(2), AGAIN, step(3), step(4)], "step_000004", [STARTED, step(2), AGAIN, step(3), step(4)]),
]  # fmt: skip


@pytest.mark.parametrize(("told", "checkpoint", "stay"), RESTARTS)
def test_what_became_of_the_processes_stays(
    folder: Folder, told: list[Event | str], checkpoint: str | None, stay: list[Event | str]
) -> None:
    logs = folder.new_attempt()
    rewind(folder, lines_of(told), folder.checkpoints / checkpoint if checkpoint else None)
    assert folder.events.read_text() == text_of(stay)
    undone = (logs / "undone.jsonl").read_text().splitlines() if (logs / "undone.jsonl").exists() else []
    assert Counter(lines_of(told)) == Counter(lines_of(stay)) + Counter(undone), "nothing is thrown away"


def test_a_run_without_an_attempt_has_nothing_to_set_aside(folder: Folder) -> None:
    rewind(folder, [], None)
    assert folder.events.read_text() == "" and not (folder.path / "logs").exists()


def rank_0(*events: Event | str) -> str:
    return "".join(event if isinstance(event, str) else f"{MARK}{to_line(event)}\n" for event in events)


TALK = "INFO torch: hello\n"
TOLD: list[tuple[str, int | None, str | None, list[Event | str]]] = [
    # events.jsonl, its lines when the last attempt began, what its rank 0 said, all that was told
    (text_of([STARTED, step(1)]), None, None, [STARTED, step(1)]),  # it never came to an attempt
    ("", 0, rank_0(STARTED, LOADED, step(1)), [STARTED, LOADED, step(1)]),  # nobody listened
    (text_of([STARTED]), 0, rank_0(STARTED, TALK, LOADED, TALK, step(1)), [STARTED, LOADED, step(1)]),
    (text_of([STARTED, step(1), ENDED]), 0, rank_0(STARTED, step(1)), [STARTED, step(1), ENDED]),  # the end is ours
    (text_of([STARTED, step(1), step(2)]), 0, "", [STARTED, step(1), step(2)]),  # its log was cleaned up
    (text_of([STARTED, step(1)]), 2, rank_0(step(2), step(3)), [STARTED, step(1), step(2), step(3)]),
    (text_of([STARTED, step(1), step(2)]), 2, rank_0(step(2), step(3)), [STARTED, step(1), step(2), step(3)]),
    (text_of([STARTED, step(1)]) + to_line(step(2))[:9], 2, rank_0(step(2)), [STARTED, step(1), step(2)]),  # cut
    (text_of([STARTED]), 1, rank_0(step(2), f"{MARK}{to_line(step(3))}"), [STARTED, step(2)]),  # killed within a line
    (text_of([STARTED]), 1, rank_0(step(2), MARK + '{"kind":"St'), [STARTED, step(2)]),
    (text_of([STARTED]), 1, rank_0("score: ", step(2)), [STARTED, step(2)]),  # a reward printed, and ended no line
    (text_of([STARTED]), 1, rank_0(TALK, "\udcff\0\n"), [STARTED]),
    (text_of([STARTED]), 1, "", [STARTED]),
    (text_of([NEWER, STARTED, DAMAGED]), 3, rank_0(step(2)), [NEWER, STARTED, DAMAGED, step(2)]),
    (text_of([STARTED]), 1, rank_0(f"{MARK}{NEWER}\n", step(2)), [STARTED, step(2)]),
    # what the launcher told by itself meanwhile
    (text_of([STARTED, step(1), STALLED]), 0, rank_0(STARTED, step(1), step(2)), [STARTED, step(1), STALLED, step(2)]),
    (text_of([STARTED, STALLED, WENT_ON]), 0, rank_0(STARTED, step(1)), [STARTED, STALLED, WENT_ON, step(1)]),
    (text_of([STARTED, step(2), AGAIN]), 2, rank_0(saved(2), step(3)), [STARTED, step(2), AGAIN, saved(2), step(3)]),
    (text_of([STARTED, step(2), AGAIN, saved(2), STALLED]), 2, rank_0(saved(2), step(3)),
     [STARTED, step(2), AGAIN, saved(2), STALLED, step(3)]),
    (text_of([STARTED, step(2), AGAIN]), 0, rank_0(STARTED, step(2), step(3)),  # killed before the next attempt began
     [STARTED, step(2), AGAIN, step(3)]),
    (text_of([STARTED, step(1), ENDED]), 0, rank_0(STARTED, step(1)), [STARTED, step(1), ENDED]),
]  # fmt: skip


@pytest.mark.parametrize(("written", "before", "log", "told"), TOLD)
def test_all_that_was_told_is_found_once(
    folder: Folder, written: str, before: int | None, log: str | None, told: list[Event | str]
) -> None:
    folder.events.write_text(written)
    if log is not None:
        logs = folder.new_attempt()
        (logs / "events_before").write_text(str(before))
        (logs / "rank-0.log").write_bytes(log.encode("utf-8", "surrogateescape"))
    assert told_by(folder, Torch().read) == lines_of(told)


def test_only_the_last_attempts_log_is_heard(folder: Folder) -> None:
    folder.events.write_text(text_of([STARTED, step(1)]))
    logs = folder.new_attempt()
    (logs / "events_before").write_text("0")
    (logs / "rank-0.log").write_text(rank_0(STARTED, step(1), step(2)))
    assert told_by(folder, Torch().read) == lines_of([STARTED, step(1), step(2)])
    logs = folder.new_attempt()
    assert told_by(folder, Torch().read) == lines_of([STARTED, step(1)])  # killed before it began
    (logs / "events_before").write_text("2")
    (logs / "rank-0.log").write_text(rank_0(step(7)))
    assert told_by(folder, Torch().read) == lines_of([STARTED, step(1), step(7)])


@pytest.mark.parametrize(
    "line", [f"{MARK}{{", f"{MARK}null", f"{MARK}5", f'{MARK}{{"kind":"Step"}}', f"{MARK}\ufffd", MARK]
)
def test_a_damaged_line_of_rank_0_is_told(line: str) -> None:
    (alert,) = Torch().read(line)
    assert isinstance(alert, Alert) and alert.text.startswith("rank 0 told what cannot be read: ")


@pytest.mark.parametrize("cut", range(1, 12))
def test_wherever_the_launcher_dies_all_is_told_once(folder: Folder, cut: int) -> None:
    """Two attempts with a restart between them; the launcher dies after `cut` lines of what it writes."""
    first: list[Event | str] = [STARTED, step(1), step(2), saved(2), step(3)]
    second: list[Event | str] = [saved(2), step(3), step(4), saved(4)]
    logs = folder.new_attempt()
    (logs / "events_before").write_text("0")
    (logs / "rank-0.log").write_text(rank_0(*first))
    folder.events.write_text(text_of(first[: min(cut, 5)]))
    if cut > 5:
        rewind(folder, told_by(folder, Torch().read), folder.checkpoints / "step_000002")
        lines = folder.events.read_text().splitlines() + lines_of([AGAIN])
        logs = folder.new_attempt()
        (logs / "events_before").write_text(str(heard_of(lines)))
        (logs / "rank-0.log").write_text(rank_0(*second))
        folder.events.write_text("".join(line + "\n" for line in [*lines, *lines_of([STALLED, *second])[: cut - 6]]))
    rewind(folder, told_by(folder, Torch().read), folder.checkpoints / ("step_000004" if cut > 5 else "step_000002"))
    history = lines_of([AGAIN, *([STALLED] if cut > 6 else [])]) if cut > 5 else []
    told = folder.events.read_text().splitlines()
    assert [line for line in told if line in history] == history
    rest = lines_of([STARTED, step(1), step(2), *([saved(2), step(3), step(4)] if cut > 5 else [])])
    assert [line for line in told if line not in history] == rest
