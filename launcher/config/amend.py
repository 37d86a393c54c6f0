"""What a resumed run may change: where it runs, how fast and for how long, never how it learns."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from yaml import YAMLError

from launcher.config import guard
from launcher.config.arguments import OPTIONS, separate_options
from launcher.config.nodes import TARGET
from launcher.config.request import SourcedOverride
from launcher.core.bounded_parse import parse_yaml
from launcher.core.problems import Problem, Problems, short_repr, suggest

FREE = ("hardware.", "engine.", "cluster.", "sampler.max_num_seqs", "sampler.n_gpus", "data.val_batch_size")
FREE_OF_TRAINER = (
    "micro_batch_size_per_gpu", "max_tokens_per_gpu", "save_freq", "test_freq", "keep_last", "keep_best", "best_metric",
    "max_bad_steps", "max_restarts", "log_val_generations", "log_groups", "log_groups_freq", "logger",
    "total_training_steps", "total_epochs",
)  # fmt: skip


def amended(node: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """The stored run with the settings that `overrides` (`hardware.nproc_per_node=3`) change. Raises `Problems`."""
    words, options = separate_options([SourcedOverride(word, word) for word in overrides])
    overrides = [word.text for word in words]
    guard.check([*overrides, *(option.argument for option in options)])
    changed = deepcopy(node)
    problems = [Problem(one.shown, "no such option", suggest(one.shown, OPTIONS), "unknown-setting") for one in options]
    for word in overrides:
        path, equals, text = word.partition("=")
        if not equals or "." not in path:
            got = f"{short_repr(word)} changes no setting"
            problems.append(Problem("--resume", got, "use hardware.nproc_per_node=2"))
        elif not is_free(path):
            problems.append(_refusal(path, text))
        else:
            try:
                problems += put(changed, path, parse_yaml(text))
            except (YAMLError, ValueError):
                problems.append(Problem(str(path), f"got {short_repr(text)}", "use a number, a word or a [list]"))
    if problems:
        raise Problems(problems)
    return changed


def _refusal(path: str, text: str) -> Problem:
    amendable = [word for word in _translate_setting(path, text) if is_free(word.partition("=")[0])]
    got, fix = "cannot change while a run goes on", f"use {' '.join(amendable)}"
    if not amendable:
        fix = f"leave it out; {', '.join(FREE[:3])}, trainer.total_training_steps and the like may change"
    return Problem(path, f"{got} by this name" if amendable else got, fix, "conflicting-settings")


def _translate_setting(path: str, text: str) -> Sequence[str]:
    """The arguments here for a setting of another project; empty where there are none."""
    from launcher.config.suggestions import words_of_others  # noqa: PLC0415  # late: the names of other projects

    return words_of_others(path, text)


def is_free(path: str) -> bool:
    """Whether the setting `path` may change when a run is resumed."""
    group, _, name = path.partition(".")
    if group == "trainer":
        return name in FREE_OF_TRAINER
    return path.startswith(FREE) and path != "engine.mixed_precision"


def put(node: dict[str, Any], path: str, value: Any) -> list[Problem]:
    """Set `path` of a stored run in `node`; a problem where there is no such setting."""
    group: Any = node
    *above, name = path.split(".")
    for key in above:
        group = group.get(key) if isinstance(group, dict) else None
    known = [key for key in group if key != TARGET] if isinstance(group, dict) else []
    if name not in known:
        near = suggest(name, known) if known else suggest(above[0] if above else name, sorted(node))
        ours = _translate_setting(path, str(value))
        return [Problem(path, "no such setting", f"use {' '.join(ours)}" if ours else near, "unknown-setting")]
    group[name] = value
    return []
