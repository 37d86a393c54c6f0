"""Keys that verl renamed or dropped, that it never had, or that it composes and does not read: `verl.yaml`."""

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
    """Today's name of an older key; None where the key is not a known older one."""
    return _replace_prefix(read()["renamed"][program], key)


def advice(key: str, program: Program) -> str | None:
    """What to do about an older key that has no successor."""
    advice_by_key: Mapping[str, str] = read()["gone"][program]
    return next((advice_by_key[place] for place in _key_and_sections(key) if place in advice_by_key), None)


def read_key(key: str) -> str | None:
    """The key that main_ppo reads in place of one that it only composes, or empty where it reads none; None where it
    reads the key itself."""
    return _replace_prefix(read()["unread"], key)


def _replace_prefix(replacements: Mapping[str, str], key: str) -> str | None:
    for place in _key_and_sections(key):
        if place in replacements:
            return replacements[place] + key.removeprefix(place) if replacements[place] else ""
    return None


def _key_and_sections(key: str) -> Iterator[str]:
    """The key and the sections that it is in, the longest first."""
    yield key
    while key := key.rpartition(".")[0]:
        yield key
