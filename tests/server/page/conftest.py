"""A server of its own process, runs to look at, and a browser that notices whatever should not happen."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from launcher.config.resolve import resolve
from launcher.core.episode_record import CalledTool, EpisodeRecord, EpisodeTurn
from launcher.core.events import Alert, Ended, Loaded, Sample, Started, Step, TrainingGroup, Usage, to_line
from launcher.spec.stored import to_yaml
from tests.logs.same_run import FORMS, collapse
from tests.server.conftest import write_run

CHROMIUM = Path("/usr/bin/chromium")
COMMAND = [sys.executable, "-P", "-m", "launcher"]
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)


class Served:
    """A server, by its address, and the folder in which it runs."""

    def __init__(self, place: Path) -> None:
        self.place = place
        (place / "logs").mkdir(exist_ok=True)
        self.process = subprocess.Popen(
            [*COMMAND, "serve", "--port", "0", "--also", "logs"], cwd=place, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout
        self.address = self.process.stdout.readline().split()[-1]
        assert self.address.startswith("http://127.0.0.1:")

    def ask(self, path: str) -> Any:
        with urllib.request.urlopen(self.address + path) as found:
            return json.load(found)

    def uuid(self, run: str) -> str:
        """Of a run that may be found in a moment."""

        def found() -> str:
            jobs = self.ask("/api/jobs?size=500")["items"]
            return next((job["uuid"] for job in jobs if job["run"].endswith(run)), "")

        return str(until(found))

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()


def write_long_run(folder: Path, *, steps: int, metrics: int, seed: int = 0, end: bool = True) -> None:
    """A run of so many steps, as its folder is left, with one finding."""
    folder.mkdir(parents=True)
    words = ["algorithm=grpo", "model=tiny", "data=reverse", f"seed={seed}", f"trainer.experiment_name={folder.name}"]
    (folder / "spec.yaml").write_text(to_yaml(resolve(words)))
    events: list[Any] = [
        Started(at=1e9, run=f"{folder.parent.name}/{folder.name}", algorithm="GRPO", processes=1),
        Loaded(at=1e9, rows=9, refused=0, val_rows=9, val_refused=0, steps_per_epoch=steps, steps=steps),
    ]
    for step in range(1, steps + 1):
        values = {f"part{n % 7}/metric_{n}": math.sin(step / (50 + n)) + seed + n for n in range(metrics)}
        events.append(Step(at=1e9 + step, step=step, metrics=values | {"critic/score/mean": step / steps}))
        if step % 1000 == 0:
            events.append(
                Usage(at=1e9 + step, rank=0, host="h", cpu_percent=50.0, memory_bytes=10**9, machine_cpu_percent=60.0,
                      machine_memory_bytes=2**33, machine_memory_total_bytes=2**34, disk_free_bytes=2**40)
            )  # fmt: skip
    events.append(Alert(at=2e9, step=steps // 2, since=steps // 2, text="<b>it</b> fell", metric="critic/score/mean"))
    events += [Ended(at=2e9, how="finished")] if end else []
    (folder / "events.jsonl").write_text(
        "".join(to_line(event, seq=seq, attempt=1) + "\n" for seq, event in enumerate(events))
    )


def write_agent_run(folder: Path) -> None:
    """A run with two episodes to one prompt, one of 50 turns, and the same as an answer to a held-out prompt."""
    found = "\n".join(f"mail {n}: <b>from</b> Ann" for n in range(400))
    calls = CalledTool("search", '{"words": "budget"}', 0.25), CalledTool("read", '{"id": 7}', 1.5, "no such mail")
    many = (EpisodeTurn("I look for it", found, 0.1, 0.75, calls), *[EpisodeTurn("again", "none")] * 48)
    episodes = (
        EpisodeRecord("turn-limit", (*many, EpisodeTurn("I stop", "", 0.0, -0.5))),
        EpisodeRecord("environment-fault", (EpisodeTurn("search", "", 0.0, 0.0),), "the index is gone"),
    )
    of = {"at": 1.0, "step": 3, "data_source": "mail", "prompt": "who wrote?", "ground_truth": "Ann"}
    group = TrainingGroup(**of, group=1, responses=("I stop", ""), scores=(0.5, 0.0), parts={}, advantages=(1.0, -1.0),
                          episodes=episodes)  # fmt: skip
    samples = [Sample(**{**of, "step": step}, response="I stop", score=0.5, episodes=episodes[:1]) for step in (1, 3)]
    write_run(folder, more=(group, *samples))


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs: one that was trained, and two long ones."""
    place = tmp_path_factory.mktemp("served")
    train = ["algorithm=grpo", "model=tiny", "data=reverse", "trainer.total_training_steps=6", "trainer.test_freq=3"]
    subprocess.run([*COMMAND, "train", *train, "trainer.experiment_name=small", "trainer.log_groups_freq=1"],
                   cwd=place, check=True, capture_output=True)  # fmt: skip
    samples = place / "runs" / "rlrun" / "small" / "samples"
    samples.mkdir(exist_ok=True)
    facts = {"step": 3, "group": 1, "answer": 0, "ids": [1, 2, 3], "texts": ["one", "<i>", "pad"],
             "log_probs": [-1.0, -2.0, None], "sampler_log_probs": [-1.0, -3.0, None], "advantages": [1.0, 1.0, None],
             "mask": [1, 1, 0]}  # fmt: skip
    (samples / "tokens.jsonl").write_text(json.dumps(facts) + "\n")
    for seed in range(2):
        write_long_run(place / "runs" / "long" / f"seed-{seed}", steps=2_000, metrics=20, seed=seed)
    write_agent_run(place / "runs" / "mail" / "agent")
    (place / "logs").mkdir()
    for name, form in (("verl", "verl"), ("trl", "trl dicts")):
        (place / "logs" / f"{name}.log").write_text(str(FORMS[form](collapse())))
    return place


@pytest.fixture(scope="session")
def server(place: Path) -> Iterator[Served]:
    served = Served(place)
    yield served
    served.close()


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - only the page's environment has it

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def visit(browser: Any, server: Served) -> Iterator[Callable[..., Any]]:
    """`visit(path)` opens a page; at the end none has said anything in its console, been refused anything by its
    policy, or asked another host."""
    noticed = list[str]()
    with ExitStack() as stack:

        def open_page(path: str, *, at: str = server.address, allowed: tuple[str, ...] = (), **how: Any) -> Any:
            context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **how})
            stack.callback(context.close)
            page = context.new_page()
            page.set_default_timeout(20_000)
            page.add_init_script("window.refused = []; addEventListener('securitypolicyviolation', (event) => "
                                 "window.refused.push(event.violatedDirective))")  # fmt: skip
            page.on("console", lambda message: message.type in ("error", "warning")
                    and not any(text in message.text for text in allowed) and noticed.append(message.text))  # fmt: skip
            page.on("response", lambda answer: answer.status >= 400 and noticed.append(f"{answer.status} {answer.url}"))
            page.on("pageerror", lambda error: noticed.append(str(error)))
            page.on("request", lambda request: request.url.startswith((at, at.replace("http", "ws"), "data:"))
                    or noticed.append(request.url))  # fmt: skip
            stack.callback(lambda: noticed.extend(page.evaluate("window.refused")))
            answer = page.goto(at + path)
            assert answer.headers["content-security-policy"] == POLICY
            return page

        yield open_page
    assert not noticed


def until(true: Callable[[], Any], seconds: float = 120.0) -> Any:
    """What `true` gives once that is something."""
    end = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < end, "it never came"
        time.sleep(0.2)
    return found


AXE = Path(os.environ.get("AXE", ""))
