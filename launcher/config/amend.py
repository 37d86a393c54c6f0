"""What a resumed run may change: where it runs, how fast and for how long, never how it learns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

from launcher.config import guard
from launcher.config.arguments import OPTIONS, join_options
from launcher.config.grammar import setting
from launcher.config.nodes import TARGET
from launcher.config.request import SourcedOverride
from launcher.core.overrides import key_of
from launcher.core.problems import Problem, Problems, suggest

FREE = ("hardware.", "engine.", "cluster.", "sampler.max_num_seqs", "sampler.n_gpus", "data.val_batch_size")
FREE_OF_TRAINER = (
    "micro_batch_size_per_gpu", "max_tokens_per_gpu", "save_freq", "test_freq", "keep_last", "keep_best", "best_metric",
    "max_bad_steps", "max_restarts", "log_val_generations", "log_groups", "log_groups_freq", "logger",
    "total_training_steps", "total_epochs",
)  # fmt: skip


def amended(node: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """The stored run with the settings that `overrides` (`hardware.nproc_per_node=3`) change. Raises `Problems`."""
    changed, problems = with_values(node, overrides, _refuse_to_learn_otherwise)
    if problems:
        raise Problems(problems)
    return changed


def with_values(
    node: dict[str, Any], overrides: Sequence[str], refuse: Callable[[str, Any], Problem | None]
) -> tuple[dict[str, Any], list[Problem]]:
    """A stored run with the values of `overrides`, and a problem for each that sets nothing of it, or that `refuse`
    refuses, given its name and the stored value."""
    words = join_options([SourcedOverride(word, word) for word in overrides])
    readable, problems = guard.separate([word.text for word in words])
    changed = deepcopy(node)
    for word in words:
        try:
            if word.dashes:
                raise Problems(Problem(word.shown, "no such option", suggest(word.shown, OPTIONS), "unknown-setting"))
            if word.text in readable:
                path, value = setting(word.text)
                group, name = _group_of(changed, path, value), path.rpartition(".")[2]
                if refused := refuse(path, group[name]):
                    raise Problems(refused)
                group[name] = value
        except Problems as invalid:
            problems += invalid.problems
    return changed, problems


def _refuse_to_learn_otherwise(path: str, _: Any) -> Problem | None:
    fix = f"leave it out; {', '.join(FREE[:3])}, trainer.total_training_steps and the like may change"
    problem = Problem(path, "cannot change while a run goes on", fix, "conflicting-settings")
    return None if is_free(path) else problem


def is_free(path: str) -> bool:
    """Whether the setting `path` may change when a run is resumed."""
    group, _, name = path.partition(".")
    if group == "trainer":
        return name in FREE_OF_TRAINER
    return path.startswith(FREE) and path != "engine.mixed_precision"


def _group_of(node: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """The mapping of a stored run that holds the setting `path`. Raises `Problems` where there is no such setting."""
    group: Any = node
    *above, name = path.split(".")
    for key in above:
        group = group.get(key) if isinstance(group, dict) else None
    known = [key for key in group if key != TARGET] if isinstance(group, dict) else []
    if name not in known:
        from launcher.config.suggestions import words_of_others  # noqa: PLC0415  # late: the names of other projects

        near = suggest(name, known) if known else suggest(above[0] if above else name, sorted(node))
        ours = [word for word in words_of_others(path, str(value)) if "." in key_of(word)]  # no choice is made anew
        raise Problems(Problem(path, "no such setting", f"use {' '.join(ours)}" if ours else near, "unknown-setting"))
    assert isinstance(group, dict)
    return group
