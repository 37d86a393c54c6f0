"""Each row arrives once, and a script ends as it would have without a logger, whatever the platform does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from logger_calls import wrong_server

from launcher.logger import sender
from launcher.logger.spool import SpoolReader, SpoolWriter
from tests.logger.conftest import Scripts, Shared

LOGS = """
import os, signal, sys
from launcher.logger import DualLogger
logger = DualLogger(os.environ["JOB"], sys.argv[1], wandb_enabled=False)
for step in range(int(sys.argv[2]), int(sys.argv[3])):
    logger.log_metrics(step, {"loss": step / 7})
"""
END = "logger.finish()\nsys.exit(3)\n"


def steps_of(platform: Shared) -> list[tuple[int, float]]:
    return [(node["step"], node["metrics"]["train/loss"]) for node in platform.lines(platform.job, "Step")]


@pytest.mark.parametrize("wrong", [wrong_server(hangs=True), wrong_server(hangs=False), nullcontext("http://[")])
def test_what_did_not_arrive_is_delivered_by_the_next_logger(
    wrong: AbstractContextManager[str], scripts: Scripts, platform: Shared
) -> None:
    """A server that hangs, one that answers 500, and what is no address."""
    with wrong as url:
        ran = scripts.run(LOGS + END, url, "0", "20", RLRUN_FINISH_S="0.5")
    assert ran.returncode == 3
    assert "the next DualLogger of this job delivers them" in ran.stderr.splitlines()[-1]
    assert scripts.run(LOGS + END, platform.url, "20", "30").returncode == 3
    assert steps_of(platform) == [(step, step / 7) for step in range(30)]
    assert not any(platform.spool.rglob("*.jsonl"))


@pytest.mark.parametrize("seconds", ["30s", "nan", "-1"])
def test_what_is_no_number_of_seconds_is_named_once_and_costs_nothing(
    seconds: str, scripts: Scripts, platform: Shared
) -> None:
    ran = scripts.run(LOGS + END, platform.url, "0", "5", RLRUN_FINISH_S=seconds)
    assert ran.returncode == 3 and ran.stderr.count(f"RLRUN_FINISH_S: got {seconds!r}") == 1 == ran.stderr.count("\n")
    assert steps_of(platform) == [(step, step / 7) for step in range(5)]


@pytest.mark.parametrize("rows", [0, 50])
def test_the_end_of_a_script_waits_while_rows_arrive(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    end = threading.Event()
    sink, clock = SimpleNamespace(arrived=0, run=end.wait), SimpleNamespace(now=0)

    def sleep(_: float) -> None:
        clock.now += 1
        sink.arrived = min(clock.now, rows)

    monkeypatch.setattr(sender, "time", SimpleNamespace(monotonic=lambda: clock.now, sleep=sleep))
    sender._run_sinks([sink], SimpleNamespace(writer_gone=lambda: True))  # type: ignore
    assert clock.now == rows + sender.finish_s()
    end.set()


def test_a_script_that_was_killed_ended_when_it_was_heard_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not when the platform learns of it: the same script may have been started again since."""
    monkeypatch.setenv("RLRUN_SPOOL", str(tmp_path))
    SpoolWriter("job").append({"kind": "metrics", "step": 1, "metrics": {}})
    reader, sent = SpoolReader(next(tmp_path.rglob("*.jsonl"))), list[bytes]()
    os.utime(reader.path, (1000, 1000))

    def post(_: SpoolReader, first: int, rows: list[bytes]) -> int:
        sent.extend(rows)
        return first + len(rows)

    delivery = sender.SessionDelivery(reader, SimpleNamespace(post=post))  # type: ignore
    while not delivery.deliver():
        pass
    assert len(sent) == 2 and json.loads(sent[-1])["at"] == 1000


def test_a_script_that_is_killed_has_handed_over_all_that_it_logged(scripts: Scripts, platform: Shared) -> None:
    """Its job has failed; the same script started again goes on from its checkpoint, and undoes what came after."""
    ran = scripts.run(LOGS + "os.kill(os.getpid(), signal.SIGKILL)\n", platform.url, "0", "20")
    assert ran.returncode == -9
    while not platform.lines(platform.job, "Ended"):
        assert scripts.run(LOGS + END, platform.url, "0", "0").returncode == 3
    assert platform.lines(platform.job, "Ended")[0]["how"] == "failed"
    assert scripts.run(LOGS + END, platform.url, "10", "30").returncode == 3
    assert [node["step"] for node in platform.lines(platform.job, "Resumed")] == [9]
    assert steps_of(platform) == [(step, step / 7) for step in (*range(20), *range(10, 30))]


@pytest.mark.parametrize(
    ("end", "how", "why"),
    [
        ("raise ValueError('no more')\n", "failed", "ValueError: no more"),
        ("", "stopped", "the script ended without finish()"),
    ],
)
def test_a_script_without_finish_says_how_it_ended(
    end: str, how: str, why: str, scripts: Scripts, platform: Shared
) -> None:
    scripts.run(LOGS + end, platform.url, "0", "3")
    (ended,) = platform.lines(platform.job, "Ended")
    assert (ended["how"], ended["why"]) == (how, why)


def test_values_of_any_kind_threads_and_forks(scripts: Scripts, platform: Shared) -> None:
    ran = scripts.run(
        """
import os, sys, threading
import numpy as np
from launcher.logger import DualLogger
logger = DualLogger(os.environ["JOB"], sys.argv[1], wandb_enabled=False)
values = {"a": np.float32(0.5), "b": np.array(2), "c": float("nan"), "d": float("-inf"), 5: 1, "e": True, (1, 2): 3.0,
          "text": "no number", "list": [1, 2], "\\udcff": 4}
logger.log_metrics(np.int64(1), values)
logger.log_metrics(1, {"actor": {"lr": {"last": 1e-6}}})
logger.log_metrics(2, None)
logger.log_metrics(None, {"a": 1})
logger.log_metrics(3, {"text": "x" * 10_000_000})
logger.log_status("running", "y" * 10_000_000)
write = lambda: [logger.log_metrics(4, {"loss": 1.0}) for _ in range(40)]
threads = [threading.Thread(target=write) for _ in range(16)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
if not (child := os.fork()):
    logger.log_metrics(5, {"loss": 2.0})
    logger.finish()
    os._exit(0)
os.waitpid(child, 0)
logger.log_metrics(6, {"loss": 3.0})
logger.finish()
logger.log_metrics(7, {"loss": 4.0})
""",
        platform.url,
    )
    assert ran.returncode == 0 and "rows were lost: a row has 10,000,0" in ran.stderr
    steps = platform.lines(platform.job, "Step")
    assert steps[0]["metrics"] == {
        "a": 0.5, "b": 2.0, "c": "NaN", "d": "-Infinity", "5": 1.0, "e": 1.0, "(1, 2)": 3.0, "\\udcff": 4.0,
    }  # fmt: skip
    assert steps.pop(1)["metrics"] == {"actor/lr/last": 1e-6}
    assert [node["step"] for node in steps[1:]] == [4] * 640 + [5, 6]
    skipped = [node["text"] for node in platform.lines(platform.job, "Alert") if "was left out" in node["text"]]
    assert len(skipped) == 2, "no metrics, and no step"
    assert len({node["session"] for node in platform.lines(platform.job, "LoggerSession")}) == 1
    assert len(platform.lines(platform.job, "Ended")) == 1, "a process that was forked ends no session"


def test_who_looks_for_what_was_left_takes_no_session_from_a_script_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own sender may start later than that of another session looks."""
    monkeypatch.setenv("RLRUN_SPOOL", str(tmp_path))
    writer = SpoolWriter("job")
    looks = (
        "from types import SimpleNamespace as Own; from launcher.logger.sender import left_behind;"
        "print(list(left_behind(Own(job='job', path=None))), flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", looks], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout and other.stdout.readline() == "[]\n"
        assert SpoolReader(writer.path).claim()
        other.communicate("\n")


@pytest.mark.parametrize(
    ("runs", "printed"),
    [
        ("raise RuntimeError('no login')", "rows did not reach W&B"),
        ("import time; time.sleep(1000)", "rows did not reach W&B"),
        (None, "W&B is not installed"),
    ],
)
def test_a_broken_hanging_or_missing_wandb_costs_nothing(
    runs: str | None, printed: str, scripts: Scripts, platform: Shared
) -> None:
    if runs is None:
        (scripts.folder / "modules" / "wandb.py").unlink()
    script = LOGS.replace(", wandb_enabled=False", "") + END
    ran = scripts.run(script, platform.url, "0", "5", WANDB_RUNS=runs or "", RLRUN_FINISH_S="3")
    assert ran.returncode == 3 and printed in ran.stderr and (runs or ran.stderr.count("\n") == 1)
    assert steps_of(platform) == [(step, step / 7) for step in range(5)]


def test_importing_it_loads_nothing_heavy_and_leaves_the_environment(scripts: Scripts) -> None:
    heavy = "pydantic", "torch", "rich", "ray", "hydra", "numpy", "yaml", "fastapi", "wandb", "typer"
    text = """
import os, sys
os.environ.pop("OMP_WAIT_POLICY", None)
before = dict(os.environ)
from training_platform.core.wandb_callback import DualLogger
print([*sys.modules])
assert os.environ == before, os.environ
"""
    ran = scripts.run(text)
    loaded = ran.stdout
    assert ran.returncode == 0, ran.stderr
    assert "launcher.logger.spool" in loaded
    assert [name for name in heavy if f"'{name}'" in loaded] == []
