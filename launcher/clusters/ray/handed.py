"""A command handed over to a running cluster as a Ray job, whose job server (ray[default]) begins it on the head.

    jobs.py, here            submits the job, and follows it until the run is taken up
    handed.py, on the head   is the job: it begins the command, and ends as that does

The command is no part of Ray: it is in a session of its own, and no child of the job's, which Ray ends with all its
children. So it lives on where the head dies, and is let save when somebody stops the job. What it is stands in
runs/<project>/<experiment>/.detached-<id>.json and not in the job itself, as those whom the cluster lets in can read
the jobs of all; what it says goes to detached.log beside it.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.clusters.nodes.processes import DETACHED
from launcher.clusters.nodes.ray_start import MARK, PYTHON
from launcher.clusters.nodes.reach import ELSEWHERE, Reach
from launcher.clusters.ray.job import CARRIED, PLACED
from launcher.core.problems import error_message
from launcher.core.redaction import is_secret_variable, redact

NO_JOBS = 69  # exit code of the process of `hand_over` where there is no job
OF_HEAD = ("RLRUN_CLUSTER", "PYTHONUNBUFFERED", *PLACED)
"""Variables that the head has of its own."""
OF_JOBS = ("OMP_NUM_THREADS", "PYTHONBREAKPOINT", MARK, PYTHON)
"""Variables that Ray and its node give their jobs, and that are no business of ours."""
OF_CLUSTER = ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
"""Those of Ray's own that are."""
ALONE = '(trap : TERM; "$@" >&2; echo $?) &'
"""Begins the command, waits for it as long as it takes to heed a signal, and says its exit code."""


def hand_over(folder: Path, words: Sequence[str], reached: Reach, log: int) -> subprocess.Popen[bytes] | None:
    """Have `python -m words` run on the head of the cluster that was `reached`. What comes back is a process (of
    `launcher.clusters.ray.jobs`) that ends as the job does, or with `NO_JOBS`; SIGTERM ends the job, and SIGKILL ends
    the process only. What it has to say goes to the open file `log`. None where a word is a secret.
    """
    if any(redact(word) != word for word in (*words, os.getcwd())):
        return None
    file = folder.absolute() / f".detached-{secrets.token_hex(4)}.json"
    node = {"words": list(words), "cwd": os.getcwd(), "env": _carried(os.environ), "umask": _umask()}
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as written:
        json.dump(node, written)
    ours = {name: value for name, value in os.environ.items() if name not in ELSEWHERE}
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "launcher.clusters.ray.jobs", reached.address, str(file)],
        env={**ours, **reached.asking, "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
    )  # fmt: skip


def _carried(shell: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in shell.items()
        if name.startswith(CARRIED) and name not in OF_HEAD and not is_secret_variable(name) and redact(value) == value
    }


def _umask() -> int:
    """Which of this shell's files others may read; it can only be asked for by setting it."""
    os.umask(mask := os.umask(0o077))
    return mask


def environment(job: Mapping[str, str], carried: Mapping[str, str]) -> dict[str, str]:
    """The command's, of what Ray gave the job and of the variables that came along."""
    own = {
        name: value
        for name, value in job.items()
        if name not in OF_JOBS and (name in OF_CLUSTER or not name.startswith("RAY_"))
    }
    if not own.get("CUDA_VISIBLE_DEVICES", "all"):  # a job asks for no GPU; its processes do
        del own["CUDA_VISIBLE_DEVICES"]
    return {**own, **carried, "PYTHONUNBUFFERED": "1"}


def main(file: Path) -> int:
    """The command's exit code; 137 where nobody was left to tell it."""
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    node: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    file.unlink()  # whoever submits sees by it that the job has begun
    log = os.open(file.parent / "detached.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    os.umask(node["umask"])
    command = [sys.executable, "-P", "-m", *node["words"]]
    env = {**environment(os.environ, node["env"]), DETACHED: "1"}
    try:
        process = subprocess.Popen(
            ["sh", "-c", ALONE, "sh", *command], cwd=node["cwd"], env=env,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        os.write(log, f"✗ {node['cwd']}, on the head: {error_message(error)}; a folder that it has would do\n".encode())
        return 2
    process.wait()  # its group, which bears its number, lives on
    signal.signal(signal.SIGTERM, lambda number, _: os.killpg(process.pid, number))
    if asked:
        os.killpg(process.pid, signal.SIGTERM)
    assert process.stdout
    code = process.stdout.read().strip()
    return int(code) if code else 137


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
