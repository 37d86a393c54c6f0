"""A run's settings as one list of dotted names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any

TARGET = "_target_"


def flat(node: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Dotted name -> value, as they stand in spec.yaml; `algorithm._target_` is the class that was chosen."""
    found: dict[str, Any] = {}
    for key, value in node.items():
        inside = isinstance(value, Mapping) and value
        found |= flat(value, f"{before}{key}.") if inside else {f"{before}{key}": value}
    return found


def apart(values: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, Any]]:
    """Group -> name of its class, and the other values."""
    targets = {name.removesuffix(f".{TARGET}"): str(value).rpartition(".")[2]
               for name, value in values.items() if name.endswith(f".{TARGET}")}  # fmt: skip
    return targets, {name: value for name, value in values.items() if not name.endswith(f".{TARGET}")}


def owner(settings: Any, name: str) -> tuple[type, str]:
    """The settings class that declares the dotted `name`, and the name below it: `n`, or `weights.gsm8k` of a dict."""
    key, _, rest = name.partition(".")
    held = getattr(settings, key)
    if rest and is_dataclass(held):
        return owner(held, rest)
    if rest and isinstance(held, Mapping):  # a reward's parts have settings of their own
        for part, inner in held.items():
            if is_dataclass(inner) and rest.startswith(f"{part}."):
                return owner(inner, rest.removeprefix(f"{part}."))
    return type(settings), name
