"""Where output goes is no reason to fail: another encoding, a closed stream, a full disk, a reader that has gone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

LINE = "step:1 25%|██▌ | é"
FULL = "✗ standard output: no space left on device; use a place that can be written\n"


def rlrun(words: str, where: str, folder: Path, **env: str) -> subprocess.CompletedProcess[bytes]:
    """Of a shell; its standard error comes back where `where` leaves it."""
    script = f"{sys.executable} {words} {where}"
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8", **env}
    return subprocess.run(["sh", "-c", script], cwd=folder, env=environment, capture_output=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    run = tmp_path / "runs" / "p" / "a"
    run.mkdir(parents=True)
    (run / "spec.yaml").write_text("")
    (run / "console.log").write_text(f"{LINE}\n", encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("where", "code", "shown"),
    [
        (">&-", 0, ""), ("2>&-", 0, LINE + "\n"), ("<&- >&- 2>&-", 0, ""),
        (">/dev/full", 2, FULL), ("2>/dev/full", 0, LINE + "\n"), (">/dev/full 2>/dev/full", 2, ""),
    ],
)  # fmt: skip
def test_a_command_ends_with_a_plain_message_and_a_code(where: str, code: int, shown: str, folder: Path) -> None:
    ran = rlrun("-m launcher logs a", where, folder)
    assert (ran.returncode, (ran.stdout + ran.stderr).decode()) == (code, shown)


def test_json_is_valid_in_an_encoding_that_lacks_characters(folder: Path) -> None:
    script = "from launcher.cli import output, streams\nstreams.protect()\noutput.write_json({'of': '" + LINE + "'})\n"
    (folder / "say.py").write_text(script, encoding="utf-8")
    ran = rlrun("say.py", "", folder, PYTHONIOENCODING="ascii")
    assert (json.loads(ran.stdout), ran.stderr) == ({"of": LINE}, b"")


def test_a_run_goes_on_where_its_lines_cannot_be_printed(folder: Path) -> None:
    (folder / "run.py").write_text(
        "from launcher.cli import live_view, streams\nfrom launcher.core.state import RunState\nstreams.protect()\n"
        f"view = live_view.LinePrinter()\nfor _ in range(3):\n    view.write(RunState(), [], ['{LINE}'])\n"
        "import sys\nprint('over', file=sys.stderr)"
    )
    for where in ("", ">/dev/full", ">&-"):
        ran = rlrun("run.py", where, folder, PYTHONIOENCODING="ascii")
        assert (ran.returncode, ran.stderr) == (0, b"over\n")
