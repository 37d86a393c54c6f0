"""A run in a YAML file, as arguments: one that was written by hand, or spec.yaml of a run.

algorithm: grpo
model: Qwen/Qwen3-0.6B
data: train.jsonl
optim.lr: 1e-6
sampler: {n: 8}
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from launcher.config.compose import choices
from launcher.config.nodes import TARGET
from launcher.config.yaml_lines import Leaf, defaults_lines, leaves
from launcher.core.overrides import is_plain, literal, quoted
from launcher.core.problems import Problem, Problems, suggest

ENDINGS = (".yaml", ".yml")
_PART = re.compile(r"(.+\.parts)\.([^.]+)\.")


def arguments_of(path: Path, config_dir: Path | None) -> tuple[list[tuple[str, int]], Path | None]:
    """The file's arguments, each with its line, and the folder of the run's own config groups. Raises `Problems`."""
    if not path.is_file():
        near = suggest(path.name, sorted(each.name for ending in ENDINGS for each in Path().glob(f"*{ending}")))
        raise Problems(Problem(str(path), "no such file", near, "not-found"))
    settings = leaves(path)
    if not settings:
        raise Problems(Problem(str(path), "holds no settings", "use lines such as algorithm: grpo", "bad-file"))
    code_dir = settings.pop("code_dir", None)
    if code_dir and code_dir.value and not config_dir:
        config_dir = Path(str(code_dir.value))
    resolved = any(name.endswith(f".{TARGET}") for name in settings)
    if resolved and (path.parent / "lock.json").exists():
        settings.pop("trainer.experiment_name", None)  # a new run must not take the stored run's name
    if resolved:
        return list(_resolved_arguments(settings, config_dir)), config_dir
    return [(f"{name}={_literal(leaf.value)}", leaf.line) for name, leaf in settings.items()], config_dir


def _literal(value: Any) -> str:
    return literal(value, lambda text: text if text and is_plain(text) else quoted(text.replace("${", "\\${")))


# ---- a run as it was resolved


def _resolved_arguments(settings: Mapping[str, Leaf], config_dir: Path | None) -> Iterator[tuple[str, int]]:
    """A choice of each group that has the class, and every value of the run. Raises `Problems`."""
    problems = list[Problem]()
    for group, files in choices(config_dir).items():
        own = {name: leaf for name, leaf in settings.items() if name.startswith(f"{group}.")}
        target = own.get(f"{group}.{TARGET}")
        choice = _find_choice(group, own, files)
        if choice:
            line = next(iter(own.values())).line
            yield from ((word, line) for word in [f"{group}={choice}", *_parts_argument(group, own, files[choice])])
        elif target:  # without a class they are settings of the choice that is named
            got = f"no choice has the class {target.value}"
            problems.append(Problem(group, got, "use --config-dir with the folder that has it", "unknown-choice"))
    if problems:
        raise Problems(problems)
    yield from (
        (f"{name}={_literal(leaf.value)}", leaf.line)
        for name, leaf in settings.items() if not name.endswith(f".{TARGET}")
    )  # fmt: skip


def _find_choice(group: str, own: Mapping[str, Leaf], files: Mapping[str, Path]) -> str | None:
    """The choice whose file names the same class and parts, and sets fewest values that the run lacks; None without
    one."""
    target, lacking = own.get(f"{group}.{TARGET}"), dict[str, int]()
    for choice, path in files.items() if own else ():
        file_leaves = leaves(path)
        file_target = file_leaves.pop(TARGET, None)
        parts = {name.partition("@")[0] for name in _parts_in_file(path)}
        is_same_class = (file_target and file_target.value) == (target and target.value)
        if is_same_class and (not parts or parts == _part_names(own)):
            lacking[choice] = sum(f"{group}.{name}" not in own for name in file_leaves) - len(parts)
    return min(lacking, key=lambda choice: lacking[choice], default=None)


def _parts_in_file(path: Path) -> set[str]:
    """The parts that a choice's file is composed of; its choices for other groups are not parts."""
    return {name for name in defaults_lines(path) if name != "_self_" and not name.startswith("override ")}


def _part_names(own: Mapping[str, Leaf]) -> set[str]:
    return {part[2] for name in own if (part := _PART.match(name))}


def _parts_argument(group: str, own: Mapping[str, Leaf], path: Path) -> list[str]:
    """`reward.parts={gsm8k:1.0}` where the run has parts and the choice's file has none; else empty."""
    if not (names := sorted(_part_names(own))) or _parts_in_file(path):
        return []
    weights = {name: own[key].value if (key := f"{group}.weights.{name}") in own else 1.0 for name in names}
    return [f"{group}.parts={_literal(weights)}"]
