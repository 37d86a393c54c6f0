"""The kept state of a run equals the one that its events make, and is never older than they are."""

from __future__ import annotations

import math
from pathlib import Path

from launcher.core.events import Alert, Ended, Loaded, Started, Step, Usage, events_of, to_line
from launcher.core.state import fold
from launcher.runs.folder import Folder
from launcher.runs.store import see
from launcher.runs.summary import WORTH_BYTES

STEPS = 800
"""A log that is worth a kept state."""


def long_run(path: Path) -> Folder:
    path.mkdir(parents=True)
    (path / "spec.yaml").write_text("")
    usage = Usage(
        at=3.0, rank=0, host="a", cpu_percent=1.0, memory_bytes=2, machine_cpu_percent=1.0, machine_memory_bytes=3,
        machine_memory_total_bytes=4, disk_free_bytes=None,
    )  # fmt: skip
    loaded = Loaded(at=2.0, rows=8, refused=0, val_rows=4, val_refused=0, steps_per_epoch=4, steps=STEPS)
    events = [Started(at=1.0, run="p/one", algorithm="GRPO", processes=1), loaded, usage]
    for number in range(STEPS):
        metrics = {"critic/score/mean": number / 7, "actor/entropy": math.nan if number % 3 else math.inf}
        if number % 100 == 0:
            metrics["val-core/maths/reward/mean@1"] = number / STEPS
        events.append(Step(at=10.0 + number, step=number, metrics=metrics))
    events += [Alert(at=5.0, step=3, text="é \u202e", level="warn", rule="x"), Ended(at=9e3, how="finished")]
    (path / "events.jsonl").write_text("".join(to_line(event) + "\n" for event in events))
    return Folder(path)


def test_it_is_the_state_that_the_events_make_and_new_events_and_damage_are_seen(tmp_path):
    folder = long_run(tmp_path / "runs" / "p" / "one")
    assert folder.events.stat().st_size > WORTH_BYTES
    first, again = see(folder).state, see(folder).state
    assert folder.summary.is_file() and repr(again) == repr(first) == repr(fold(events_of(folder.events)))
    with folder.events.open("a") as log:
        log.write(to_line(Step(at=9e4, step=2_500, metrics={})) + "\n")
    assert see(folder).state.step == 2_500
    for text in ("{", "[]", '{"events": 3}', folder.summary.read_text().replace(f'"steps": {STEPS}', '"steps": "x"')):
        folder.summary.write_text(text)
        assert see(folder).state.steps == STEPS
