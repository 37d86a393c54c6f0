"""`rlrun` commands on the head of a Ray cluster, submitted to its job server (ray[default]).

    remote       composes the shell command, and starts `job_client`; loads no Ray
    job_client   a subprocess: submits it, prints its output, ends with its exit code

Everyone with access to the cluster can read the commands of all jobs, so no secret may be in one.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from launcher.clusters.nodes.home import OTHER_CLUSTER, Reach, reach
from launcher.clusters.nodes.processes import DETACHED, MARK, PYTHON, serves_jobs
from launcher.clusters.ray.job import CARRIED, NODE_OWNED
from launcher.clusters.ray.listing import check_address
from launcher.core.problems import Problem, Problems
from launcher.core.redaction import is_secret_name, redact

INSTALL = "pip install 'rlrun[jobs]' here and on its head"
NO_FOLDER, NO_RLRUN = 66, 67
"""Exit codes of a job on a head that does not see the run's folder, or has no rlrun."""
ASKED = "rlrun-asks-"
"""Prefix of the ids of queries, whose jobs are deleted afterwards."""
OUTPUT, ERRORS, EXIT = "output", "errors", "exit"
OF_HEAD = ("RLRUN_CLUSTER", "PYTHONUNBUFFERED", *NODE_OWNED)
"""Variables for which the head has its own values."""
ENTRYPOINT = """\
chmod 600 /proc/self/fd/1
here=${python_name}
for name in $(env | sed -n 's/^\\(RAY_[A-Za-z0-9_]*\\)=.*/\\1/p'); do
    case $name in RAY_ADDRESS | RAY_AUTH_*) ;; *) unset "$name" ;; esac
done
unset OMP_NUM_THREADS PYTHONBREAKPOINT {mark} {python_name}
[ "$CUDA_VISIBLE_DEVICES" ] || unset CUDA_VISIBLE_DEVICES
export {variables}
for python in {python} "$here" python3; do
    "$python" -P -c "import launcher" 2> /dev/null || continue
    {before}file=$(mktemp) && exec 4> "$file" 5< "$file" && rm "$file"
    printf '\\n%s {output}\\n' {job}
    "$python" -P -m {words} 2>&4 4>&- 5<&-; code=$?
    printf '\\n%s {errors}\\n' {job}; cat <&5
    printf '\\n%s {exit} %s\\n' {job} $code
    exit $code
done
exit {no_rlrun}"""
"""Variables that Ray sets for its jobs are removed; the command's output is marked, as Ray writes to the same log.
"""


@dataclass(frozen=True)
class JobCommand:
    job: str
    """Id of the job."""
    entrypoint: str
    """Its shell command."""
    claim: Path | None = None
    """File of a detached command: the job begins by removing it, and ends at once where it is missing."""


def command(words: Sequence[str], variables: Mapping[str, str]) -> JobCommand:
    """The query `python -m words`, such as `launcher status NAME`."""
    job = f"{ASKED}{words[1]}-{secrets.token_hex(4)}"
    return JobCommand(job, _entrypoint(job, words, variables, ""))


def check_words(words: Sequence[str]) -> None:
    """Raises `Problems` where a word of a job, or the name of this working directory, is a secret."""
    if any(redact(word) != word for word in (*words, os.getcwd())):
        got = "an argument, or this folder's name, is a secret, which all who use the cluster could read in the job"
        raise Problems(Problem("-d", got, "use an environment variable on the cluster's head, or leave out -d"))


def detached_command(folder: Path, words: Sequence[str]) -> JobCommand:
    """`python -m words` in this working directory and with this shell's variables, for a run in `folder`. Raises
    `Problems` as `check_words` does."""
    check_words(words)
    folder, key = folder.absolute(), secrets.token_hex(4)
    job = "-".join(re.findall("[A-Za-z0-9_]+", f"rlrun/{folder.parent.name}/{folder.name}/{key}"))
    claim = folder / f".detached-{key}"
    begin = f"cd {shlex.quote(os.getcwd())} && rm {shlex.quote(str(claim))} || exit {NO_FOLDER}"
    variables = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(CARRIED) and name not in OF_HEAD and not is_secret_name(name) and redact(value) == value
    }
    entrypoint = _entrypoint(job, words, {**variables, DETACHED: "1"}, f"{begin}; umask {_umask():03o}; ")
    return JobCommand(job, entrypoint, claim)


def _entrypoint(job: str, words: Sequence[str], variables: Mapping[str, str], before: str) -> str:
    environment = {**variables, "PYTHONUNBUFFERED": "1"}
    exports = " ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items() if name.isidentifier())
    return ENTRYPOINT.format(
        job=job, before=before, variables=exports, python=shlex.quote(sys.executable), python_name=PYTHON, mark=MARK,
        words=shlex.join(words), output=OUTPUT, errors=ERRORS, exit=EXIT, no_rlrun=NO_RLRUN,
    )  # fmt: skip


def _umask() -> int:
    """This process's umask, which the system tells only when it is set."""
    os.umask(mask := os.umask(0o077))
    return mask


def become(address: str | None, words: Sequence[str], columns: int) -> NoReturn:
    """Replace this process by `rlrun words` on the head. Raises `Problems` where no job can be submitted."""
    reached = reach(address)
    check_address(reached.address)
    if not serves_jobs():
        raise Problems(Problem("cluster", "the client of a job server is not installed", INSTALL, "not-installed"))
    asked = command(["launcher", *words], {"COLUMNS": str(columns)})
    sys.stdout.flush()
    os.execve(sys.executable, _argv(reached, asked), _environment(reached))


def start(reached: Reach, asked: JobCommand) -> subprocess.Popen[str]:
    """The client of a detached command, with its output and its exit code. SIGTERM stops the job;
    SIGKILL, or a closed pipe, ends the client only."""
    if asked.claim:
        asked.claim.touch(mode=0o600, exist_ok=False)
    return subprocess.Popen(
        _argv(reached, asked), env=_environment(reached), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
    )  # fmt: skip


def _argv(reached: Reach, asked: JobCommand) -> list[str]:
    client = [sys.executable, "-P", "-m", "launcher.clusters.ray.job_client", reached.address]
    return [*client, asked.job, asked.entrypoint, *([str(asked.claim)] if asked.claim else [])]


def _environment(reached: Reach) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name not in OTHER_CLUSTER}
    return {**inherited, **reached.client_env, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONUNBUFFERED": "1"}
