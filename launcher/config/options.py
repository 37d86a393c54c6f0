"""Arguments that name no setting of ours, and those that are typed as options: `--learning_rate 5e-6`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from launcher.core.problems import shortened
from launcher.core.redaction import is_secret_setting

_OPTION = re.compile(r"(?P<dashes>--?)(?P<name>[A-Za-z][\w./-]*)(?:=(?P<value>.*))?", re.DOTALL)
OPTIONS = (
    "--config-dir", "--resume", "--from", "--root", "--dry-run", "--detach", "--multirun", "--parallel", "--recipe",
    "--source", "--json", "--yaml", "--help",
)  # fmt: skip
"""Options of train and plan; an unknown one that is like none of them is a setting with dashes."""
_ARGUMENT = re.compile(r"[+~]*[A-Za-z_][\w./@]*=")


@dataclass(frozen=True)
class Unknown:
    """An argument whose name no setting has."""

    key: str
    value: str
    """As it was typed; `true` where it had none."""
    dashes: str = ""
    """Those of an option: `--key value`."""

    @property
    def shown(self) -> str:
        return shortened(f"{self.dashes}{self.key}")

    @property
    def argument(self) -> str:
        return f"{self.key}={self.value}"

    @property
    def plain(self) -> str:
        return self.key.replace("-", "_")


def separate_options(overrides: Sequence[str]) -> tuple[list[str], list[Unknown]]:
    """The arguments, and what begins with dashes, with the value after it: `--learning_rate 5e-6`."""
    rest, options = list[str](), list[Unknown]()
    name, dashes, values = "", "", list[str]()  # of an option whose values are the next overrides
    for word in [*overrides, "--"]:
        option = _OPTION.fullmatch(word)
        of_secret = bool(name) and not values and is_secret_setting(name)  # whatever its value looks like
        alike = not values or _is_number(values[0]) == _is_number(word)
        if name and word != "--" and (of_secret or (alike and not (option or _ARGUMENT.match(word)))):
            values.append(word)
            continue
        if name:
            options.append(Unknown(name, _joined(values), dashes))
        name = ""
        if option and option["value"] is not None:
            options.append(Unknown(option["name"], option["value"], option["dashes"]))
        elif option:
            name, dashes, values = option["name"], option["dashes"], []
        else:
            rest.append(word)
    return rest[:-1], options


def _is_number(word: str) -> bool:
    return re.fullmatch(r"[-+]?[\d.]+(?:[eE][-+]?\d+)?", word) is not None


def _joined(values: Sequence[str]) -> str:
    """`--target_modules q_proj v_proj` is a list."""
    return f"[{','.join(values)}]" if len(values) > 1 else values[0] if values else "true"
