"""A command handed over to a running cluster as a Ray job, whose job server (ray[default]) starts it on the head.

runs/<project>/<experiment>/detached.sh     the command; what it says goes to detached.log beside it

The words stand in that file and not in the job itself: those whom the cluster lets in can read jobs, of all users.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from launcher.clusters.nodes.reach import reach
from launcher.files import write_whole
from launcher.problems import Problems
from launcher.secrets import blotted

NO_JOBS, NO_FOLDER = 69, 66  # exit codes of `follow`'s process: the cluster takes no jobs; its head sees no script
SCRIPT = """\
umask 077
exec </dev/null >>{log} 2>&1
rm -f "$0"
cd {cwd} || exit
python={python}
[ -x "$python" ] || python=python3
export PYTHONUNBUFFERED=1
exec "$python" -P -m {words}
"""


def hand_over(folder: Path, words: Sequence[str], address: str, log: int) -> subprocess.Popen[bytes]:
    """Have `python -m words` run on the head of the cluster at `address`. What comes back is a process (of
    `launcher.clusters.ray.jobs`) that ends as the job does, or with `NO_JOBS` or `NO_FOLDER`; SIGTERM ends the job, and
    SIGKILL ends the process only. What it has to say goes to the open file `log`.

    Raises `Problems` where this machine is in no cluster and `address` names none, or a word is a secret.
    """
    reached, whole = reach(address), folder.absolute()
    script = SCRIPT.format(
        cwd=shlex.quote(os.getcwd()), python=shlex.quote(sys.executable), words=shlex.join(words),
        log=shlex.quote(str(whole / "detached.log")),
    )  # fmt: skip
    if blotted(script) != script:
        raise Problems(["a word holds a secret, which would be written down; its variable, set on the head, would do"])
    write_whole(whole / "detached.sh", script)
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "launcher.clusters.ray.jobs", reached.address, str(whole)],
        env={**os.environ, **reached.env, "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
    )  # fmt: skip
