"""`rlrun serve`: a job API and a page over run folders."""

from __future__ import annotations

import ipaddress
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from launcher.cli.arguments import Root
from launcher.cli.output import say, tell
from launcher.core.problems import Problem, Problems

NEEDS = ("fastapi", "sqlalchemy", "uvicorn", "websockets")


def serve(
    host: Annotated[str, "Address to listen at; any but this machine's own wants a token."] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of API and page; 0: a free one.")] = 8000,
    page_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="A second port with the same, such as 5173.")
    ] = None,
    root: Root = Path("runs"),
    also: Annotated[
        list[Path] | None,
        typer.Option(metavar="PATH", help="Run folders, or logs of verl, TRL and others, shown beside them."),
    ] = None,
    database: Annotated[
        str,
        typer.Option("--db", metavar="ADDRESS", help="Such as postgresql+psycopg://USER@HOST/NAME; default: SQLite."),
    ] = "",
    reindex: Annotated[bool, "Make the database again from the folders."] = False,
    token: Annotated[bool, "Want a token on this machine's own address, too."] = False,
) -> None:
    """Run folders stay the truth, and runs go on when the server ends. The page is at the address that is printed.

    Where a token is wanted, one of each scope is printed when the server starts: admin may do everything, launch may
    start runs, which is running code on this machine, and read may only look. They hold until .serve-secret is deleted
    from the run root.
    """
    if missing := [name for name in NEEDS if find_spec(name) is None]:
        got = f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed"
        raise Problems(Problem("serve", got, "pip install 'rlrun[serve]'", "not-installed"))
    from launcher.server.access import make_tokens  # noqa: PLC0415  # late: no other command loads a web server
    from launcher.server.listening import listen, run  # noqa: PLC0415  # late, as above
    from launcher.server.routes.app import create_app  # noqa: PLC0415  # late, as above
    from launcher.server.services import ServerSettings  # noqa: PLC0415  # late, as above

    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    tokens = make_tokens(root) if token or not _is_loopback(host) else {}
    settings = ServerSettings(root, tuple(also or ()), database, tokens, reindex, host)
    app = create_app(settings)
    sockets = listen(host, [port] if page_port is None else [port, page_port])

    def began() -> None:
        shown = f"[{host}]" if ":" in host else host
        for each in sockets:
            say(f"serves {root} at http://{shown}:{each.getsockname()[1]}")
        for each_token, scope in tokens.items():
            typer.echo(f"token {each_token} has the scope {scope}")  # the only place where it is not redacted
        tell("Ctrl-C ends the server; runs go on")

    run(app, sockets, began)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
