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
from launcher.config.defaults import REASONS
from launcher.config.descriptions import default_of, fields_of
from launcher.config.nodes import TARGET, nested, owner
from launcher.config.yaml_lines import Leaf, defaults_lines, leaves
from launcher.core.overrides import is_plain, literal, quoted
from launcher.core.problems import Problem, Problems, suggest
from launcher.spec.run import RunSpec

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
    """The choice of each group, and the settings that neither its file nor its class has. Raises `Problems`."""
    file_values, problems = dict[str, Any](), list[Problem]()
    for group, files in choices(config_dir).items():
        own = _leaves_below(group, settings)
        choice = _find_choice(group, own, files)
        if choice:
            file_values |= {f"{group}.{name}": leaf.value for name, leaf in leaves(files[choice]).items()}
            line = next(iter(own.values())).line
            yield from ((word, line) for word in [f"{group}={choice}", *_parts_argument(group, own, files[choice])])
        elif target := own.get(f"{group}.{TARGET}"):  # without a class they are settings of the choice that is named
            got = f"no choice has the class {target.value}"
            problems.append(Problem(group, got, "use --config-dir with the folder that has it", "unknown-choice"))
    if problems:
        raise Problems(problems)
    node = nested({name: leaf.value for name, leaf in settings.items()})
    for name, leaf in settings.items():
        is_weight = "reward.weights." in name and not _PART.match(name)  # already in `reward.parts`
        known = leaf.value == file_values[name] if name in file_values else _is_default(node, name, leaf.value)
        if (
            not name.endswith(f".{TARGET}") and not is_weight and (name in REASONS or not known)
        ):  # fitted values are kept as they were
            yield f"{name}={_literal(leaf.value)}", leaf.line


def _leaves_below(group: str, settings: Mapping[str, Leaf]) -> dict[str, Leaf]:
    return {name: leaf for name, leaf in settings.items() if name.startswith(f"{group}.")}


def _find_choice(group: str, own: Mapping[str, Leaf], files: Mapping[str, Path]) -> str | None:
    """The choice whose file names the same class and sets most equal values and fewest others; None without one."""
    target, best = own.get(f"{group}.{TARGET}"), dict[str, tuple[int, int]]()
    for choice, path in files.items() if own else ():
        file_leaves = leaves(path)
        file_target = file_leaves.pop(TARGET, None)
        if (file_target.value if file_target else None) != (target.value if target else None):
            continue
        parts = {name.partition("@")[0] for name in _parts_in_file(path)}
        if parts and parts != _part_names(own):
            continue
        values = {f"{group}.{name}": leaf.value for name, leaf in file_leaves.items() if leaf.value != "???"}
        equal_count = sum(name in own and own[name].value == value for name, value in values.items())
        best[choice] = (2 * equal_count - len(values) + len(parts), -len(file_leaves))
    return max(best, key=lambda choice: best[choice], default=None)


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


def _is_default(node: Mapping[str, Any], name: str, value: Any) -> bool:
    cls, below = owner(node, name)
    declared = fields_of(cls).get(below)
    if declared is None or declared.is_required() or (cls is RunSpec and below != name):
        return False
    default = default_of(declared)
    return bool(value == (list(default) if isinstance(default, tuple) else default))
