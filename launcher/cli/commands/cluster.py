"""`rlrun cluster up | join | status | down`: machines that run one training together."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from launcher.cli.output import Cell, CommandAnswer, CommandGroup, make_table, progress_line, say, say_checks, say_table
from launcher.clusters.nodes import begin
from launcher.clusters.nodes.home import here
from launcher.tools import cluster_status

app = CommandGroup()

Words = Annotated[
    list[str] | None, typer.Argument(metavar="[-- WORDS]", help="Further options of ray start, such as --num-gpus=4.")
]
Address = Annotated[
    str | None, typer.Option("--address", metavar="IP", help="IP of this machine, as the others reach it.")
]
Token = Annotated[str | None, typer.Option("--token-file", help="File with the token; - reads standard input.")]
Block = Annotated[
    bool, typer.Option("--block", help="Stay in the foreground (containers, Slurm); a signal ends the node.")
]


@app.command("up")
def up(
    words: Words = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port of the head.", show_default="6379, or a free one")
    ] = None,
    address: Address = None,
    token_file: Token = None,
    block: Block = False,
) -> None:
    """Make this machine the head of a new cluster, which stays when you log out."""
    with begin.hold(block), progress_line(lines=True) as tell:
        token = begin.read_token(token_file, sys.stdin) if token_file else None
        node = begin.up(port, address, token, words or [], tell)
        say(f"the cluster is up at {node.address}")
        copy = f"(a copy of {here().token})"
        say(f"on each other machine: rlrun cluster join {node.address} --token-file FILE {copy}", "dim")


@app.command("join")
def join(
    head: Annotated[
        str,
        typer.Argument(metavar="ADDRESS", help="The head's HOST:PORT, or its folder on a shared disk."),
    ],
    words: Words = None,
    token_file: Token = None,
    address: Address = None,
    leave_after: Annotated[
        float | None,
        typer.Option(min=1, help="Seconds without a head before this machine leaves.", show_default="never"),
    ] = None,
    block: Block = False,
) -> None:
    """Add this machine to a cluster, and keep it there: it comes back when it or the head has died."""
    with begin.hold(block), progress_line(lines=True) as tell:
        head_address, token = begin.read_head(head, token_file, sys.stdin)
        node = begin.join(head_address, token, address, words or [], tell, leave_after)
        say(f"{node.ip} is in the cluster at {node.address}")


@app.command("status")
def status(
    address: Annotated[
        str | None, typer.Argument(help="HOST:PORT.", show_default="the cluster of this machine")
    ] = None,
) -> CommandAnswer:
    """List a cluster's nodes, with what each has and what of that is free. Exit code 1 where anything is amiss."""
    cluster = cluster_status.cluster_status(address)
    amiss = any(each and each.level == "FAIL" for each in (cluster.own, *cluster.trouble))
    return CommandAnswer(cluster, lambda: _show(cluster), int(amiss or not all(node.alive for node in cluster.nodes)))


@app.command("down")
def down() -> CommandAnswer:
    """Take this machine out; on the head it ends the cluster. Nothing else that runs here is touched."""
    with progress_line(lines=True) as tell:
        message = begin.down(tell)
    return CommandAnswer({"message": message}, lambda: say(message))


def _show(cluster: cluster_status.ClusterStatus) -> None:
    say(f"cluster at {cluster.address}")
    say_checks(filter(None, (cluster.own, *cluster.trouble)))
    rows = list[list[Cell]]()
    for node in sorted(cluster.nodes, key=lambda node: (not node.alive, node.address)):
        state = ("alive", "green") if node.alive else ("gone", "bold red")
        numbers = [f"{n:g}" for n in (node.cpus, node.free_cpus, node.gpus, node.free_gpus)]
        rows.append([(node.address, "bold"), node.hostname, state, *(numbers if node.alive else [])])
    if rows:
        say_table(make_table(["node", "host", "state", "CPUs", "free", "GPUs", "free"], rows))
