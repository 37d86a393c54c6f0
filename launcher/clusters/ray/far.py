"""`python -m launcher.clusters.ray.far ADDRESS WORDS...`: `rlrun WORDS` on a cluster's head, as if it were typed there.

What it says comes here as it is said; this process ends with its exit code.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from launcher.foreign import Fault, attempt

HEAD = "node:__internal_head__"  # a resource that Ray gives to that node alone
LOOKS = ("watch", "logs")  # which end well whenever they are ended

Said = str | tuple[int, str]
"""A line, and at the end the exit code with all that went to the standard error."""


def main(address: str, words: Sequence[str]) -> int:
    joined = attempt(partial(ray.init, address=address, log_to_driver=False, logging_level="ERROR"))
    if isinstance(joined, Fault):
        return _failed(f"{address}: {joined.reason}; a machine that is one of its nodes would do")
    heads = [node["NodeID"] for node in ray.nodes() if node["Alive"] and HEAD in node["Resources"]]
    if not heads:
        return _failed(f"{address}: the cluster's head is gone")
    at = NodeAffinitySchedulingStrategy(heads[0], soft=False)
    task = ray.remote(num_cpus=0, max_retries=0, num_returns="streaming")(_by_value())
    said = task.options(scheduling_strategy=at).remote(list(words), os.environ.get("COLUMNS", ""))
    heard = attempt(partial(_pass_on, said, words[0] in LOOKS))
    if isinstance(heard, Fault) and heard.kind == "BrokenPipeError":  # `| head` has read what it wanted
        return 0
    return _failed(f"{address}: {heard.reason}") if isinstance(heard, Fault) else heard


def _failed(why: str) -> int:
    print(f"✗ {why}", file=sys.stderr)
    return 1


def _pass_on(said: Iterator[ray.ObjectRef], looks: bool) -> int:
    try:
        for each in said:
            heard: Said = ray.get(each)
            if not isinstance(heard, str):
                sys.stderr.write(heard[1])
                return heard[0]
            sys.stdout.write(heard)
            sys.stdout.flush()
    except KeyboardInterrupt:
        ray.cancel(said)
        return 0 if looks else 130
    return 1


def _by_value() -> Callable[[Sequence[str], str], Iterator[Said]]:
    """A function that no node has to have: Ray ships the code of one that is made in another."""

    def run(words: Sequence[str], columns: str) -> Iterator[Said]:
        env = {**os.environ, "PYTHONUNBUFFERED": "1", **({"COLUMNS": columns} if columns else {})}
        argv = [sys.executable, "-P", "-m", "launcher", *words]
        wrong = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115  a pipe would fill
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=wrong, encoding="utf-8", errors="replace",
            env=env,
        )  # fmt: skip
        try:
            for line in process.stdout or ():  # noqa: UP028  Ray sends to what it iterates, which a file does not take
                yield line
            process.wait()
            wrong.seek(0)
            yield process.returncode, wrong.read()
        finally:  # also when nobody listens any more
            process.kill()
            process.wait()

    return run


if __name__ == "__main__":
    try:
        code = main(sys.argv[1], sys.argv[2:])
    except KeyboardInterrupt:
        code = 130
    sys.stderr.flush()
    os._exit(code)  # ray.shutdown may wait for a node that does not answer
