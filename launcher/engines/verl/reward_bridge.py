"""`compute_score` for verl: asks a process that has rlrun to score each answer. It runs in verl's environment, with the
standard library alone, one copy in each of verl's reward workers.

    verl's worker -> {"response": ..., "ground_truth": ..., "data_source": ..., "extra_info": {...}}   a line of JSON
    rlrun's       -> {"score": 1.0, "acc": 1.0}
"""

from __future__ import annotations

import atexit
import json
import subprocess
import threading
from typing import Any

_lock = threading.Lock()
_scorers: dict[str, subprocess.Popen[str]] = {}


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Any = None,
    *,
    python: str,
    folder: str,
    **_: Any,
) -> dict[str, float]:
    """The score of one answer by the reward of the run in `folder`; `python` runs rlrun. Raises `RuntimeError` where
    that process ends."""
    request = {"response": solution_str, "ground_truth": ground_truth, "data_source": data_source}
    line = json.dumps({**request, "extra_info": extra_info}, default=_to_json)
    with _lock:
        scorer = _scorers.get(folder)
        if scorer is None or scorer.poll() is not None:
            scorer = _scorers[folder] = _start(python, folder)
        assert scorer.stdin and scorer.stdout
        scorer.stdin.write(line + "\n")
        scorer.stdin.flush()
        answer = scorer.stdout.readline()
    if not answer:
        raise RuntimeError(f"the process that scores answers ended with exit code {scorer.wait()}; its log is above")
    scores: dict[str, float] = json.loads(answer)
    return scores


def _start(python: str, folder: str) -> subprocess.Popen[str]:
    command = [python, "-P", "-m", "launcher.engines.verl.score", folder]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8")
    atexit.register(process.kill)
    return process


def _to_json(value: Any) -> Any:
    """The JSON value of NumPy's numbers and arrays, which verl's rows hold."""
    return value.tolist() if hasattr(value, "tolist") else str(value)
