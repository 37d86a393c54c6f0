"""Plant 29 secrets, run real commands that meet them, and look for each in all that was written or said:
`python benchmarks/canaries.py`.

Secrets lie in the environment, in words, URLs, config files, rows, in what a reward's function, a training process, its
children and servers say, and in a run that somebody else wrote. Each is looked for as it is, by its first half, in a
URL's and in base64's letters: in every file below a home of its own, in what the commands print, and in the command
lines of the processes that they start. What was planted lies outside that home. Ends with 1 when one is found.
"""

from __future__ import annotations

import base64
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, quote_plus

from canary_inputs import CANARIES, Canary, commands, environment, plant
from local_hub import serving
from rich.console import Console
from rich.table import Table
from watching import tree

RLRUN = [sys.executable, "-m", "launcher"]
ROOT = Path(__file__).parents[1]


def forms(value: str) -> Iterator[bytes]:
    """How it may be found: a half of it would be a leak, too, and where it stands in base64 it may begin anywhere."""
    lines = [line for line in value.splitlines() if not line.startswith("-----")]
    for plain in lines:
        half = plain[: max(len(plain) // 2, 10)]
        yield from (text.encode() for text in (plain, half, quote(plain, safe=""), quote_plus(plain)))
        for before in range(3):
            text = base64.b64encode(bytes(before) + plain.encode())
            inner = text[-(-8 * before // 6) : 8 * (before + len(plain)) // 6]
            yield from (inner, inner.replace(b"+", b"-").replace(b"/", b"_"))


@dataclass
class Seen:
    """All that could be read afterwards, by where it was."""

    texts: dict[str, bytes] = field(default_factory=dict)

    def found(self, canary: Canary) -> list[str]:
        wanted = set(forms(canary.value))
        return [place for place, text in self.texts.items() if any(form in text for form in wanted)]


def command_lines(process: subprocess.Popen[bytes], seen: dict[int, bytes]) -> None:
    """What `ps` shows of the processes that a command starts; its own line is what a person typed."""
    while process.poll() is None:
        for pid in tree(process.pid)[1:]:
            try:
                seen[pid] = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
        time.sleep(0.05)


def run(name: str, words: Sequence[str], home: Path, variables: dict[str, str], seen: Seen) -> int:
    lines: dict[int, bytes] = {}
    process = subprocess.Popen(
        [*RLRUN, *words], cwd=home, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    watch = threading.Thread(target=command_lines, args=(process, lines))
    watch.start()
    output, complained = process.communicate(timeout=300)
    watch.join()
    shown = b"\n".join(lines.values())
    seen.texts |= {f"output of {name}": output, f"errors of {name}": complained, f"ps of {name}": shown}
    return process.returncode


def files(home: Path) -> dict[str, bytes]:
    """Names are looked at, too."""
    found = [path for path in home.rglob("*") if not path.is_symlink()]
    texts = {path.relative_to(home).as_posix(): path.read_bytes() for path in found if path.is_file()}
    return {"names of files": "\n".join(map(str, found)).encode(), **texts}


def measured(folder: Path) -> tuple[Seen, list[tuple[str, int, int]]]:
    """What was seen, and name, exit code and expected exit code of each command."""
    home, given = folder / "home", folder / "given"
    home.mkdir()
    seen, ended = Seen(), []
    with serving() as hub, plant(given, hub) as address:
        variables = environment(home, given, hub, ROOT)
        for command in commands(given, address):
            code = run(command.name, command.words, home, variables, seen)
            ended.append((command.name, code, command.code))
    seen.texts |= files(home)
    return seen, ended


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        seen, ended = measured(Path(folder))
        table = Table("canary", "planted", "found in")
        leaks = 0
        for canary in CANARIES:
            places = seen.found(canary)
            leaks += bool(places)
            table.add_row(canary.name, canary.where, ", ".join(places) or "0")
        Console(width=140).print(table)
        wrong = [f"{name} ended with {code}, expected {expected}" for name, code, expected in ended if code != expected]
        size = sum(map(len, seen.texts.values()))
        print(f"{len(CANARIES)} canaries, {leaks} found; {len(ended)} commands in {time.monotonic() - began:.0f} s,"
              f" {len(seen.texts)} texts and files of {size:,} bytes", *wrong, sep="\n")  # fmt: skip
    return 1 if leaks or wrong else 0


if __name__ == "__main__":
    os.environ.pop("COLUMNS", None)
    sys.exit(main())
