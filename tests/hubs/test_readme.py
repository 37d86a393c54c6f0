"""Commands of README.md and docs/ that need a hub or a model, run as a person would; the hub is on this machine."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import launch_model
import numpy as np
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner

from launcher.cli.main import app

CONFIG = {"model_type": "qwen3", "hidden_size": 8, "num_hidden_layers": 1, "vocab_size": 4}


def model(folder: Path, seed: int) -> dict[str, bytes]:
    """A small model in a folder, and its files."""
    folder.mkdir()
    draw = np.random.default_rng(seed)
    weights = {
        "a.weight": draw.normal(size=(4, 8)).astype(np.float32),
        "b.weight": draw.normal(size=8).astype(np.float32),
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_text("{}")
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_command_of_a_page_does_what_it_says(
    page: Any, file_command: str, hub: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in page.files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for place, name in enumerate(("BASE", "ONE", "OTHER")):
        files = model(tmp_path / name, place)
    hub.add("Qwen/Qwen3-0.6B", files)
    ran = CliRunner().invoke(app, shlex.split(file_command)[1:])
    assert ran.exit_code == 0, ran.output
    if "download" in file_command:
        assert (tmp_path / "store/Qwen/Qwen3-0.6B/model.safetensors").read_bytes() == files["model.safetensors"]
    if "--out MERGED" in file_command:
        assert (tmp_path / "MERGED/model.safetensors").is_file()


@pytest.fixture
def small_model(tmp_path: Path) -> dict[str, bytes]:
    """Files of a model of two layers with a tokenizer and a chat template, which can be trained."""
    launch_model.Model().save(tmp_path / "small")
    return {file.name: file.read_bytes() for file in (tmp_path / "small").iterdir()}


@pytest.mark.slow
def test_own_data_to_a_model_one_can_talk_to(
    all_pages: Any, hub: Any, tmp_path: Path, small_model: dict[str, bytes]
) -> None:
    """README's path: its files as they stand there, its commands in their order, a small model under the name of the
    large one."""
    (readme,) = (page for page in all_pages if page.path.name == "README.md")
    hub.add("Qwen/Qwen3-0.6B", small_model)
    home = tmp_path / "home"
    home.mkdir()
    for name, text in readme.files.items():
        (home / name).write_text(text)
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    assert len(readme.sequences) == 2
    for block in readme.sequences:
        shell = ["bash", "-e", "-c", block]
        ran = subprocess.run(shell, cwd=home, env=env, capture_output=True, text=True, timeout=300)
        assert ran.returncode == 0, ran.stdout + ran.stderr
    assert (home / "sums-model" / "model.safetensors").is_file()
    assert (home / "runs" / "rlrun" / "sums" / "checkpoints" / "step_000051").is_dir()


def test_other_pages_have_no_such_sequence(all_pages: Any) -> None:
    """They would need a test of their own."""
    assert [page.path.name for page in all_pages if page.sequences] == ["README.md"]
