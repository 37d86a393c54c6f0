"""`rlrun model` as a person calls it, against a hub on this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from launcher.cli.main import app

CONFIG = {
    "model_type": "qwen3", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100, "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}  # fmt: skip
COUNT = 100 * 32 + 32 + 2 * (2 * 32 + 2 * 8 + 2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48)
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
def test_download_show_and_size(look: Look, hub: Any, files: Any, source: str, tmp_path: Path) -> None:
    output = look("download", "o/m", "--source", source, "--to", "there", "--json")
    assert output.exit_code == 0
    node = json.loads(output.stdout)
    assert (node["source"], node["parameters"], node["context"]) == (source, COUNT, 64)
    assert [file["name"] for file in node["files"]] == ["config.json", NAME, "tokenizer.json"]
    assert hub.sent["x.py"] == 0
    assert json.loads(look("show", "there", "--json").stdout) == node | {"folder": "there"}
    shown = look("show", "there", "--verify")
    assert shown.exit_code == 0 and f"{COUNT:,}" in shown.stdout and f"{source} o/m at" in shown.stdout
    size = json.loads(look("size", "there", "--json", "--lora-rank", "2").stdout)
    assert size["weights_bytes"] == {"float32": 4 * COUNT, "bfloat16": 2 * COUNT, "float8": COUNT}
    assert size["train_bytes"]["float32"] == 16 * COUNT
    assert size["kv_cache_bytes_per_token"] == 2 * 2 * 2 * 8 * 2
    assert size["lora"]["parameters"] == 2 * 2 * (2 * (32 + 32) + 2 * (32 + 16) + 3 * (32 + 48))
    assert "kv_cache_bytes_per_token" in look("size", "there").stdout


BAD = [
    # words, exit code, what is said
    (["download", "o/none", "--source", "huggingface"], 2, "o/none: not on huggingface"),
    (["download", "o/gated"], 2, "o/gated: gated on huggingface"),
    (["download", "o/m", "--revision", "../v9"], 2, "revision: got '../v9'"),
    (["download", "../m"], 2, "'../m': is neither a model of the catalogue nor owner/name"),
    (["download", "qwen3-06b"], 2, "did you mean qwen3-0.6b?"),
    (["download", "o/pickle", "--source", "modelscope"], 2, "o/pickle on modelscope: has its weights as"),
    (["show", "o/m"], 2, "'o/m': is not here and not in the catalogue"),
    (["show", "."], 2, ".: holds no config.json; use a model's folder"),
    (["show", "~nobody42/x"], 2, "~nobody42/x: nobody here has such a home folder"),
    (["download", "o/cut", "--source", "huggingface"], 1, "huggingface answered 500"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "code", "output"), BAD, ids=[" ".join(row[0]) for row in BAD])
def test_what_goes_wrong_is_said(
    words: list[str],
    code: int,
    output: str,
    look: Look,
    hub: Any,
    files: Any,
    act: Any,
) -> None:
    hub.add("o/gated", files, gated=True)
    hub.add("o/pickle", {"config.json": b"{}", "pytorch_model.bin": b"p"})
    hub.add("o/cut", {"config.json": b"{}", "tokenizer.json": b"{}", NAME: b"weights"})
    hub.misbehave(NAME, *[act("500")] * (12 if "o/cut" in words else 0))
    found = look(*words)
    assert (found.exit_code, found.stdout) == (code, "")
    assert output in found.stderr and found.stderr.splitlines()[-1].startswith("✗ ")


@pytest.mark.parametrize(("source", "resumes"), [("xet", False), ("modelscope", True)])
def test_ctrl_c_and_the_same_command_continues(
    source: str, resumes: bool, commands: Any, hub: Any, files: Any, tmp_path: Path, until: Any
) -> None:
    rlrun = commands(tmp_path)
    hub.bytes_per_s = 1e6
    environment = {**os.environ, "RLRUN_MODELS": str(tmp_path / "store")}
    hub.add("o/m", files, xet=source == "xet")
    words = ("model", "download", "o/m", "--source", "huggingface" if source == "xet" else source)
    process = rlrun.begin(*words, env=environment)
    until(lambda: hub.sent[NAME] > 1_000_000)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    assert "✗ stopped; run the same command to continue" in (tmp_path / "said").read_text()
    hub.bytes_per_s = None
    again = rlrun(*words, env=environment)
    assert again.returncode == 0 and "Traceback" not in again.stderr
    assert (tmp_path / "store/o/m" / NAME).read_bytes() == files[NAME]
    assert hub.sent["tokenizer.json"] == len(files["tokenizer.json"])
    assert (hub.sent[NAME] < 1.1 * len(files[NAME]) + 100_000) == resumes


def test_help_loads_no_hub(tmp_path: Path) -> None:
    """Neither help nor the catalogue waits for a client library's network code."""
    code = (
        "import sys; from launcher.cli.main import app\n"
        "try:\n    app(['model', '--help'])\nexcept SystemExit: pass\n"
        "print([name for name in ('huggingface_hub', 'modelscope_hub', 'httpx2', 'torch') if name in sys.modules])"
    )  # fmt: skip
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert ran.stdout.splitlines()[-1] == "[]", ran.stderr
