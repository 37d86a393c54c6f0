"""What a person sees of a run: everything that matters, and nothing that could steer the terminal; also of a run that
somebody else writes, on a real terminal."""

from __future__ import annotations

import io
import math
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from launcher.cli import live_view
from launcher.cli.live_view import picture
from launcher.cli.plot import sparkline
from launcher.core.events import Ended, Event, Loaded, Phase, Started, Step, Usage, to_line
from launcher.core.metrics import HeldOut
from launcher.core.state import Curve, RunState
from launcher.runs.folder import Folder, Lock

METRICS = {
    "critic/score/mean": 0.4375, "actor/entropy": 0.5123, "actor/kl_loss": 0.0012, "critic/frac_reward_zero_std": 0.25,
    "actor/grad_norm": 1.5, "response_length/mean": 6.5, "perf/throughput": 15786.2, "timing_s/step": 0.0067,
}  # fmt: skip
HELD_OUT = HeldOut(20, "val-core/openai/gsm8k/reward/mean@1", 0.625)
RUNNING = RunState(
    run="maths/grpo-1", algorithm="GRPO", status="running", phase="rollout", step=30, steps=120, processes=2,
    started_at=1000.0, last_at=1060.0, metrics=METRICS, validation={HELD_OUT.name: HELD_OUT.value}, validated_step=20,
    first=HELD_OUT, best=HELD_OUT, last=HELD_OUT, score_name="critic/score/mean", score=0.4375,
    curve=Curve((0.0, 0.25, 0.5), waiting=(1.0,)), marks=((10, 1020.0), (30, 1060.0)),
    checkpoint="checkpoints/step_000020", alert="checkpoint step_000030 not written: no space left on device", alerts=1,
)  # fmt: skip


def drawn(state: RunState, now: float = 1075.0, width: int = 80) -> str:
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=True, color_system=None, legacy_windows=False)
    console.print(picture(state, now))
    return file.getvalue()


def flat(text: str) -> str:
    """Without the frame and the breaks of its lines."""
    return " ".join(text.replace("│", " ").split())


def test_a_running_run_shows_all_that_matters() -> None:
    text = drawn(RUNNING)
    assert "maths/grpo-1  GRPO" in text.splitlines()[0]
    for part in (
        "rollout", "30/120",  # what it does, and how far it is
        "01:15 elapsed · 03:00 left",  # by the clock on the wall; 90 steps of 2 s
        "score 0.438", "entropy 0.512", "kl to ref 0.0012", "no signal 0.25", "grad norm 1.5", "length 6.5",
        "score ▁▂▄█", "held out openai/gsm8k 0.625 at step 20", "checkpoint checkpoints/step_000020",
        "alert checkpoint step_000030 not written: no space left on device",
    ):  # fmt: skip
        assert part in flat(text)
    assert "tokens/s" not in text, "six numbers, the most important ones"
    assert max(len(line) for line in text.splitlines()) == 80, "as wide as the terminal"


STATES = [
    (RunState(), ["starting", "waiting", "0/?", "00:00 elapsed"]),
    (RunState(status="running", run="p/a", phase="loading", started_at=1000.0), ["p/a", "loading", "01:15 elapsed"]),
    (replace(RUNNING, status="finished", phase="", step=120), ["finished", "120/120", "01:00 elapsed"]),
    (replace(RUNNING, status="failed", phase="", why="rank 0: killed"), ["failed", "failed rank 0: killed"]),
    (replace(RUNNING, status="stopped", phase="", why="SIGTERM"), ["stopped", "stopped SIGTERM"]),
    (replace(RUNNING, status="finished", why="the last step is not saved"), ["finished the last step is not saved"]),
    (replace(RUNNING, metrics={"train/loss": math.nan}, score=math.nan, score_name="train/loss",
             curve=Curve((1.0, math.nan, math.inf, 2.0))), ["loss nan", "loss ▁ █"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("state", "parts"), STATES, ids=[f"{state.status}{place}" for place, (state, _) in enumerate(STATES)]
)
def test_a_run_at_any_time(state: RunState, parts: list[str]) -> None:
    printed = flat(drawn(state))
    for part in parts:
        assert part in printed
    assert bool(re.search(r"\d left", printed)) == (state.status == "running" and len(state.marks) > 1)


@pytest.mark.parametrize("width", [10, 200])
def test_it_fits_the_terminal(width: int) -> None:
    long = replace(RUNNING, run="p" * 128 + "/" + "e" * 128, why="w" * 500, alert="a " * 500, status="failed")
    assert max(len(line) for line in drawn(long, width=width).splitlines()) <= width


GB = 10**9
PLAIN = Usage(
    rank=0, host="h", cpu_percent=150.4, memory_bytes=2 * GB, machine_cpu_percent=90.0, machine_memory_bytes=6 * GB,
    machine_memory_total_bytes=8 * GB, disk_free_bytes=None,
)  # fmt: skip
ON_GPU = replace(PLAIN, gpu_percent=90.0, gpu_memory_bytes=70 * GB, gpu_memory_total_bytes=80 * GB, gpu_celsius=60.0)
USES = [
    ([PLAIN], "in use CPU 150 % · 2.0 GB · machine 6.0 of 8.0 GB"),
    # of all processes together, and of the machine that is nearest to being full
    ([PLAIN, replace(PLAIN, machine_memory_bytes=1 * GB)], "in use CPU 301 % · 4.0 GB · machine 6.0 of 8.0 GB"),
    # their mean share, the fullest, the hottest
    ([replace(ON_GPU, gpu_percent=50.0, gpu_memory_bytes=10 * GB, gpu_celsius=81.0), ON_GPU],
     "in use GPU 70 % · 70.0 of 80.0 GB · 81 °C"),
    ([replace(ON_GPU, gpu_percent=None, gpu_celsius=None)], "in use 70.0 of 80.0 GB"),  # a part of a GPU tells less
]  # fmt: skip


@pytest.mark.parametrize(("usage", "line"), USES)
def test_what_is_in_use_is_one_line(usage: list[Usage], line: str) -> None:
    printed = flat(drawn(replace(RUNNING, usage=dict(enumerate(usage)))))
    assert f" {line} " in printed
    assert "in use" not in flat(drawn(RUNNING))


EVIL = "x\x1b[2J\x1b]0;owned\x07\x9b31m\r\x08\x00\u202e\udcff"


def test_no_name_and_no_text_reaches_the_terminal_as_a_command() -> None:
    names = {"run": EVIL, "algorithm": EVIL, "phase": EVIL, "alert": EVIL, "checkpoint": EVIL, "why": EVIL}
    held_out = HeldOut(20, f"val-core/{EVIL}/reward/mean@1", 1.0)
    for state in (replace(RUNNING, **names, last=held_out), replace(RUNNING, **names, status="failed")):  # type: ignore[arg-type]
        text = drawn(state)
        assert all(c.isprintable() or c == "\n" for c in text)
        assert flat(text).count("\\x1b[2J") >= 5
        text.encode()


@pytest.mark.parametrize(("values", "line"), [
    ((), ""), ((5.0, 5.0), "▁▁"), (tuple(map(float, range(8))), "▁▂▃▄▅▆▇█"), ((math.nan,), " "),
    ((math.inf, 0.0, 1.0, -math.inf), " ▁█ "),
    ((-1.7e308, 0.0, 1.7e308), "▁▄█"),  # their difference is no number any more
    ((0.1, 0.1 + 1e-17, 0.30000000000000004 / 3, 0.1), "▁▁▁▁"),  # equal but for rounding
])  # fmt: skip
def test_sparkline(values: tuple[float, ...], line: str) -> None:
    assert sparkline(values) == line


# ---- while it runs


def test_on_a_terminal_the_picture_is_drawn_seldom_and_the_end_always(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(live_view.time, "monotonic", lambda: now[0])
    drawn = list[RunState]()
    monkeypatch.setattr(live_view, "picture", lambda state, _: drawn.append(state) or f"step {state.step}")
    step: list[Event] = [Step(step=1, metrics={})]
    with live_view.watching(Console(file=io.StringIO(), force_terminal=True)) as show:
        for _ in range(100):
            show.write(RUNNING, step, [])
            now[0] += 0.01
        assert 3 <= len(drawn) <= 5  # a second of a busy run
        show.write(replace(RUNNING, status="finished"), [Ended(how="finished")], [])
        assert drawn[-1].status == "finished"


# ---- `rlrun watch`


def tell(run: Folder, *events: Event) -> None:
    with run.events.open("a") as log:
        log.write("".join(to_line(event) + "\n" for event in events))


@pytest.fixture
def run(tmp_path: Path) -> Folder:
    made = Folder(tmp_path / "runs" / "p" / "r")
    made.path.mkdir(parents=True)
    made.spec.write_text("")
    loaded = Loaded(rows=8, refused=0, val_rows=0, val_refused=0, steps_per_epoch=5, steps=5)
    tell(made, Started(at=time.time(), run="p/r", algorithm="GRPO", processes=1), loaded, Phase(name="rollout"))
    return made


@pytest.fixture
def writer(run: Folder) -> Iterator[ExitStack]:
    """Holds the run's lock until it is closed."""
    with ExitStack() as writer:
        writer.enter_context(Lock(run, named=False))
        yield writer


@pytest.fixture
def watching(writer: ExitStack, tmp_path: Path, commands: Any, on_terminal: Any) -> Iterator[Any]:
    with closing(on_terminal(commands(tmp_path), "watch", "r", term="xterm")) as made:
        yield made


def test_it_draws_what_happens_until_the_run_ends(
    run: Folder, writer: ExitStack, watching: Any, until: Callable[..., None]
) -> None:
    until(lambda: watching.sees("rollout"))
    for step in (1, 2):
        tell(run, Step(step=step, metrics={"critic/score/mean": 0.5}))
        until(lambda step=step: watching.sees(f"{step}/5"))
    assert watching.process.poll() is None
    tell(run, Ended(how="failed", why="rank 0: killed"))
    writer.close()
    until(lambda: watching.sees("rank 0: killed"))
    assert watching.process.wait(600) == 0, "it did what it was asked to, however the run did"


def test_ctrl_c_ends_the_watching_alone(run: Folder, watching: Any, until: Callable[..., None]) -> None:
    until(lambda: watching.sees("rollout"))
    watching.process.send_signal(signal.SIGINT)
    assert watching.process.wait(600) == 0
    assert not watching.sees("Traceback") and not (run.path / ".stop").exists()


def test_a_log_is_drawn_with_what_is_appended(
    tmp_path: Path, commands: Any, on_terminal: Any, until: Callable[..., None]
) -> None:
    (log := tmp_path / "verl.log").write_text("step:20 - critic/score/mean:0.5\n")
    with closing(on_terminal(commands(tmp_path), "watch", "verl.log", term="xterm")) as watching:
        until(lambda: watching.sees("20/"))
        with log.open("a") as file:
            file.write("step:21 - critic/score/mean:0.5\n\rTraining Progress:  50%|█ | 21/42 [1:00<1:00, 2.0s/it]")
        until(lambda: watching.sees("21/42"))


def test_where_there_is_no_terminal_lines_are_printed(run: Folder, tmp_path: Path, commands: Any) -> None:
    run.console.write_text("step:1 - x:1.0\nfinished\n")
    ran = commands(tmp_path)("watch", "r")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "step:1 - x:1.0\nfinished\n", "")
