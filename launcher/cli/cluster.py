"""`rlrun cluster up | join | status | down`: machines that run one training together."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from launcher.cli.say import err, out, printable, problems_named
from launcher.clusters.nodes import begin
from launcher.clusters.nodes.home import here

app = typer.Typer(no_args_is_help=True, help="Bring machines together, see how they stand, and end it.")

Words = Annotated[
    list[str] | None, typer.Argument(metavar="[-- WORDS]", help="More for ray start, such as --num-gpus=4.")
]
Address = Annotated[
    str | None, typer.Option("--address", metavar="IP", help="This machine's, by which the others reach it.")
]


@app.command("up")
def up(
    words: Words = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Of the head.", show_default="6379, or a free one")
    ] = None,
    address: Address = None,
) -> None:
    """Make this machine the head of a new cluster, which stays when you log out."""
    with problems_named(), _told() as tell:
        node = begin.up(port, address, words or [], tell)
    out.print(Text(printable(f"the cluster is up at {node.address}"), "bold"), soft_wrap=True)
    token = here().token
    say = f"on each other machine: rlrun cluster join {node.address} --token-file {token} (a copy of this file)"
    out.print(Text(printable(say), "dim"), soft_wrap=True)


@app.command("join")
def join(
    head: Annotated[str, typer.Argument(metavar="ADDRESS", help="The head's HOST:PORT.")],
    words: Words = None,
    token_file: Annotated[
        str | None, typer.Option("--token-file", help="The cluster's secret; - reads standard input.")
    ] = None,
    address: Address = None,
) -> None:
    """Add this machine to a cluster, and keep it there: it comes back when it or the head has died."""
    with problems_named(), _told() as tell:
        file = Path(token_file) if token_file else here().token
        token = sys.stdin.readline() if token_file == "-" else file.read_text(encoding="utf-8")
        node = begin.join(head, token.strip(), address, words or [], tell)
    out.print(Text(printable(f"{node.ip} is in the cluster at {node.address}"), "bold"), soft_wrap=True)


@app.command("down")
def down() -> None:
    """Take this machine out; the head ends the cluster. Nothing else that runs here is touched."""
    with problems_named(), _told() as tell:
        became = begin.down(tell)
    out.print(Text(printable(became)), soft_wrap=True)


@contextmanager
def _told() -> Iterator[Callable[[str], None]]:
    """What is under way: a line that changes on a terminal, one for each change elsewhere."""
    if not err.is_terminal:
        yield lambda what: err.print(Text(printable(what), "dim"), soft_wrap=True)
        return
    with err.status("") as status:
        yield lambda what: status.update(Text(printable(what), "dim"))
