"""What the commands say of logs that they can read only in part, or not at all, and of wrong arguments."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from launcher.cli.main import app

TRACEBACK = 'Traceback (most recent call last):\n  File "a.py", line 3\nRuntimeError: CUDA out of memory\n'


def rlrun(*arguments: str) -> tuple[int, str]:
    ran = CliRunner().invoke(app, list(arguments), prog_name="rlrun")
    return ran.exit_code, ran.output


@pytest.fixture
def log(tmp_path: Path) -> str:
    path = tmp_path / "verl.log"
    path.write_text("".join(f"step:{step} - critic/score/mean:{step / 10} - actor/lr:1e-6\n" for step in range(3, 8)))
    return str(path)


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_diagnose_does_not_call_a_log_healthy_that_it_cannot_read(tmp_path, more):
    path = tmp_path / "a.log"
    path.write_text("nothing of worth\n")
    code, text = rlrun("diagnose", str(path), *more)
    assert code == 2 and "no line with metrics" in text


def test_diagnose_names_the_error_that_ended_a_log(log):
    with Path(log).open("a") as file:
        file.write(TRACEBACK)
    code, text = rlrun("diagnose", log)
    assert code == 1 and "critical at step 7" in text and "RuntimeError: CUDA out of memory" in text


@pytest.mark.parametrize("more", [(), ("--csv",), ("--json",)])
def test_a_step_that_is_not_there_is_an_error_in_every_output(log, tmp_path, more):
    code, text = rlrun("metrics", log, "--step", "99", *more)
    assert code == 2 and "the steps are 3 to 7; use --step 7" in text
    assert rlrun("metrics", log, "--step", "3", "--last", "2", *more)[0] == 2
    empty = tmp_path / "empty.log"
    empty.write_text("")
    code, text = rlrun("metrics", str(empty), "--step", "0", *more)
    assert code == 2 and "no line with metrics" in text


def test_one_output_at_a_time(log):
    code, text = rlrun("metrics", log, "--csv", "--json")
    assert code == 2 and "cannot go with --json" in text
