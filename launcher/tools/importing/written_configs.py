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
    """Lines that were left out of the config, and why."""


def with_written_config(
    launch: Launch, written: Mapping[str, str], placeholders: Sequence[str], folder: Path
) -> WithConfig:
    """The launch with its config in `folder`, where the script wrote that config; else the launch as it is."""
    flags, positions = _flags(launch.words)
    flag = next((name for name in FOLDERS if name in flags), "")
    name = flags.get("--config-name", "").removesuffix(".yaml")
    if not flag or not name:
        return WithConfig(launch)
    base = "" if flags[flag].startswith("{") else launch.folder  # a placeholder such as {mktemp -d} is a whole path
    path = posixpath.normpath(posixpath.join(base, flags[flag], f"{name}.yaml"))
    file_name = posixpath.basename(path)  # the name may be a path, too
    if path not in written:
        return WithConfig(launch)
    text = written[path]
    lines, notes = [], []
    for line in text.splitlines():
        parts = [part for part in placeholders if part and part in line]
        if parts:
            shown = f"{file_name}: {line.strip()}"
            notes.append(f"{launch.line}: {shown} is left out; only running the script tells {', '.join(parts)}")
        else:
            lines.append(line)
    (folder / file_name).write_text("\n".join([*lines, ""]), encoding="utf-8")
    words = [word for index, word in enumerate(launch.words) if index not in positions]
    config = (f"{flag}={folder}", f"--config-name={file_name.removesuffix('.yaml')}")
    return WithConfig(replace(launch, words=(*config, *words)), notes)


def _flags(words: Sequence[str]) -> tuple[dict[str, str], set[int]]:
    """Values of Hydra's flags that choose a config, and the positions of their words."""
    flags, positions = dict[str, str](), set[int]()
    for index, word in enumerate(words):
        flag, equals, value = word.partition("=")
        flag = FLAGS.get(flag, flag)
        if flag in FLAGS.values() and index not in positions:
            positions |= {index} if equals else {index, index + 1}
            flags[flag] = value if equals else "".join(words[index + 1 : index + 2])
    return flags, positions
