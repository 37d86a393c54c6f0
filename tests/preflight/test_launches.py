"""Common mistakes are named before a run starts, with the argument that fixes them; valid runs are not refused.

The cases are data: tests/cases/reported. Here most plans are made in this process, which costs a tenth of one of
their own, and most are left to `make test-long`, as each check has tests beside this file; with CASES=FOLDER, as of
`make launches`, each is made as a person does, and trains where its case says so.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import launch_site
import launches
import pytest
from huggingface_hub import constants

AS_TYPED, FOLDER = "CASES" in os.environ, Path(os.environ.get("CASES", launches.CASES))
CASES, HEALTHY = launches.cases(FOLDER), launches.healthy(FOLDER)


def asked(*sites: Any) -> Any:
    return launches.in_a_process if AS_TYPED or launch_site.single(*sites) else launches.in_this_process


def some(cases: Sequence[Any], every: int) -> list[Any]:
    """The cases, of which `make test` runs one in `every`."""
    return [pytest.param(case, id=case.name, marks=[pytest.mark.long] if number % every else [])
            for number, case in enumerate(cases)]  # fmt: skip


@pytest.fixture(autouse=True)
def _nothing_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))


@pytest.fixture(scope="session")
def disks() -> None:
    """Whether this user may mount a disk of his own."""
    if subprocess.run(
        ["unshare", "--mount", "--map-root-user", "true"], check=False, stderr=subprocess.DEVNULL
    ).returncode:
        pytest.skip("a small disk needs the right to mount one")


@pytest.mark.parametrize("case", some(CASES, every=6))
def test_what_fails_is_named_and_can_be_fixed(case: Any, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if case.site.get("disks"):
        request.getfixturevalue("disks")
    assert not launches.judge(case, tmp_path / "here", asked(case.site, case.fixed_site))


@pytest.mark.parametrize("case", some(HEALTHY, every=4))
def test_valid_runs_are_not_refused(case: Any, tmp_path: Path) -> None:
    train = launches.trained if AS_TYPED else None
    assert not launches.judge_healthy(case, tmp_path / "here", asked(case.site), train)


# ---- the judge


def output(
    level: str = "FAIL", subject: str = "optim.lr", message: str = "got 'fast'", fix: str = "use a number"
) -> Any:
    return {"level": level, "subject": subject, "message": message, "fix": fix}


NAMED = output()
FINE = launches.Answer((output("OK", "batch", "all is well", ""),), 0)
ASKED = launches.Case("a case", "R1", "optim.lr=fast", r"^optim\.lr$", "fast", "a number", fixed="optim.lr=1e-4")


@pytest.mark.parametrize(
    ("before", "after", "trouble"),
    [
        (NAMED, FINE, ""),
        (output("WARN"), FINE, "not named: WARN"),  # a failure must FAIL
        (output(message="is wrong", fix=""), FINE, "not named: FAIL"),  # that it fails is not why
        (output(fix="use another"), FINE, "no fix shown: FAIL"),  # the word is not shown
        (NAMED, launches.Answer((output(subject="disk"),), 1), "not OK after: FAIL disk"),  # something else fails
        (NAMED, launches.Answer((), 1, "Traceback"), "not OK after: Traceback"),  # fixed, and it breaks
    ],
)
def test_a_case_is_judged_by_what_is_said_of_it(before: Any, after: Any, trouble: str, tmp_path: Path) -> None:
    answers = iter([launches.Answer((before,), 1), after])
    words = []

    def plan(_: Any, given: Sequence[str]) -> Any:
        words.append(list(given))
        return next(answers)

    found = launches.judge(ASKED, tmp_path / "here", plan)
    assert found.startswith(trouble) and bool(found) == bool(trouble)
    assert words == [["optim.lr=fast"], ["optim.lr=1e-4"]]
