"""A run's folder with any events, and one whose numbers are awkward."""

from __future__ import annotations

import math
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from launcher.core.events import Alert, Distribution, Ended, Event, Restarted, Sample, Started, Step, to_line
from launcher.trackers.tracker import read_state, state_file


class RunFolder:
    """`runs/p/experiment`, to which events are appended as the launcher appends them."""

    def __init__(self, path: Path) -> None:
        self.path, self._seq = path, 0
        path.mkdir(parents=True)
        (path / "spec.yaml").write_text("optim: {lr: 0.1}\ntrainer: {project_name: p}\nseed: 1\n")

    def write(self, events: Sequence[Event]) -> None:
        with (self.path / "events.jsonl").open("a") as log:
            for event in events:
                log.write(to_line(event, seq=self._seq, attempt=1) + "\n")
                self._seq += 1


@pytest.fixture
def kill_once_sent(until, folder: RunFolder) -> Callable[..., None]:
    """`kill_once_sent(process, name, seq)`: SIGKILL once the events up to `seq` have arrived at the tracker `name`."""

    def kill(process: subprocess.Popen[bytes], name: str, seq: int) -> None:
        file = state_file(folder.path, name)
        until(lambda: file.exists() and read_state(folder.path, name).position.seq >= seq)
        process.kill()
        assert process.wait() == -signal.SIGKILL

    return kill


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "runs" / "p" / "one")


def metrics(step: int, attempt: int = 1) -> dict[str, float]:
    """Of one step, with numbers that not every format holds."""
    odd = {3: math.nan, 4: math.inf, 5: -math.inf, 6: 1e-320, 7: 0.1 + 0.2, 8: -0.0, 9: 1e300, 10: 2.0**53 + 2}
    return {
        "training/global_step": float(step),
        "critic/rewards/mean": step / 7 + attempt,
        "actor/pg_loss": -step / 3,
        "actor/entropy": 0.3,
        "odd/value": odd.get(step, float(step)),
        "val-core/openai/gsm8k/reward/mean@1": step / 11,
    }


@pytest.fixture
def awkward() -> list[Event]:
    """Steps 0 to 12, of which 8 to 12 are done twice: the run went back to step 7."""
    events: list[Event] = [Started(at=100.0, run="p/one", algorithm="GRPO", processes=1)]
    for step in range(13):
        if step % 6 == 0:
            answer = {"prompt": "2 + 2 = ? \u2028 <b>é</b> \ud800", "response": "4", "ground_truth": "4"}
            events.append(Sample(at=100.5 + step, step=step, data_source="gsm8k", score=1.0, **answer))
        spread = {"name": "critic/rewards", "edges": (0.0, 0.5, 1.0), "counts": (step, 2)}
        events.append(Distribution(at=100.6 + step, step=step, **spread))
        events.append(Step(at=101.0 + step, step=step, metrics=metrics(step)))
    events.insert(10, Alert(at=104.5, step=3, text="entropy is low", rule="entropy"))  # after step 3
    fell = Alert(at=114.0, step=12, text="the reward fell", level="critical", rule="reward", fix="optim.lr=5e-7")
    back = Restarted(at=115.0, step=7, attempt=2, cause="killed", why="rank 0 was killed")
    again = [Step(at=116.0 + step, step=step, metrics=metrics(step, 2)) for step in range(8, 13)]
    return [*events, fell, back, *again, Ended(at=130.0, how="finished")]


@pytest.fixture
def expected() -> dict[int, dict[str, float]]:
    """What stands of `awkward`."""
    return {step: metrics(step, 2 if step > 7 else 1) for step in range(13)}
