"""A server of OpenEnv trains through verifiers' taskset of that name (`make test-verifiers`)."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from launcher.core.events import TrainingGroup
from launcher.environments.verifiers import interpreter
from tests.launch.conftest import events

PYTHON = interpreter("")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path(PYTHON).is_file(), reason="verifiers has no environment: make test-verifiers"),
]


@pytest.fixture
def url() -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [PYTHON, str(Path(__file__).with_name("guess_server.py")), str(port)], stderr=subprocess.DEVNULL
    )
    address = f"http://127.0.0.1:{port}"
    while server.poll() is None:
        with suppress(OSError):
            urllib.request.urlopen(f"{address}/schema").close()
            break
        time.sleep(0.1)
    yield address
    server.kill()
    server.wait()


def test_an_episode_is_scored_by_the_rewards_of_its_steps(url: str, tmp_path: Path) -> None:
    settings = f"""
        algorithm=grpo model=tiny model.chat=true engine.num_threads=1 sampler.n=2 data.train_batch_size=4
        environment=openenv environment.args.taskset.base_url={url} environment.python={PYTHON} environment.workers=1
        data.max_prompt_length=512 data.max_response_length=1024 trainer.total_training_steps=2
        trainer.log_groups_freq=1 trainer.project_name=p trainer.experiment_name=run"""
    ran = subprocess.run(
        [sys.executable, "-m", "launcher", "train", *settings.split()], cwd=tmp_path, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    checked = 0
    for group in events(tmp_path / "runs" / "p" / "run", TrainingGroup):
        (letter,) = {letter for letter in "abcdef" if f"write {letter} " in group.prompt}
        for episode, score in zip(group.episodes, group.scores, strict=True):
            assert not episode.fault
            texts = [turn.text.strip() for turn in episode.turns]
            whole = all(text and " characters ...] " not in text and not _is_json(text) for text in texts)
            if episode.outcome == "finished" and whole:
                assert score == pytest.approx(sum(text.count(letter) / len(text) for text in texts), rel=1e-4)
                checked += 1
    assert checked


def _is_json(text: str) -> bool:
    with suppress(ValueError):
        json.loads(text)
        return True
    return False
