"""What is said of environment=verifiers where verifiers is not installed; `make test-verifiers` has it installed."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from launcher.config.resolve import resolve
from launcher.core.problems import Problems
from launcher.data.reverse import Reverse
from launcher.environments.verifiers import VerifiersEnvironment, VerifiersTasks
from launcher.preflight.checks.context import Context

WORDS = ("algorithm=grpo", "model=tiny", "environment=verifiers", "environment.id=wordle")


def test_its_tasks_are_the_rows_unless_others_are_chosen() -> None:
    run = resolve([*WORDS, "environment.args={taskset: {num_tasks: 3}}", "environment.n_tasks=2"])
    assert isinstance(run.data, VerifiersTasks) and isinstance(run.environment, VerifiersEnvironment)
    assert (run.data.id, run.data.args, run.data.n_tasks) == ("wordle", {"taskset": {"num_tasks": 3}}, 2)
    assert isinstance(resolve([*WORDS, "data=reverse"]).data, Reverse)


def test_what_is_missing_is_said_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "none"))
    make = "python3 -m venv .venv-verifiers && .venv-verifiers/bin/pip install verifiers==0.4.0, or name another Python"
    install = f"use {sys.executable} -m pip install verifiers==0.4.0 wordle, and look at environment.args"
    cases = {
        "": f"environment.python: there is no {tmp_path}/.venv-verifiers/bin/python; {make}",
        str(tmp_path): f"environment.python: there is no {tmp_path}; {make}",
        sys.executable: f"environment.id: wordle cannot be loaded: .*No package .* found for verifiers; {install}",
    }
    for named, message in cases.items():
        (found,) = VerifiersEnvironment(id="wordle", python=named).missing_requirements()
        assert re.fullmatch(message, str(found))
        with pytest.raises(Problems, match=found.where):
            next(VerifiersTasks(id="wordle", python=named).read("train", "prompts"))


def test_another_version_is_named_where_it_cannot_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "verifiers-0.3.1.dist-info").mkdir()
    (tmp_path / "verifiers-0.3.1.dist-info" / "METADATA").write_text("Name: verifiers\nVersion: 0.3.1\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (found,) = VerifiersEnvironment(id="other", python=sys.executable).missing_requirements()
    assert "other cannot be loaded: ImportError: verifiers 0.3.1 is installed" in found.got


def test_what_cannot_be_used_is_said() -> None:
    context = Context(resolve(["algorithm=grpo", "model=tiny", "data=verifiers"]), here=True)
    assert [one.where for one in context.data_problems] == ["data"]
    (found,) = VerifiersEnvironment(id="wordle", system_prompt="Be brief.").problems()
    assert found.where == "environment.system_prompt"
