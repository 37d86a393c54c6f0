"""Differences of a run from the defaults, and between two runs."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
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
class Cell:
    """A value of a run, or the name of the class of a group."""

    value: Any
    origin: Origin
    is_class: bool


@dataclass(frozen=True)
class Side:
    """One of two runs that are compared."""

    name: str
    cells: Mapping[str, Cell]
    """By the names of settings and groups."""


@dataclass(frozen=True)
class DiffRow:
    """One difference between two sides: a setting, or a group whose class differs."""

    name: str
    cells: tuple[Cell | None, Cell | None]
    """Those of A and of B; None where a side has no such setting."""

    @property
    def whole(self) -> bool:
        """Whether it is a group whose class differs, so that its settings differ, too."""
        return any(cell.is_class for cell in self.cells if cell)

    @property
    def derived(self) -> bool:
        """Whether neither side gives the value: it follows from other settings, or from the rows."""
        return self.name in REASONS and all(cell.origin.kind == "default" for cell in self.cells if cell)


def rows(a: Side, b: Side) -> list[DiffRow]:
    """The differences in the order of a run, derived values last; a group whose class differs comes before its
    settings."""
    names = dict.fromkeys([*a.cells, *b.cells])
    tops = list(dict.fromkeys(name.partition(".")[0] for name in [*fields_of(RunSpec), *names]))
    found = [DiffRow(name, (a.cells.get(name), b.cells.get(name))) for name in names]
    differing = [row for row in found if _text(row.cells[0]) != _text(row.cells[1])]
    return sorted(differing, key=lambda row: (row.derived, tops.index(row.name.partition(".")[0]), not row.whole))


def _text(cell: Cell | None) -> str | None:
    return written(cell.value) if cell else None


def node_of(a: Side, b: Side, found: Sequence[DiffRow], *, source: bool) -> dict[str, Any]:
    """The differences as plain data; a side without a setting has no key. With `source` also where each value comes
    from."""
    differs = list[dict[str, Any]]()
    for row in found:
        node: dict[str, Any] = {"setting": row.name, "group": row.whole} | ({"derived": True} if row.derived else {})
        for side, cell in zip("ab", row.cells, strict=True):
            if cell:
                node |= {side: cell.value} | ({f"{side}_from": cell.origin.where} if source else {})
        differs.append(node)
    return {"equal": not differs, "a": a.name, "b": b.name, "differs": differs}


def side_of_run(name: str, spec: Path, words: Path) -> Side:
    """The settings of spec.yaml, whatever version wrote it; `words` is the file with the arguments that the run was
    started with. Raises `Problems`."""
    typed = _read_words(words)
    by_key = {word.partition("=")[0]: Origin("command line", f"{words}: {word}") for word in typed}
    fitted = REASONS.keys() if typed[:2] == ["rlrun", "train"] and all("=" in word for word in typed[2:]) else ()
    cells = dict[str, Cell]()
    for key, leaf in leaves(spec).items():
        setting, is_class = key.removesuffix(f".{TARGET}"), key.endswith(f".{TARGET}")
        origin = by_key.get(key) or Origin("default" if key in fitted else "run", f"{spec}:{leaf.line}")
        cells[setting] = Cell(str(leaf.value).rpartition(".")[2] if is_class else leaf.value, origin, is_class)
    return Side(name, cells)


def _read_words(words: Path) -> list[str]:
    """The overrides that the run was started and resumed with; none where that file is gone or cannot be read."""
    try:
        return [word.lstrip("+") for word in shlex.split(read_file(words, WORDS_BYTES).decode())]
    except (OSError, ValueError):
        return []
