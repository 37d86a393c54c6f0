"""README's commands that need a hub or a model, run as a person would, where the hub is on this machine."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner

from launcher.cli.main import app

README = (Path(__file__).parents[2] / "README.md").read_text()
BLOCKS = re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
COMMANDS = [
    line.partition("#")[0].strip() for block in BLOCKS for line in block.splitlines()
    if re.match(r"rlrun (data|model|reward|checkpoints) ", line)
]  # fmt: skip
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


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_readme_does_what_it_says(
    command: str, hub: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for place, name in enumerate(("BASE", "ONE", "OTHER")):
        files = model(tmp_path / name, place)
    hub.add("Qwen/Qwen3-0.6B", files)
    ran = CliRunner().invoke(app, shlex.split(command)[1:])
    assert ran.exit_code == 0, ran.output
    if "download" in command:
        assert (tmp_path / "store/Qwen/Qwen3-0.6B/model.safetensors").read_bytes() == files["model.safetensors"]
    if "--out MERGED" in command:
        assert (tmp_path / "MERGED/model.safetensors").is_file()


def test_there_are_such_commands() -> None:
    assert {"list", "size", "download", "merge"} <= {command.split()[2] for command in COMMANDS}
