"""Differences of a run from the defaults, and between two runs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.config.defaults import REASONS
from launcher.config.descriptions import default_of, fields_of, written
from launcher.config.nodes import TARGET, apart, flat, owner
from launcher.config.origins import Origin
from launcher.config.yaml_lines import leaves
from launcher.core.files import read_file
from launcher.spec.run import RunSpec
from launcher.spec.stored import to_node

WORDS_BYTES = 2**16  # most bytes read of words.txt; a longer file is not a command


@dataclass(frozen=True)
class Changed:
    """A value that is not its class's default."""

    name: str
    value: Any
    default: Any
    """None where there is none."""
    required: bool
    """Whether it has no default, so that it had to be given."""


def differing(run: RunSpec) -> list[Changed]:
    """Every value that differs from its class's default, in the run's order; also those that config files set."""
    changed, node = [], to_node(run)
    for name, value in apart(flat(node))[1].items():
        cls, below = owner(node, name)
        key, _, entry = below.partition(".")
        declared = fields_of(cls)[key]
        required = declared.is_required()
        default = _as_lists(default_of(declared))
        if entry:  # the setting is a dict
            default = default.get(entry) if isinstance(default, dict) else None
        if default != value:
            changed.append(Changed(name, value, default, required))
    return changed


def _as_lists(value: Any) -> Any:
    return list(map(_as_lists, value)) if isinstance(value, tuple) else value


@dataclass(frozen=True)
class Side:
    """One of two runs that are compared."""

    name: str
    values: Mapping[str, Any]
    origins: Mapping[str, Origin]
    classes: Mapping[str, str]


@dataclass(frozen=True)
class Cell:
    value: Any
    origin: str


@dataclass(frozen=True)
class DiffRow:
    """One difference between two sides: a setting, or a group whose class differs."""

    name: str
    cells: tuple[Cell | None, Cell | None]
    """Those of A and of B; None where a side has no such setting. For a group, the names of the classes."""
    whole: bool
    """Whether the row is a group whose class differs, so that its settings differ, too."""
    derived: bool = False
    """Whether neither side gives the value: it follows from other settings, or from the rows."""


def rows(a: Side, b: Side) -> list[DiffRow]:
    """The differences in the order of a run, derived values last; a group whose class differs comes before its
    settings."""
    return sorted(_differences(a, b), key=lambda row: row.derived)


def _differences(a: Side, b: Side) -> Iterator[DiffRow]:
    names = dict.fromkeys([*a.classes, *b.classes, *a.values, *b.values])
    tops = list(dict.fromkeys(name.partition(".")[0] for name in [*fields_of(RunSpec), *names]))
    for name in sorted(names, key=lambda name: tops.index(name.partition(".")[0])):
        for whole in (True, False):
            cells = _cell(a, name, whole), _cell(b, name, whole)
            if _cell_text(cells[0]) != _cell_text(cells[1]):
                is_given = whole or any(side.origins[name].kind != "default" for side in (a, b) if name in side.values)
                yield DiffRow(name, cells, whole, derived=name in REASONS and not is_given)


def node_of(a: Side, b: Side, found: Sequence[DiffRow], *, source: bool) -> dict[str, Any]:
    """The differences as plain data; with `source` also where each value comes from."""
    differs = [_row_node(row, source) for row in found]
    return {"equal": not differs, "a": a.name, "b": b.name, "differs": differs}


def _row_node(row: DiffRow, source: bool) -> dict[str, Any]:
    """One difference as plain data; a side without the setting has no key."""
    node: dict[str, Any] = {"setting": row.name, "group": row.whole} | ({"derived": True} if row.derived else {})
    for side, cell in zip("ab", row.cells, strict=True):
        if cell:
            node |= {side: cell.value} | ({f"{side}_from": cell.origin} if source else {})
    return node


def _cell(side: Side, name: str, whole: bool) -> Cell | None:
    values = side.classes if whole else side.values
    return Cell(values[name], side.origins[name].where) if name in values else None


def _cell_text(cell: Cell | None) -> str | None:
    return None if cell is None else written(cell.value)


def side_of_run(name: str, spec: Path, words: Path) -> Side:
    """The settings of spec.yaml, whatever version wrote it; `words` is the file with the arguments that the run was
    started with. Raises `Problems`."""
    leaves_by_name = leaves(spec)
    names = {key: key.removesuffix(f".{TARGET}") for key in leaves_by_name}
    typed = _read_words(words)
    fitted = REASONS.keys() if typed[:2] == ["rlrun", "train"] and all("=" in word for word in typed[2:]) else ()
    origins = {
        names[key]: Origin("default" if key in fitted else "run", f"{spec}:{leaf.line}")
        for key, leaf in leaves_by_name.items()
    }
    for word in typed:
        key = word.partition("=")[0]
        if key in leaves_by_name:
            origins[key] = Origin("command line", f"{words}: {word}")
    classes, values = apart({key: leaf.value for key, leaf in leaves_by_name.items()})
    return Side(name, values, origins, classes)


def _read_words(words: Path) -> list[str]:
    """The overrides that the run was started and resumed with; none where that file is gone or cannot be read."""
    try:
        return [word.lstrip("+") for word in shlex.split(read_file(words, WORDS_BYTES).decode())]
    except (OSError, ValueError):
        return []
