"""Runs and models that others made: nothing in them is believed, followed, waited for or said aloud."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from launcher.config.resolve import resolve
from launcher.core.problems import Problems
from launcher.launch import start
from launcher.models import config
from launcher.preflight import plan
from launcher.runs import store
from launcher.runs.folder import Folder, take
from launcher.spec.stored import to_yaml

BASE = ["algorithm=grpo", "model=tiny", "data=reverse", "sampler.n=4"]
LEVELS = "".join(f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9))
BOMB = f"a0: &a0 [{','.join('x' * 9)}]\n{LEVELS}"
DEEP = "[" * 5000


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


Within = Callable[[float], AbstractContextManager[None]]
Refused = Callable[[Callable[[], object]], list[str]]


@pytest.fixture
def refused(within: Within) -> Refused:
    """The lines of a refusal, which takes far below a second: what hostile input could cost is minutes."""

    def lines(call: Callable[[], object]) -> list[str]:
        with within(1.0), pytest.raises(Problems) as found:
            call()
        return found.value.lines

    return lines


def a_run(here: Path) -> Path:
    run = here / "runs" / "p" / "theirs"
    run.mkdir(parents=True)
    spec = to_yaml(resolve([*BASE, "trainer.experiment_name=theirs"]))
    for name, text in {"spec.yaml": spec, "lock.json": "{}", "events.jsonl": ""}.items():
        (run / name).write_text(text)
    return run


STORED = [
    ("spec.yaml", BOMB, "stands for more than 20,000 values"),
    ("spec.yaml", f"seed: {DEEP}", "more than 64 deep"),
    ("spec.yaml", "algorithm: {_target_: os.system}\n", "os.system is not of class Algorithm"),
    ("spec.yaml", "reward: {_target_: antigravity.x}\n", "antigravity.x is not of class Reward"),
    ("lock.json", DEEP, "nested too deeply"),
    ("lock.json", "[]", "holds no lock"),
]


@pytest.mark.parametrize(("name", "text", "line"), STORED, ids=[f"{name} {line[:20]}" for name, _, line in STORED])
def test_hostile_files_of_a_run(name: str, text: str, line: str, here: Path, refused: Refused) -> None:
    run = _with(here, name, text)
    before = sorted(here.rglob("*"))
    lines = refused(lambda: start.resume(Folder(run), [], lambda *_: None))
    assert any(line in found for found in lines), lines
    assert sorted(here.rglob("*")) == before


def _with(here: Path, name: str, text: str) -> Path:
    run = a_run(here)
    (run / name).write_text(text)
    return run


EVENTS = [
    DEEP, '{"kind":"Alert","at":1' + "0" * 400 + ',"step":1,"text":"x"}',
    '{"kind":"Step","at":1,"step":Infinity,"metrics":{}}',
    '{"kind":"Alert","at":1,"step":1,"text":{"a":1}}',
    '{"kind":"Started","at":1,"run":["x"],"algorithm":1,"processes":1}',
    "null", "[]", '"x"', '{"kind":["x"]}', '{"kind":"Step","at":1,"step":' + "9" * 5000 + "}",
]  # fmt: skip


@pytest.mark.parametrize("line", EVENTS, ids=range(len(EVENTS)))
def test_hostile_events_are_told_as_damaged(line: str, here: Path, within: Within) -> None:
    run = _with(here, "events.jsonl", line + "\n")
    with within(1.0):
        assert "damaged" in store.see(Folder(run)).state.alert


@pytest.mark.parametrize("name", ["events.jsonl", ".lock"])
def test_a_pipe_in_a_run_is_not_waited_for(name: str, here: Path) -> None:
    run = a_run(here)
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    assert store.see(Folder(run)).state.status == "failed"


@pytest.mark.parametrize(
    "name", [".lock", "spec.yaml", "prepared.json", "events.jsonl", "console.log", "words.txt", "lock.json", "logs"]
)
def test_links_of_a_run_lead_nowhere(name: str, here: Path, refused: Refused) -> None:
    run = a_run(here)
    mine = here / "mine"
    mine.write_text((run / name).read_text() if (run / name).exists() else "dear to me")
    before = mine.read_text()
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(mine)
    lines = refused(lambda: start.resume(Folder(run), [], lambda *_: None))
    assert len(lines) == 1 and name in lines[0] and "is a link" in lines[0]
    assert mine.read_text() == before


@pytest.mark.parametrize("link", ["runs/rlrun", "runs/rlrun/mine"])
def test_a_new_run_follows_no_link(link: str, here: Path, refused: Refused) -> None:
    (here / "elsewhere").mkdir()
    (here / link).parent.mkdir(parents=True)
    (here / link).symlink_to(here / "elsewhere")
    words = [*BASE, "trainer.experiment_name=mine"]
    assert "is a symbolic link" in str(plan.problems(resolve(words))[0])
    assert "is a link to another folder" in refused(lambda: take(here / "runs", "rlrun", "mine"))[0]  # made meanwhile
    assert not list((here / "elsewhere").iterdir())


@pytest.mark.parametrize("name", ["../x", "/etc", "a\0b", "a" * 300, "\u202e", "~nobody-here/x", "theirs\n", ".."])
def test_names_of_no_run(name: str, here: Path, refused: Refused) -> None:
    a_run(here)
    assert "no run of that name" in refused(lambda: store.find(name, here / "runs"))[0]


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "generation_config.json"])
@pytest.mark.parametrize("text", [DEEP, "{", "[]", "{" + " " * 17 * 2**20])
def test_hostile_texts_of_a_model(name: str, text: str, here: Path, within: Within) -> None:
    (here / "config.json").write_text("{}")
    (here / name).write_text(text)
    with within(1.0):
        (line,) = map(str, config.faults(here))
    assert line.startswith(f"{here / name}: ") and line.endswith("as its publisher saved it")


def test_json_of_a_run_of_others_holds_no_secret(commands: Any, here: Path) -> None:
    token = "hf_AbCdEfGhIjKlMnOpQrStUvWxYz"
    _with(here, "events.jsonl", json.dumps({"kind": "Ended", "at": 1, "how": "failed", "why": token}) + "\n")
    for words in (["show", "theirs"], ["show", "theirs", "--json"], ["runs", "--json"], ["logs", "theirs", "--json"]):
        ran = commands(here)(*words)
        assert ran.returncode == 0 and token[:12] not in ran.stdout + ran.stderr
    assert "[secret]" in commands(here)("show", "theirs").stdout
