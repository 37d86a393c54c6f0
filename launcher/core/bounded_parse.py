"""YAML and JSON of untrusted files, read within bounds: a small file must not cost minutes or unlimited memory.

The bounds are checked on the stream of YAML's events, before any value is made, and reading stops at the first that is
exceeded: a refusal costs milliseconds.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

from launcher.core.files import open_file
from launcher.core.problems import Problem

SIZE = 2**20  # bytes of a YAML text
DEPTH = 64  # most levels of nested lists and groups
VALUES = 20_000  # most values, those that aliases stand for included
DIGITS = 64  # most characters of a number

LOADER: Any = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
_NUMBERS = {"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"}
_NUMBER = re.compile(r"[-+]?[0-9][0-9a-fA-FxXoO_:.]*")


class LimitExceeded(ValueError):
    """The text is larger, deeper or longer than the bounds, or has a duplicate; `line` counts from 1."""

    def __init__(self, got: str, fix: str, line: int = 1) -> None:
        super().__init__(f"{got}; {fix}")
        self.got, self.fix, self.line = got, fix, line

    def in_file(self, name: str | Path) -> Problem:
        """The error as a problem of a file."""
        return Problem(f"{name}:{self.line}", self.got, self.fix, "bad-file")


def check_limits(text: str | bytes) -> None:
    """Raises `LimitExceeded` beyond a bound, and `yaml.YAMLError` where the text is not YAML."""
    if len(text) > SIZE:
        raise LimitExceeded(f"has {len(text):,} bytes", f"expected at most {SIZE:,}")
    open_nodes, anchors, values = list[tuple[str | None, int]](), dict[str, int](), 0
    for event in yaml.parse(text, Loader=LOADER):
        line = event.start_mark.line + 1 if event.start_mark else 1
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, start = open_nodes.pop()
            if anchor:
                anchors[anchor] = values - start
            continue
        if isinstance(event, yaml.AliasEvent):
            if any(anchor == event.anchor for anchor, _ in open_nodes):
                raise LimitExceeded(f"*{event.anchor} stands within itself", "expected a value", line)
            values += anchors.get(str(event.anchor), 0) + 1  # an alias of a scalar counts as one
        elif isinstance(event, yaml.NodeEvent):
            values += 1
            if isinstance(event, yaml.CollectionStartEvent):
                open_nodes.append((event.anchor, values))
                if len(open_nodes) > DEPTH:
                    raise LimitExceeded(f"lists and groups stand more than {DEPTH} deep", "use fewer", line)
            elif isinstance(event, yaml.ScalarEvent) and _long_number(event):
                raise LimitExceeded(f"a number has {len(event.value):,} digits", f"expected at most {DIGITS}", line)
        if values > VALUES:
            raise LimitExceeded(f"stands for more than {VALUES:,} values", "use fewer", line)


def _long_number(event: Any) -> bool:
    """Whether a scalar is a number (plain, or tagged as one) of more than DIGITS characters."""
    if len(event.value) <= DIGITS:
        return False
    return event.tag in _NUMBERS or bool(event.implicit[0] and _NUMBER.fullmatch(event.value))


def read_start(file: Path) -> bytes:
    """All of a file, or its first SIZE + 1 bytes, which `check_limits` refuses."""
    with open_file(file) as opened:
        return opened.read(SIZE + 1)


def parse_yaml(text: str | bytes) -> Any:
    """The value of a YAML text. Raises `LimitExceeded` (a `ValueError`), or `yaml.YAMLError` where it is not YAML."""
    check_limits(text)
    return yaml.load(text, Loader=LOADER)


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text. Raises `ValueError`, also where it is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise LimitExceeded("lists and objects are nested too deeply", "use fewer") from error
