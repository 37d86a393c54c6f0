"""A check from the folder of --config-dir is one class and one YAML file; what is wrong with it is named."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.config.resolve import resolve
from launcher.core.problems import Problems
from launcher.preflight.plan import page, ready
from launcher.spec.run import RunSpec

BODY = '''
from launcher.core.check_result import CheckResult
from launcher.core.settings import AtLeastOne, settings
from launcher.preflight.checks.context import Check


@settings
class MaxSteps(Check):
    """No run of many steps."""

    most: AtLeastOne = 10

    def check(self, context):
        if (context.steps.steps or 0) > self.most:
            yield CheckResult("FAIL", "steps", f"{context.steps.steps} are too many", f"use at most {self.most}")
'''


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    path = list(sys.path)
    (tmp_path / "check").mkdir()
    (tmp_path / "max_steps.py").write_text(BODY)
    yield tmp_path
    sys.modules.pop("max_steps", None)
    sys.path[:] = path


def run_of(folder: Path, steps: int) -> RunSpec:
    words = ["algorithm=sft", "model=tiny", "data=reverse", f"trainer.total_training_steps={steps}"]
    return resolve([*words, f"trainer.run_root={folder}"], folder)


def test_a_check_of_ones_own(folder: Path) -> None:
    (folder / "check" / "max_steps.yaml").write_text("_target_: max_steps.MaxSteps\nmost: 5\n")
    assert page(run_of(folder, 5)).ok
    with pytest.raises(Problems, match="steps: 6 are too many; use at most 5"):
        ready(run_of(folder, 6))


def test_what_is_wrong_with_one_is_named(folder: Path) -> None:
    wrong = [
        ("_target_: max_steps.Nothing\n", "max_steps.Nothing"),
        ("_target_: os.system\n", "os.system"),  # not a check, so it is not even imported
        ("_target_: max_steps.MaxSteps\nmost: 0\n", "greater than or equal to 1"),
        ("[", "check/wrong3.yaml"),
    ]
    for number, (text, _) in enumerate(wrong):
        (folder / "check" / f"wrong{number}.yaml").write_text(text)
    found = {result.subject: result.line for result in page(run_of(folder, 5)).results if result.level == "FAIL"}
    assert [*found] == [f"check/wrong{number}.yaml" for number in range(len(wrong))]
    assert all(reason in line for (_, reason), line in zip(wrong, found.values(), strict=True)), found
