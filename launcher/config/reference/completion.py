"""Shell completion of the command line: groups, choices, settings and runs.

zsh and fish pass a whole word (`algorithm=g`); bash splits it at `=`, so that only what follows is completed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from launcher.config.compose import choices
from launcher.config.known import holders


def completions(incomplete: str, before: Sequence[str], config_dir: Path | None = None) -> list[str]:
    """What `incomplete` could become, after the words `before`, up to the next `.` or `=`."""
    last = re.sub(r" ?= ?", "=", " ".join(before)).split()[-1:]  # bash splits words at `=`
    is_value = last and (last[0].endswith("=") or (not incomplete and "=" not in last[0]))
    start = f"{last[0].rstrip('=')}=" if is_value else ""
    text, files = start + incomplete, choices(config_dir)
    if "=" in text:
        words = [f"{group}={choice}" for group, names in files.items() for choice in sorted(names)]
        return [word.removeprefix(start) for word in words if word.startswith(text)]
    names = [f"{name}=" for name in (*files, *holders(files)) if f"{name}=".startswith(text)]
    ends = [re.compile("[.=]").search(name, len(text)) for name in names]
    return list(dict.fromkeys(end.string[: end.end()] for end in ends if end))


def targets(incomplete: str, config_dir: Path | None = None) -> list[str]:
    """What `rlrun config show` takes: a group, a choice, a setting without its `=`."""
    return list(dict.fromkeys(name.rstrip("=.") for name in completions(incomplete, [], config_dir)))


def run_names(incomplete: str, root: Path) -> list[str]:
    """`project/experiment` of the runs below `root`, which are not read; an experiment's name alone will do, too."""
    names = sorted(f"{path.parent.parent.name}/{path.parent.name}" for path in root.glob("*/*/spec.yaml"))
    short_names = [name.partition("/")[2] for name in names]
    return [name for name in [*names, *(name for name in short_names if incomplete)] if name.startswith(incomplete)]
