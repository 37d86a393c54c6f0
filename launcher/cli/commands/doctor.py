"""`rlrun doctor`: what this machine, or each node of a Ray cluster, has to say before a run."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from launcher.cli.output import AsJson, CommandAnswer, out, progress_line, say, say_result
from launcher.clusters.nodes.processes import is_node
from launcher.clusters.ray import remote
from launcher.core.check_result import CheckResult, any_failed
from launcher.core.problems import Problem, Problems
from launcher.tools.doctor import probe, remote_probe


def doctor(
    address: Annotated[
        str | None, typer.Argument(help="With --nodes: the HOST:PORT.", show_default="RAY_ADDRESS")
    ] = None,
    nodes: Annotated[bool, typer.Option("--nodes", help="Check every node of a running Ray cluster.")] = False,
    root: Annotated[Path, typer.Option("--root", help="Folder that will hold the runs.")] = Path("runs"),
    wait_s: Annotated[
        float, typer.Option("--timeout", min=1, help="Seconds to wait for a node's answer.")
    ] = remote_probe.WAIT_S,
    as_json: AsJson = False,
) -> CommandAnswer:
    """Whether processes reach each other shows in a run of one step: rlrun train algorithm=sft model=tiny data=reverse
    trainer.total_training_steps=1, with the hardware and cluster of the run.

    Exit code 1 where anything FAILs.
    """
    if address and not nodes:
        fix = f"use rlrun doctor --nodes {address}"
        raise Problems(Problem(address, "an address belongs to --nodes", fix, "conflicting-settings"))
    if nodes and not is_node():
        words = ["doctor", "--nodes", f"--root={root}", f"--timeout={wait_s:g}", *(["--json"] if as_json else [])]
        remote.become(address, words, out.width)
    with progress_line() as tell:
        if nodes:
            found = list(remote_probe.examined(address, root, wait_s, tell))
        else:
            found = [("this machine", result) for result in probe.check_this_machine(root, tell)]
    ok = not any_failed(result for _, result in found)
    results = [{"node": node, **asdict(result)} for node, result in found]
    return CommandAnswer({"ok": ok, "results": results}, lambda: _show(found), exit_code=int(not ok))


def _show(found: list[tuple[str, CheckResult]]) -> None:
    for node in dict.fromkeys(node for node, _ in found):
        say(node, "bold")
        for result in (result for name, result in found if name == node):
            say_result(result, "  ")
