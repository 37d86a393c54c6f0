"""What could follow on the command line: groups, choices, settings, values, runs and recipes.

zsh and fish hand over a word whole (`algorithm=g`); bash cuts it at `=`, so that only what follows is completed.
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
    typed = re.sub(r" ?= ?", "=", " ".join(before)).split()  # bash cuts words at `=`
    try:
        if "=" in incomplete:
            key = incomplete.partition("=")[0]
            found = [f"{key}={value}" for value in _values(key, typed, config_dir)]
        elif typed and (typed[-1].endswith("=") or (not incomplete and "=" not in typed[-1])):
            found = _values(typed[-1].rstrip("="), typed, config_dir)
        else:
            found = _names(incomplete, typed, config_dir)
    except Problems:
        return []  # a config file that cannot be read: `plan` says so, a shell has no place for it
    return [word for word in found if word.startswith(incomplete)]


def _names(incomplete: str, typed: Sequence[str], config_dir: Path | None) -> list[str]:
    """Groups to choose from or to set something of; what stands below a group once it is the only one left."""
    known = groups(config_dir)
    chosen = {word.partition("=")[0] for word in typed}
    tops = [f"{name}=" for name in known if name not in chosen]
    tops += [f"{name}." for name in [*known, "optim", "critic", "trainer"]] + ["seed="]
    found = [top for top in tops if top.startswith(incomplete)]
    if "." in incomplete or (len(found) == 1 and found[0].endswith(".")):
        top = (found[0] if found else incomplete).partition(".")[0]
        return [f"{one.name}=" for one in _settings(top, typed, config_dir)]
    return found


def _values(key: str, typed: Sequence[str], config_dir: Path | None) -> list[str]:
    known = groups(config_dir)
    if key in known:
        return known[key]
    top = key.partition(".")[0]
    return [value for one in _settings(top, typed, config_dir) if one.name == key for value in one.shape.values]


def _settings(top: str, typed: Sequence[str], config_dir: Path | None) -> Iterator[Setting]:
    """The settings of the choice that was made, or of every choice of the group; each name once."""
    if top in handbook.PLAIN:
        yield from settings_of(RunSpec, "", only=[top])
        return
    known = groups(config_dir)
    if top not in known:
        return
    chosen = [word.partition("=")[2] for word in typed if word.startswith(f"{top}=")]
    seen = set()
    for cls in handbook.classes(top, [name for name in chosen if name in known[top]] or known[top], config_dir):
        for one in settings_of(cls, top):
            if one.name not in seen:
                seen.add(one.name)
                yield one


def targets(incomplete: str, config_dir: Path | None = None) -> list[str]:
    """What `rlrun config show` takes: a group, a choice, a setting without its `=`."""
    return [name.rstrip("=.") for name in completions(incomplete, [], config_dir)]


def run_names(incomplete: str, root: Path) -> list[str]:
    """`project/experiment` of the runs below `root`, which are not read; an experiment's name alone will do, too."""
    found = sorted(f"{path.parent.parent.name}/{path.parent.name}" for path in root.glob("*/*/spec.yaml"))
    single = [name.partition("/")[2] for name in found]
    return [name for name in [*found, *(name for name in single if incomplete)] if name.startswith(incomplete)]


def sides(incomplete: str, root: Path) -> list[str]:
    """Runs and recipes."""
    return [*run_names(incomplete, root), *(name for name in recipe.known() if name.startswith(incomplete))]
