"""The values of a YAML file, each with its line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yaml import MappingNode, MarkedYAMLError, Node, ScalarNode, SequenceNode, YAMLError, compose

from launcher.core.bounded_parse import LOADER, LimitExceeded, check_limits, read_start
from launcher.core.problems import Problem, Problems, error_message


@dataclass(frozen=True)
class Leaf:
    """A value without named values inside: a scalar, a list, or `{}`."""

    line: int
    value: Any


def leaves(path: Path) -> dict[str, Leaf]:
    """Dotted key -> leaf. Raises `Problems` where the file cannot be read, is too large, or is not YAML."""
    try:
        loader = LOADER(read_checked(path))
        root = loader.get_single_node()
        _check_keys(root, set())
        return dict(_leaves_below(loader, root, "")) if isinstance(root, MappingNode) else {}
    except LimitExceeded as error:
        raise Problems(error.in_file(path)) from error
    except (YAMLError, ValueError) as error:  # ValueError: a date that does not exist
        raise Problems(_unreadable(path, error)) from error


def read_checked(path: Path) -> bytes:
    """A file's text. Raises `Problems` where it cannot be read or is too large, `YAMLError` where it is not YAML."""
    try:
        text = read_start(path)
        check_limits(text)
    except LimitExceeded as error:
        raise Problems(error.in_file(path)) from error
    except OSError as error:
        raise Problems(_unreadable(path, error)) from error
    return text


def _unreadable(path: Path, error: Exception) -> Problem:
    if isinstance(error, MarkedYAMLError) and error.problem_mark:
        line = error.problem_mark.line
        written = read_start(path).splitlines()[line : line + 1]
        tab = any(text[: len(text) - len(text.lstrip())].count(b"\t") for text in written)
        got = " ".join(part for part in (error.context, error.problem) if part)
        fix = "indent with spaces, as YAML takes no tabs" if tab else "correct this line"
        return Problem(f"{path}:{line + 1}", f"cannot be read: {got}", fix, "bad-file")
    return Problem(str(path), f"cannot be read ({error_message(error)})", "use a YAML file", "bad-file")


def defaults_lines(path: Path) -> dict[str, int]:
    """Entry of a config file's `defaults` -> its line: `reward`, or `gsm8k@parts.gsm8k`."""
    return {key.value: key.start_mark.line + 1 for key, _ in _defaults(path)}


def defaults_choices(path: Path) -> dict[str, str]:
    """Entry of a config file's `defaults` -> its choice; empty where the choice has to be given."""
    chosen = {key.value: value.value if value else "" for key, value in _defaults(path)}
    return {key: "" if value == "???" else value for key, value in chosen.items()}


def _defaults(path: Path) -> Iterator[tuple[ScalarNode, ScalarNode | None]]:
    root = compose(read_checked(path), LOADER)
    for key, entries in root.value if isinstance(root, MappingNode) else []:
        for entry in entries.value if key.value == "defaults" else []:
            if isinstance(entry, MappingNode):
                yield from entry.value
            else:
                yield entry, None


def _leaves_below(loader: Any, node: MappingNode, prefix: str) -> Iterator[tuple[str, Leaf]]:
    loader.flatten_mapping(node)  # `<<: *name`
    for key, value in node.value:
        name = f"{prefix}{key.value}"
        if isinstance(value, MappingNode) and value.value:
            yield from _leaves_below(loader, value, f"{name}.")
        else:
            yield name, Leaf(key.start_mark.line + 1, loader.construct_object(value, deep=True))


def _check_keys(node: Node | None, seen: set[int]) -> None:
    """Raises `LimitExceeded` where a mapping has a key twice; YAML would silently take the later value."""
    if node is None or id(node) in seen:  # a node may be shared by aliases
        return
    seen.add(id(node))
    lines = dict[str, int]()
    for part in node.value if isinstance(node, MappingNode | SequenceNode) else ():
        key, value = part if isinstance(part, tuple) else (None, part)
        if isinstance(key, ScalarNode) and key.value != "<<":
            line = key.start_mark.line + 1
            if (first := lines.setdefault(key.value, line)) != line:
                raise LimitExceeded(f"{key.value} is set twice, first in line {first}", "set it once", line)
        _check_keys(value, seen)
