"""Common mistakes are named before a run starts, with the argument that fixes them; valid runs are not refused.

The cases are data: tests/cases/reported. Here most plans are made in this process, which costs a tenth of one of
their own, and most are left to `make test-long`, as each check has tests beside this file; `make launches` makes each
as a person does.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import launch_site
import launches
import pytest
from huggingface_hub import constants

CASES, HEALTHY = launches.cases(), launches.healthy()


def asked(*sites: Any) -> Any:
    return launches.in_a_process if launch_site.single(*sites) else launches.in_this_process


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
    found = launches.judge(case, tmp_path / "here", asked(case.site, case.fixed_site))
    assert found.passed, found


@pytest.mark.parametrize("case", some(HEALTHY, every=4))
def test_valid_runs_are_not_refused(case: Any, tmp_path: Path) -> None:
    found = launches.judge_healthy(case, tmp_path / "here", asked(case.site))
    assert found.passed, found


# ---- the judge


def output(level: str = "FAIL", message: str = "got 'fast'", fix: str = "use a number") -> dict[str, str]:
    return {"level": level, "subject": "optim.lr", "message": message, "fix": fix}


CASE = launches.Case("a case", "R1", "optim.lr=fast", r"^optim\.lr$", "fast", "a number", fixed="optim.lr=1e-4")
FINE = launches.Answer((output("OK"),), 0)


@pytest.mark.parametrize(
    ("before", "after", "marks"),
    [
        (output(), FINE, (True, True, True)),
        (output("WARN"), FINE, (False, False, True)),  # a failure must FAIL
        (output(message="is wrong", fix=""), FINE, (False, False, True)),  # that it fails is not why
        (output(fix="use another"), FINE, (True, False, True)),  # the word is not shown
        (output(), launches.Answer((output(message="is full"),), 1), (True, True, False)),  # something else fails
        (output(), launches.Answer((), 1, "Traceback"), (True, True, False)),  # fixed, and it breaks
    ],
)
def test_a_case_is_judged_by_what_is_said_of_it(before: Any, after: Any, marks: Any, tmp_path: Path) -> None:
    answers = {"optim.lr=fast": launches.Answer((before,), 1), "optim.lr=1e-4": after}
    found = launches.judge(CASE, tmp_path / "here", lambda _, words: answers[" ".join(words)])
    assert (found.named, found.fix_shown, found.fine_after) == marks
    assert found.passed == all(marks) and bool(found.saw) != found.passed
