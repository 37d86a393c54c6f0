"""Keys of verl's that older versions had, that verl never had, or that it composes and does not read: `verl.yaml`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

from launcher.core.bounded_parse import LOADER

FILE = Path(__file__).with_name("verl.yaml")
Program = Literal["ppo", "sft"]


@cache
def read() -> dict[str, Any]:
    node: dict[str, Any] = yaml.load(FILE.read_bytes(), LOADER)  # a SafeLoader
    return node


def todays_key(key: str, program: Program) -> str | None:
    """Today's name of an older key; None where it is not known as one."""
    return _replaced(read()["renamed"][program], key)


def advice(key: str, program: Program) -> str | None:
    """What to do about an older key that has no successor."""
    known: Mapping[str, str] = read()["gone"][program]
    return next((known[place] for place in _places(key) if place in known), None)


def read_key(key: str) -> str | None:
    """What main_ppo reads in place of a key that it composes only, empty where that is nothing; None where it reads the
    key itself."""
    return _replaced(read()["unread"], key)


def _replaced(known: Mapping[str, str], key: str) -> str | None:
    for place in _places(key):
        if place in known:
            return known[place] + key.removeprefix(place) if known[place] else ""
    return None


def _places(key: str) -> Iterator[str]:
    """The key and the sections that it is in, the longest first."""
    yield key
    while key := key.rpartition(".")[0]:
        yield key
