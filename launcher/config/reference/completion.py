"""Shell completion of the command line: groups, choices, settings, values, runs and recipes.

zsh and fish pass a whole word (`algorithm=g`); bash splits it at `=`, so that only what follows is completed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from launcher.config import recipe
from launcher.config.compose import groups
from launcher.config.descriptions import Setting, settings_of
from launcher.config.reference import groups as handbook
from launcher.core.problems import Problems
from launcher.spec.run import RunSpec


def completions(incomplete: str, before: Sequence[str], config_dir: Path | None = None) -> list[str]:
    """The words that `incomplete` could become, after the words `before`."""
    typed = re.sub(r" ?= ?", "=", " ".join(before)).split()  # bash splits words at `=`
    try:
        if "=" in incomplete:
            key = incomplete.partition("=")[0]
            candidates = [f"{key}={value}" for value in _values(key, typed, config_dir)]
        elif typed and (typed[-1].endswith("=") or (not incomplete and "=" not in typed[-1])):
            candidates = _values(typed[-1].rstrip("="), typed, config_dir)
        else:
            candidates = _names(incomplete, typed, config_dir)
    except Problems:
        return []  # an unreadable config file: `plan` reports it, a completion cannot
    return [word for word in candidates if word.startswith(incomplete)]


def _names(incomplete: str, typed: Sequence[str], config_dir: Path | None) -> list[str]:
    """Groups, as `group=` and `group.`; the settings of a group once it is the only candidate."""
    known = groups(config_dir)
    chosen = {word.partition("=")[0] for word in typed}
    tops = [f"{name}=" for name in known if name not in chosen]
    tops += [f"{name}." for name in [*known, "optim", "critic", "trainer"]] + ["seed="]
    candidates = [top for top in tops if top.startswith(incomplete)]
    if "." in incomplete or (len(candidates) == 1 and candidates[0].endswith(".")):
        top = (candidates[0] if candidates else incomplete).partition(".")[0]
        return [f"{setting.name}=" for setting in _settings(top, typed, config_dir)]
    return candidates


def _values(key: str, typed: Sequence[str], config_dir: Path | None) -> list[str]:
    known = groups(config_dir)
    if key in known:
        return known[key]
    top = key.partition(".")[0]
    return [value for one in _settings(top, typed, config_dir) if one.name == key for value in one.shape.values]


def _settings(top: str, typed: Sequence[str], config_dir: Path | None) -> Iterator[Setting]:
    """The settings of the chosen file's class, or of all choices of the group; each name once."""
    if top in handbook.PLAIN:
        yield from settings_of(RunSpec, "", only=[top])
        return
    known = groups(config_dir)
    if top not in known:
        return
    chosen = [word.partition("=")[2] for word in typed if word.startswith(f"{top}=")]
    seen = set()
    for cls in handbook.classes(top, [name for name in chosen if name in known[top]] or known[top], config_dir):
        for setting in settings_of(cls, top):
            if setting.name not in seen:
                seen.add(setting.name)
                yield setting


def targets(incomplete: str, config_dir: Path | None = None) -> list[str]:
    """What `rlrun config show` takes: a group, a choice, a setting without its `=`."""
    return [name.rstrip("=.") for name in completions(incomplete, [], config_dir)]


def run_names(incomplete: str, root: Path) -> list[str]:
    """`project/experiment` of the runs below `root`, which are not read; an experiment's name alone will do, too."""
    names = sorted(f"{path.parent.parent.name}/{path.parent.name}" for path in root.glob("*/*/spec.yaml"))
    short_names = [name.partition("/")[2] for name in names]
    return [name for name in [*names, *(name for name in short_names if incomplete)] if name.startswith(incomplete)]


def sides(incomplete: str, root: Path) -> list[str]:
    """Runs and recipes."""
    return [*run_names(incomplete, root), *(name for name in recipe.known() if name.startswith(incomplete))]
