"""Help, plan and lists answer at once: they never load torch and its like."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from launch_model import Model

from launcher.models import dry_load

HEAVY = ["torch", "transformers", "tokenizers", "safetensors", "ray", "vllm", "pyarrow", "pandas", "httpx2"]
WORDS = ["algorithm=grpo", "model=tiny", "data=reverse", "sampler.n=4"]
LOOK = f"""
import json, sys
from launcher.cli.main import app
for words in json.loads(sys.argv[1]):
    try:
        app(words)
    except SystemExit as end:
        code = end.code
    print("loaded", code, [name for name in {HEAVY} if name in sys.modules], words)
"""
COMMANDS = [
    ["--help"], ["train", "--help"], ["plan", *WORDS], ["plan", "--json", *WORDS], ["runs"], ["show", "r"],
    ["config", "show"], ["config", "show", "engine"], ["config", "diff", "r", "r"],
    ["watch", "r"], ["logs", "r"], ["stop", "r"], ["checkpoints", "r"], ["model", "--help"],
    ["model", "merge", "--help"], ["rerun", "--help"], ["plan", "-m", *WORDS, "seed=0,1"],
    ["plan", "algorithm=sft", "model=tiny", "data=files", "data.train_files=a.jsonl", "data.train_batch_size=1"],
]  # fmt: skip


def loaded_by(commands: list[list[str]], folder: Path, before: str = "") -> list[str]:
    """After each of the commands, which one process runs, its exit code and what it and those before it have loaded."""
    words = [sys.executable, "-c", before + LOOK, json.dumps(commands)]
    ran = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return [line for line in ran.stdout.splitlines() if line.startswith("loaded ")]


def test_nothing_heavy_is_loaded(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "p" / "r"
    run.mkdir(parents=True)
    (run / "spec.yaml").write_text("")
    (tmp_path / "a.jsonl").write_text('{"prompt": "p", "response": "r"}\n')
    assert loaded_by(COMMANDS, tmp_path) == [f"loaded 0 [] {words}" for words in COMMANDS]


def test_a_models_folder_is_compared_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found of its weights is remembered: neither this process nor another loads torch for them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    Model().save(tmp_path / "m")
    with monkeypatch.context() as once:
        once.setattr(dry_load, "_in_a_process", lambda asked: {"expected": 21})
        assert dry_load.dry_load(tmp_path / "m", "AutoModelForCausalLM")
    words = ["plan", "algorithm=sft", "model=hf", "model.path=m", "data=reverse"]
    fails_if_asked = "import launcher.models.dry_load as d; d._in_a_process = None\n"
    (line,) = loaded_by([words], tmp_path, fails_if_asked)
    assert line == f"loaded 0 ['safetensors'] {words}"  # it checks headers
