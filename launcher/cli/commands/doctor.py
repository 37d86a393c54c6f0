"""`rlrun doctor`: what this machine has to say before a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from launcher.cli.output import CommandAnswer, progress_line, say_checks
from launcher.core.check_result import any_failed
from launcher.tools.doctor import check_machine


def doctor(
    root: Annotated[Path, "Check the disk of this folder, which will hold the runs."] = Path("runs"),
) -> CommandAnswer:
    """Each check prints one line with OK, WARN or FAIL; a line that is not OK says what to do. The exit code is 1 where
    any check fails, otherwise 0.

    The checks do not start a run. To see whether the processes of a run reach each other, train one step with the
    hardware and the cluster of the run: rlrun train algorithm=sft model=tiny data=reverse
    trainer.total_training_steps=1.
    """
    with progress_line() as tell:
        results = list(check_machine(root, tell))
    ok = not any_failed(results)
    return CommandAnswer({"ok": ok, "results": results}, lambda: say_checks(results), int(not ok))
