"""`rlrun WORDS` on this machine for somebody elsewhere, to whom all that it says is sent.

`python -m launcher.clusters.ray.told WORDS...` writes it in lines of JSON, among which others may write theirs.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence

MARK = "@rlrun told "
"""Begins those lines."""

Said = str | tuple[int, str]
"""A line, and at the end the exit code with all that went to the standard error."""


def typed(words: Sequence[str], columns: str) -> Iterator[Said]:
    """The command ends with who iterates."""
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
    finally:
        process.kill()
        process.wait()


def read(line: str) -> Said | None:
    """None for a line that is none of ours."""
    _, mark, text = line.partition(MARK)
    if not mark:
        return None
    said = json.loads(text)
    return said if isinstance(said, str) else (said[0], said[1])


def main(words: Sequence[str]) -> None:
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    if stat.S_ISREG(os.fstat(sys.stdout.fileno()).st_mode):  # the job's log: a run's own is nobody else's business
        os.fchmod(sys.stdout.fileno(), 0o600)
    for said in typed(words, os.environ.get("COLUMNS", "")):
        print(MARK + json.dumps(said), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
