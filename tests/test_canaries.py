"""Secrets are found nowhere in what commands say and write: plans, lists and one crash of training here, all commands
with `make secrets`.

They lie in the environment, in words, URLs, config files, rows, in what a reward's function, a training process, its
children and servers say, and in a run that somebody else wrote. Each is looked for as it is, by its first half, in a
URL's and in base64's letters: in every file below a home of its own, in what the commands print, and in the command
lines of the processes that they start. What was planted lies outside that home.
"""

from __future__ import annotations

import base64
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from canary_inputs import CANARIES, Canary, commands, environment, plant
from local_hub import serving
from watching import tree

SOME = ("a plan with a server", "a plan with arguments", "wrong words", "a config of one's own", "their run",
        "their events", "a crash")  # fmt: skip
Texts = dict[str, bytes]
"""All that could be read afterwards, by where it was."""


def forms(value: str) -> Iterator[bytes]:
    """How it may be found: a half of it would be a leak, too, and where it stands in base64 it may begin anywhere."""
    for plain in (line for line in value.splitlines() if not line.startswith("-----")):
        half = plain[: max(len(plain) // 2, 10)]
        yield from (text.encode() for text in (plain, half, quote(plain, safe=""), quote_plus(plain)))
        for before in range(3):
            text = base64.b64encode(bytes(before) + plain.encode())
            inner = text[-(-8 * before // 6) : 8 * (before + len(plain)) // 6]
            yield from (inner, inner.replace(b"+", b"-").replace(b"/", b"_"))


def places(canary: Canary, texts: Mapping[str, bytes]) -> list[str]:
    wanted = set(forms(canary.value))
    return [place for place, text in texts.items() if any(form in text for form in wanted)]


def run(name: str, words: tuple[str, ...], home: Path, variables: dict[str, str], texts: Texts) -> int:
    """The exit code of a command. What it says is added to `texts`, and what `ps` shows of the processes that it
    starts: its own line is what a person typed."""
    lines: dict[int, bytes] = {}
    process = subprocess.Popen(
        [sys.executable, "-m", "launcher", *words], cwd=home, env=variables, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip

    def watch() -> None:
        while process.poll() is None:
            for pid in tree(process.pid)[1:]:
                try:
                    lines[pid] = Path(f"/proc/{pid}/cmdline").read_bytes()
                except OSError:
                    continue
            time.sleep(0.05)

    watching = threading.Thread(target=watch)
    watching.start()
    output, complained = process.communicate(timeout=300)
    watching.join()
    shown = b"\n".join(lines.values())
    texts |= {f"output of {name}": output, f"errors of {name}": complained, f"ps of {name}": shown}
    return process.returncode


@pytest.fixture(scope="module", params=[SOME, pytest.param((), marks=pytest.mark.long)], ids=["some", "all"])
def seen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What could be read afterwards, and how each command ended."""
    folder = tmp_path_factory.mktemp("canaries")
    home, given = folder / "home", folder / "given"
    home.mkdir()
    texts, ended = Texts(), {}
    with serving() as hub, plant(given, hub) as address:
        variables = environment(home, given, hub, Path(__file__).parents[1])
        for command in commands(given, address):
            if command.name in (request.param or [command.name]):
                ended[command.name] = run(command.name, command.words, home, variables, texts), command.code
    written = [path for path in home.rglob("*") if not path.is_symlink()]
    texts |= {"names of files": "\n".join(map(str, written)).encode()}
    texts |= {path.relative_to(home).as_posix(): path.read_bytes() for path in written if path.is_file()}
    return texts, ended


def test_no_canary_is_found(seen: Any) -> None:
    texts, ended = seen
    assert len(CANARIES) == 29 and len(ended) >= len(SOME)
    assert {name: codes for name, codes in ended.items() if codes[0] != codes[1]} == {}
    assert {canary.name: found for canary in CANARIES if (found := places(canary, texts))} == {}


def test_what_was_said_is_there_without_them(seen: Any) -> None:
    """Redaction replaces the secret and keeps the rest of the line."""
    texts = seen[0]
    log = texts["runs/rlrun/three/logs/attempt_1/rank-0.log"].decode()
    for line in (
        "wandb: logging in with [secret]",
        "from C: [secret] no end of line",
        "key [secret]",
        "OSError: proxy http://[secret]@127.0.0.1:9 refused",
        "RuntimeError: signing with [secret] failed",
    ):
        assert line in log
    assert "signing with [secret] failed" in texts["runs/rlrun/three/events.jsonl"].decode()
    assert "401 for [secret]" in texts["output of their run"].decode()


def test_a_canary_would_be_found() -> None:
    """In each spelling, and by its first half."""
    for form in forms(CANARIES[0].value):
        assert places(CANARIES[0], {"a": b"x" + form + b"y"}) == ["a"]
    assert places(CANARIES[0], {"a": b"nothing"}) == []
