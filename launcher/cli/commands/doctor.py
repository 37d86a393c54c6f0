"""`rlrun doctor`: what this machine, or each node of a Ray cluster, has to say before a run."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from launcher.cli.output import CommandAnswer, progress_line, say, say_result
from launcher.clusters.nodes.processes import is_node
from launcher.core.check_result import CheckResult, any_failed
from launcher.core.problems import Problem, Problems
from launcher.tools.doctor import probe, remote_probe


def doctor(
    address: Annotated[
        str | None, typer.Argument(help="HOST:PORT of the cluster that --nodes checks.", show_default="RAY_ADDRESS")
    ] = None,
    nodes: Annotated[
        bool, typer.Option("--nodes", help="Check every node of a running Ray cluster, not this machine.")
    ] = False,
    root: Annotated[
        Path, typer.Option("--root", help="Check the disk of this folder, which will hold the runs.")
    ] = Path("runs"),
    wait_s: Annotated[
        float, typer.Option("--timeout", min=1, help="Wait so many seconds for the answer of a node.")
    ] = remote_probe.WAIT_S,
) -> CommandAnswer:
    """Each check prints one line with OK, WARN or FAIL; a line that is not OK says what to do. The exit code is 1 where
    any check fails, otherwise 0.

    The checks do not start a run. To see whether the processes of a run reach each other, train one step with the
    hardware and the cluster of the run: rlrun train algorithm=sft model=tiny data=reverse
    trainer.total_training_steps=1.
    """
    if address and not nodes:
        fix = f"use rlrun doctor --nodes {address}"
        raise Problems(Problem(address, "an address belongs to --nodes", fix, "conflicting-settings"))
    if nodes and not is_node():
        fix = "use it on a node of the cluster, or rlrun cluster join"
        raise Problems(Problem("--nodes", "this machine is no node of a Ray cluster", fix, "not-found"))
    with progress_line() as tell:
        if nodes:
            node_results = list(remote_probe.examined(address, root, wait_s, tell))
        else:
            node_results = [("this machine", result) for result in probe.check_this_machine(root, tell)]
    ok = not any_failed(result for _, result in node_results)
    results = [{"node": node, **asdict(result)} for node, result in node_results]
    return CommandAnswer({"ok": ok, "results": results}, lambda: _say_results(node_results), exit_code=int(not ok))


def _say_results(node_results: list[tuple[str, CheckResult]]) -> None:
    for node in dict.fromkeys(node for node, _ in node_results):
        say(node, "bold")
        for result in (result for name, result in node_results if name == node):
            say_result(result, "  ")
