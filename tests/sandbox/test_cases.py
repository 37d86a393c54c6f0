"""What 178 launch scripts in many styles start: for each, the words of its launches stand beside it (`NAME.launches`).

A script of ours runs several of them, each in a folder of its own, so that they share a sandbox.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from launcher.sandbox import confine
from launcher.sandbox.reading import FIRST
from launcher.sandbox.script import run_script
from launcher.tools.importing.launches import launch_of

pytestmark = pytest.mark.skipif(bool(confine.missing()), reason="this system has no sandbox")
CASES = Path(__file__).parent / "cases"
TOGETHER = 6
NAMES = sorted(path.stem for path in CASES.glob("*.sh"))
GROUPS = [NAMES[at : at + TOGETHER] for at in range(0, len(NAMES), TOGETHER)]


def launches_of(names: list[str], folder: Path) -> dict[str, list[str]]:
    """By case: line, program and arguments of each launch."""
    calls = []
    for name in names:
        place = folder / name
        place.mkdir()
        shutil.copy(CASES / f"{name}.sh", place)
        shutil.copytree(CASES / "parts", place / "parts")
        text = (place / f"{name}.sh").read_text()
        arguments, environment = (re.search(rf"^# {what}: (.*)$", text, re.M) for what in ("arguments", "environment"))
        words = f"bash {name}.sh {arguments[1] if arguments else ''}"
        calls.append(f"(cd {name}; env {environment[1] if environment else ''} {words})\n")
    script = folder / "all.sh"
    script.write_text("".join(calls))
    run = run_script(script, [], {}, FIRST)
    assert not run.outcome.stopped
    found: dict[str, list[str]] = {name: [] for name in names}
    for started in run.started:
        launch = launch_of(started, run.written) if started.launches else None
        if launch is not None and launch.trains:
            name = Path(started.folder).relative_to(folder).parts[0] if folder in Path(started.folder).parents else ""
            of = name or next(each for each in names if each in launch.line)
            words = [launch.line.rpartition("/")[2], launch.program, *launch.words]
            text = json.dumps(words, ensure_ascii=False).replace(str(folder / of), "HERE").replace(str(folder), "ABOVE")
            found[of].append(re.sub(r'"job=\d+"', '"job=PID"', text))
    return found


@pytest.mark.parametrize("names", GROUPS, ids=lambda names: names[0])
def test_the_launches_are_those_that_stand_beside_the_script(
    names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    expected = {name: sorted((CASES / f"{name}.launches").read_text().splitlines()) for name in names}
    found = launches_of(names, tmp_path)  # those in the background come in any order
    assert {name: sorted(lines) for name, lines in found.items()} == expected
