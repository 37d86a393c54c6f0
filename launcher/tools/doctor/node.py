"""What runs on each node (`python -m launcher.tools.doctor.node`): a request as JSON comes in, an answer goes out."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from launcher import __version__
from launcher.core import machine
from launcher.core.check_result import CheckResult
from launcher.core.problems import error_message
from launcher.tools.doctor import facts, here, loading, places, reduce, rendezvous

FORMAT = 1
"""Of requests and answers; another where either changes."""


@dataclass(frozen=True)
class Looked:
    """A node's own lines, and what is to be compared with the others."""

    results: tuple[CheckResult, ...]
    facts: facts.Facts


def main() -> None:
    request = json.load(sys.stdin)
    if request["format"] != FORMAT:
        sys.exit(f"rlrun {__version__} answers in format {FORMAT}, was asked in {request['format']}")
    try:
        answer = ASKED[request["ask"]](**request["of"])
    except OSError as error:
        sys.exit(error_message(error))
    print(json.dumps({"format": FORMAT, "answer": answer}))


def _look(root: str) -> Any:
    started = loading.Loading()
    try:
        results = list(here.looked(Path(root), for_ray=True))
        loaded = started.ended()
    finally:
        started.end()
    results += [loaded] if isinstance(loaded, CheckResult) else loading.check(loaded, machine.query_gpus())
    named, _ = places.places(Path(root))
    tokens = {}
    for place in named:
        if place.what != "temporary":
            with suppress(OSError):  # which the result of that place says
                tokens[place.what] = str(places.put_token(place.path))
    one, two = machine.free_ports(2)
    found = facts.gathered(None if isinstance(loaded, CheckResult) else loaded, (one, two), tokens)
    return TypeAdapter(Looked).dump_python(Looked(tuple(results), found), mode="json")


def _see(paths: list[str]) -> list[bool]:
    return [Path(path).exists() for path in paths]


def _forget(paths: list[str]) -> None:
    for path in paths:
        if Path(path).name.startswith(places.PREFIX):
            with suppress(OSError):
                Path(path).unlink()


def _meet(port: int, peers: dict[str, tuple[str, int]]) -> Any:
    return TypeAdapter(dict[str, rendezvous.Met]).dump_python(rendezvous.meet(port, peers), mode="json")


def _reduce(ranks: dict[str, Any]) -> Any:
    return TypeAdapter(list[reduce.Heard]).dump_python(reduce.run(reduce.Ranks(**ranks)), mode="json")


ASKED: dict[str, Callable[..., Any]] = {
    "look": _look, "see": _see, "forget": _forget, "meet": _meet, "reduce": _reduce,
}  # fmt: skip


if __name__ == "__main__":
    main()
