"""A cluster's job server (ray[default]), which begins commands on the head.

Source: Ray's Jobs API, ray.job_submission.JobSubmissionClient, which asks the head at the cluster's address where the
server is.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Callable
from functools import partial
from typing import TypeVar
from urllib.parse import urlsplit

from ray.dashboard.utils import get_address_for_submission_client
from ray.job_submission import JobDetails, JobStatus, JobSubmissionClient

from launcher.clusters.nodes.ray_start import PYTHON
from launcher.core import machine
from launcher.core.problems import error_message
from launcher.core.user_code import CallFailure, try_call

T = TypeVar("T")
KNOCK_S, ANSWER_S, SUBMIT_S = 3.0, 20.0, 90.0
NO_RLRUN = 67  # exit code of a job on a head without it
MOST = 20  # lines of what Ray says of a job that failed
BEGIN = """\
for python in {here} "${name}" python3; do
    "$python" -P -c "import {module}" 2> /dev/null && exec "$python" -P -m {words}
done
exit {no_rlrun}"""


def client(address: str) -> JobSubmissionClient | CallFailure:
    host = address.rpartition(":")[0]
    for name in ("no_proxy", "NO_PROXY"):  # what goes there is the token, too
        os.environ[name] = ",".join(filter(None, [os.environ.get(name), host]))
    try:  # where nothing listens, Ray takes two minutes to say so
        machine.check_listening(address, KNOCK_S)
    except (OSError, ValueError) as error:
        return CallFailure(error_message(error))
    found = answer(partial(_client, address, host))
    return CallFailure(found) if isinstance(found, str) else found


def _client(address: str, host: str) -> JobSubmissionClient | str:
    """Why not, where it would be another's: a head that was told no other host says `127.0.0.1` to all."""
    url: str = get_address_for_submission_client(address)
    if machine.is_this_machine(urlsplit(url).hostname or "") and not machine.is_this_machine(host.strip("[]")):
        return "its job server answers on its head alone; ray start --dashboard-host would open it"
    return JobSubmissionClient(url)


def answer(ask: Callable[[], T], seconds: float = ANSWER_S) -> T | CallFailure:
    """Ray's client waits for an answer without end, and may take the first alarm for an error of its own."""
    signal.signal(signal.SIGALRM, _too_long)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
        return try_call(ask)
    except TimeoutError as error:
        return CallFailure(str(error))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _too_long(*_: object) -> None:
    raise TimeoutError("no answer")


def entrypoint(module: str, *words: str) -> str:
    """`python -m module words`, by this Python where it is on the head, too, else by that of the head's rlrun."""
    here, typed = shlex.quote(sys.executable), shlex.join([module, *words])
    return BEGIN.format(here=here, name=PYTHON, module=module, words=typed, no_rlrun=NO_RLRUN)


def ended(found: JobDetails) -> tuple[int, str]:
    """The exit code of a job that has, and Ray's reason where it is not by the job's own doing."""
    code, why = found.driver_exit_code, ""
    if found.status == JobStatus.STOPPED:
        return 128 + signal.SIGTERM, why
    if found.status == JobStatus.FAILED and (code is None or code < 0):
        why = "\n".join((found.message or "the job failed").splitlines()[-MOST:])
    if code is None:
        return 0 if found.status == JobStatus.SUCCEEDED else 1, why
    return machine.shell_exit_code(code), why
