"""`rlrun model`, and the commands of the pages, as a person calls them, against a hub on this machine."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import launch_model
import numpy as np
import pytest
import yaml
from click.testing import Result
from local_hub import Act
from safetensors.numpy import save_file
from typer.testing import CliRunner

from launcher.cli.main import app

CONFIG = {
    "model_type": "qwen3", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100, "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}  # fmt: skip
NAME = "model.safetensors"

Look = Callable[..., Result]


@pytest.fixture
def look(hub: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Look:
    """The words inside this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return lambda *words: CliRunner().invoke(app, ["model", *words], catch_exceptions=False)


@pytest.fixture
def files(hub: Any, noise: Any) -> dict[str, bytes]:
    made = {"config.json": json.dumps(CONFIG).encode(), NAME: noise(3_000_000), "tokenizer.json": b"{}", "x.py": b"no"}
    hub.add("Qwen/Qwen3-0.6B", made)
    hub.add("o/m", made)
    return made


@pytest.mark.parametrize("source", ["huggingface", "modelscope"])
def test_what_a_model_needs_is_downloaded(look: Look, hub: Any, files: Any, source: str, tmp_path: Path) -> None:
    output = look("download", "o/m", "--source", source, "--to", "there", "--json")
    assert output.exit_code == 0
    assert json.loads(output.stdout) == {"id": "o/m", "folder": "there"}
    assert sorted(path.name for path in Path("there").iterdir() if path.is_file()) == [
        "config.json",
        NAME,
        "tokenizer.json",
    ]
    assert hub.sent["x.py"] == 0


def test_the_catalogue_says_which_models_are_here(look: Look, hub: Any, files: Any, tmp_path: Path) -> None:
    def listed() -> dict[str, Any]:
        (node,) = (node for node in json.loads(look("list", "--json").stdout) if node["name"] == "qwen3-0.6b")
        return node

    known = {"id": "Qwen/Qwen3-0.6B", "name": "qwen3-0.6b", "parameters": 596049920, "context": 40960, "gated": False}
    assert listed() == known | {"folder": None}
    look("download", "qwen3-0.6b", "--source", "huggingface")
    folder = str(tmp_path / "store/Qwen/Qwen3-0.6B")
    assert listed() == known | {"folder": folder}
    assert "qwen3-0.6b" in look("list").stdout


BAD = [
    # words, exit code, what is said
    (["download", "o/none", "--source", "huggingface"], 2, "o/none: not on huggingface"),
    (["download", "../m"], 2, "'../m': is neither a model of the catalogue nor owner/name"),
    (["download", "qwen3-06b"], 2, "did you mean qwen3-0.6b?"),
    (["download", "o/m", "--source", "huggingface"], 1, "huggingface answered 500"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "code", "output"), BAD, ids=[" ".join(row[0]) for row in BAD])
def test_what_goes_wrong_is_said(words: list[str], code: int, output: str, look: Look, hub: Any, files: Any) -> None:
    hub.misbehave(NAME, *[Act("500")] * 12)
    found = look(*words)
    assert (found.exit_code, found.stdout) == (code, "")
    assert output in found.stderr and found.stderr.splitlines()[-1].startswith("✗ ")


@pytest.mark.parametrize(("source", "sent"), [("huggingface", math.inf), ("modelscope", 4_000_000)])
def test_ctrl_c_and_the_same_command_continues(
    source: str, sent: float, commands: Any, hub: Any, files: Any, tmp_path: Path, until: Any
) -> None:
    """ModelScope's client within the file, of 3 MB; tests/hubs/test_kills.py measures what is resumed."""
    rlrun, store = commands(tmp_path), tmp_path / "store"
    hub.bytes_per_s = 1e6
    hub.add("o/m", files, xet=True)
    words, env = ("model", "download", "o/m", "--source", source), {**os.environ, "RLRUN_MODELS": str(store)}
    process = rlrun.begin(*words, env=env)
    until(lambda: hub.sent[NAME] > 1_000_000)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=600) == 130
    assert "✗ stopped; run the same command to continue" in (tmp_path / "said").read_text()
    hub.bytes_per_s = None
    again = rlrun(*words, env=env)
    assert again.returncode == 0 and "Traceback" not in again.stderr
    assert (store / "o/m" / NAME).read_bytes() == files[NAME] and hub.sent[NAME] < sent
    assert hub.sent["tokenizer.json"] == len(files["tokenizer.json"])


# ---- commands of README.md and docs/ that need a hub or a model


def test_a_command_of_a_page_does_what_it_says(
    page: Any, file_command: str, files: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in page.files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for name in ("BASE", "ONE", "OTHER"):
        Path(name).mkdir()
        save_file({"w": np.full((4, 8), len(name), np.float32)}, Path(name, NAME), metadata={"format": "pt"})
        Path(name, "config.json").write_text(json.dumps(CONFIG))
    ran = CliRunner().invoke(app, shlex.split(file_command)[1:])
    assert ran.exit_code == 0, ran.output
    if "download" in file_command:
        assert (tmp_path / "store/Qwen/Qwen3-0.6B" / NAME).read_bytes() == files[NAME]
    if "--out MERGED" in file_command:
        assert (tmp_path / "MERGED" / NAME).is_file()


@pytest.mark.slow
@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.long)])
def test_own_data_to_a_model_one_can_talk_to(all_pages: Any, hub: Any, tmp_path: Path, whole: bool) -> None:
    """README's path: its files as they stand there, its commands in their order, a small model under the name of the
    large one. The first run remembers what was asked and what it took, and does not go on with another model. The
    second block goes on from it with a reward; tests/test_printed_commands.py plans its commands."""
    (readme,) = (page for page in all_pages if page.sequences)  # another page would need a test of its own
    assert readme.path.name == "README.md"
    launch_model.Model().save(tmp_path / "small")
    hub.add("Qwen/Qwen3-0.6B", {file.name: file.read_bytes() for file in (tmp_path / "small").iterdir()})
    home = tmp_path / "home"
    home.mkdir()
    for name, text in readme.files.items():
        (home / name).write_text(text)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}  # in a small model more threads only wait for each other
    assert len(readme.sequences) == 2
    for block in readme.sequences[: 1 + whole]:
        shell = ["bash", "-e", "-c", block]
        ran = subprocess.run(shell, cwd=home, env=env, capture_output=True, text=True, timeout=300)
        assert ran.returncode == 0, ran.stdout + ran.stderr
    assert (home / "sums-model" / "model.safetensors").is_file() == whole
    run, stored = home / "runs" / "rlrun" / "ada", tmp_path / "store/Qwen/Qwen3-0.6B"
    assert yaml.safe_load((run / "spec.yaml").read_text())["model"]["path"] == "Qwen/Qwen3-0.6B", "as it was asked"
    found = json.loads((run / "prepared.json").read_text())
    assert (found["model"]["path"], found["directory"]) == (str(stored), str(home))
    locked = json.loads((run / "lock.json").read_text())["model"]
    assert (locked["repo"], locked["commit"]) == ("Qwen/Qwen3-0.6B", "c" * 40) and len(locked["files"]) == 64
    shutil.rmtree(run / "checkpoints")  # it would go on from the model itself, which is now another one
    manifest = stored / ".rlrun/manifest.json"
    manifest.write_text(re.sub("[0-9a-f]{64}", "e" * 64, manifest.read_text(), count=1))
    again = subprocess.run(["rlrun", "train", "--resume", "ada"], cwd=home, env=env, capture_output=True, text=True)
    changed = "✗ model: is not what the run began with (its files differ); use the original model\n"
    assert (again.returncode, again.stderr) == (2, changed)
    assert (home / "runs" / "rlrun" / "sums" / "checkpoints" / "step_000020").is_dir() == whole
