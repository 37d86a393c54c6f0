"""Arguments that name no setting of ours, and those that are typed as options: `--learning_rate 5e-6`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

_OPTION = re.compile(r"(?P<dashes>--?)(?P<name>[A-Za-z][\w./-]*)(?:=(?P<value>.*))?", re.DOTALL)
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
        return f"{self.dashes}{self.key}"

    @property
    def plain(self) -> str:
        return self.key.replace("-", "_")


def separate_options(words: Sequence[str]) -> tuple[list[str], list[Unknown]]:
    """The arguments, and what begins with dashes, with the value after it: `--learning_rate 5e-6`."""
    rest, options = list[str](), list[Unknown]()
    open_option = False  # whether the word before is an option without a value
    for word in words:
        option = _OPTION.fullmatch(word)
        if option:
            options.append(Unknown(option["name"], option["value"] or "true", option["dashes"]))
        elif open_option and not _ARGUMENT.match(word):
            options[-1] = replace(options[-1], value=word)
        else:
            rest.append(word)
        open_option = bool(option and option["value"] is None)
    return rest, options
