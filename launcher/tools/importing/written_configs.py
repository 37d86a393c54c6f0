"""Configs of Hydra that a script writes itself (`cat > conf/own.yaml <<EOF`) and then starts verl with.

The script wrote them in its sandbox, which is gone; the text lies in a folder of its own while the launch is imported.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from launcher.engines.verl.config.compose import FLAGS
from launcher.tools.importing.launches import Launch

FOLDERS = ("--config-path", "--config-dir")


@dataclass(frozen=True)
class WithConfig:
    """A launch whose config lies in a folder of this machine."""

    launch: Launch
    notes: list[str] = field(default_factory=list)
    """What is left out of the config."""


def with_written_config(
    launch: Launch, written: Mapping[str, str], placeholders: Sequence[str], folder: Path
) -> WithConfig:
    """The launch with its config in `folder`, where the script writes that config; else as it is."""
    flags, places = _flags(launch.words)
    flag = next((name for name in FOLDERS if name in flags), "")
    name = flags.get("--config-name", "").removesuffix(".yaml")
    if not flag or not name:
        return WithConfig(launch)
    below = "" if flags[flag].startswith("{") else launch.folder  # a placeholder such as {mktemp -d} is a whole path
    path = posixpath.normpath(posixpath.join(below, flags[flag], f"{name}.yaml"))
    own = posixpath.basename(path)  # the name may be a path, too
    if path not in written:
        return WithConfig(launch)
    text = written[path]
    kept, notes = [], []
    for line in text.splitlines():
        parts = [part for part in placeholders if part and part in line]
        if parts:
            shown = f"{own}: {line.strip()}"
            notes.append(f"{launch.line}: {shown} is left out; only running the script tells {', '.join(parts)}")
        else:
            kept.append(line)
    (folder / own).write_text("\n".join([*kept, ""]), encoding="utf-8")
    words = [word for place, word in enumerate(launch.words) if place not in places]
    config = (f"{flag}={folder}", f"--config-name={own.removesuffix('.yaml')}")
    return WithConfig(replace(launch, words=(*config, *words)), notes)


def _flags(words: Sequence[str]) -> tuple[dict[str, str], set[int]]:
    """Hydra's flags that choose a config, and the numbers of their words."""
    found, places = dict[str, str](), set[int]()
    for place, word in enumerate(words):
        flag, equals, value = word.partition("=")
        flag = FLAGS.get(flag, flag)
        if flag in FLAGS.values() and place not in places:
            places |= {place} if equals else {place, place + 1}
            found[flag] = value if equals else "".join(words[place + 1 : place + 2])
    return found, places
