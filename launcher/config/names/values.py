"""Values that stand for a choice and a setting: paths, addresses and ids of a hub."""

from __future__ import annotations

import os
import re

from launcher.core.overrides import argument
from launcher.spec.data import ENDINGS

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_ADDRESS = re.compile(r"\w+://")
PATH_SETTINGS = {
    "model": ("model=hf", "model.path"), "data": ("data=hub", "data.repo"), "reward": ("reward=model", "reward.path"),
}  # fmt: skip
"""Group -> the choice that takes a path or an id of a hub, and the setting that holds it."""


def words_of_value(group: str, value: str) -> list[str]:
    """The choice and the setting that a path, an address or a hub's id stands for; empty where `value` is none."""
    if group == "data":
        parts = [part.strip("'\" ") for part in value[1:-1].split(",")] if value.startswith("[") else [value]
        if not any(map(_ADDRESS.match, parts)) and all(map(_is_of_rows, parts)):
            text = value if value.startswith("[") else argument("", value)[1:]
            return ["data=files", f"data.train_files={text}"]
    if group == "reward" and _ADDRESS.match(value):
        return ["reward=remote", argument("reward.url", value)]
    if group == "reward" and (file := re.fullmatch(r"(.+\.py)(?:::?(\w+))?", value)):
        return ["reward=python", argument("reward.path", file[1]), *([f"reward.name={file[2]}"] if file[2] else [])]
    if group not in PATH_SETTINGS or not (is_local_path(value) or HUB_ID.fullmatch(value)):
        return []
    choice, setting = PATH_SETTINGS[group]
    return [choice, argument(setting, value)]


def _is_of_rows(path: str) -> bool:
    """Whether it is a file or a folder of rows, or a pattern of such files."""
    return path.lower().endswith(ENDINGS) or "*" in path or is_local_path(path) or os.path.isfile(path)


def is_local_path(value: str) -> bool:
    """Whether it can only be a path, or names an existing folder."""
    if value.startswith("[") or _ADDRESS.match(value):
        return False
    return value.startswith(("/", "./", "../", "~")) or value.count("/") > 1 or os.path.isdir(value)
