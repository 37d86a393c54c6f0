"""A file that a tracker appends to, and that holds exactly what is remembered: what was written after that, before a
kill, is cut off when it is opened again."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class OwnFile:
    """`has` is None where the file holds what `state` says; else it begins anew, and `has` is -1. Of a file that is not
    `ours`, what others wrote before stays."""

    def __init__(self, path: Path, state: Mapping[str, Any], *, ours: bool) -> None:
        self.path, self._named = path, str(path.absolute())
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        self._file = os.fdopen(os.open(path, flags, 0o600), "r+b")
        there = os.fstat(self._file.fileno()).st_size
        if state.get("path") == self._named:
            self._base, size = int(state["base"]), int(state["bytes"])
            self.has = None if there >= size else -1
            size = size if self.has is None else min(self._base, there)
        else:
            self._base = size = 0 if ours else there
            self.has = -1
        self._file.truncate(size)
        self._file.seek(size)

    @property
    def state(self) -> dict[str, Any]:
        """What is to be remembered of it as it is now."""
        return {"path": self._named, "base": self._base, "bytes": self._file.tell()}

    @property
    def is_new(self) -> bool:
        return self._file.tell() == self._base

    def write(self, data: bytes) -> None:
        self._file.write(data)

    def flush(self) -> None:
        """Hand everything to the system."""
        self._file.flush()

    def close(self) -> None:
        self._file.close()
