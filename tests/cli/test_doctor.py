"""`rlrun doctor` as a person calls it: lines, JSON, exit codes; no secret is printed, nothing heavy loaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

CANARY = "canaryDontTell"
ENVIRONMENT = {
    "HF_TOKEN": CANARY, "WANDB_API_KEY": f"{CANARY}\n", "http_proxy": f"http://me:{CANARY}@127.0.0.1:9",
    "HF_ENDPOINT": f"http://me:{CANARY}@127.0.0.1:9", "RAY_AUTH_TOKEN": CANARY,
}  # fmt: skip
HEAVY = ["torch", "transformers", "tokenizers", "safetensors", "ray", "vllm", "pyarrow", "pandas"]
LOOK = f"""
import sys
from launcher.cli.main import app
try:
    app(sys.argv[1:])
except SystemExit as end:
    code = end.code
print("loaded", code, [name for name in {HEAVY} if name in sys.modules], file=sys.stderr)
"""


def test_this_machine(tmp_path: Path) -> None:
    """One run of all checks: what is wrong is reported, with the rest, and decides the exit code."""
    (tmp_path / "file").touch()
    env = {**os.environ, **ENVIRONMENT, "HOME": str(tmp_path)}  # no secret of the user's
    words = [sys.executable, "-c", LOOK, "doctor", "--json", "--root", "file/runs"]
    ran = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert ran.stderr.splitlines()[-1] == "loaded 1 []", ran.stderr
    assert "canary" not in (ran.stdout + ran.stderr).lower()
    reported = json.loads(ran.stdout)
    assert reported["ok"] is False
    levels = {one["subject"]: one["level"] for one in reported["results"]}
    late = {one["subject"] for one in reported["results"] if "did not load in" in one["message"]}  # on a busy machine
    failed = {what for what, level in levels.items() if level == "FAIL"}
    assert failed - late == {"run root"}, levels
    sound = {"python", "packages", *(() if late else ("torch",))}
    assert {what: levels.get(what) for what in sound} == dict.fromkeys(sound, "OK"), reported["results"]
    assert levels["temporary"] != "FAIL"  # how full a disk is belongs to the machine
    for one in reported["results"]:
        assert one["message"]
        assert bool(one["fix"]) == (one["level"] != "OK"), "every result that is not OK has a fix"
