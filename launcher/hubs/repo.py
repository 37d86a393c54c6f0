"""The nouns of a hub: a repository of files, each with its size and the hash of its content."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from launcher.core.problems import Problem, Problems, short_repr

Kind = Literal["model", "dataset"]
Source = Literal["huggingface", "modelscope"]

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,95}/[A-Za-z0-9_-][A-Za-z0-9_.-]{0,95}")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+/-]{0,199}")
_READ_BYTES = 1 << 20


@dataclass(frozen=True)
class RemoteFile:
    path: str
    """Path with `/`, as the hub lists it; it is checked before anything is written."""
    size: int
    sha256: str | None
    git_sha1: str | None
    """Git's blob id, the SHA-1 of `blob SIZE\\0` and the bytes; small files on Hugging Face have only this."""

    def sha256_if_equal(self, local: Path, on_bytes: Callable[[int], None]) -> str:
        """The sha256 of `local` if its bytes are this file's, otherwise the empty string.

        `on_bytes` is called with the number of bytes read so far. Raises `OSError`.
        """
        if local.stat().st_size != self.size:
            return ""
        sha256, git = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % self.size, usedforsecurity=False)
        with local.open("rb") as stream:
            while data := stream.read(_READ_BYTES):
                sha256.update(data)
                if not self.sha256:
                    git.update(data)
                on_bytes(stream.tell())
        same = sha256.hexdigest() == self.sha256 if self.sha256 else git.hexdigest() == self.git_sha1
        return sha256.hexdigest() if same else ""


@dataclass(frozen=True)
class Listing:
    """All files of a repository at one moment."""

    source: Source
    kind: Kind
    repo: str
    revision: str
    """The requested branch, tag or commit."""
    commit: str
    """The commit that the revision names; on a hub without commits, a hash of the listing."""
    files: tuple[RemoteFile, ...]
    endpoint: str
    """Scheme and host that the hub answered from."""


def is_id(text: str) -> bool:
    """Whether `text` can name a repository: `owner/name`, and nothing that could be a path or an address."""
    return bool(_ID.fullmatch(text)) and ".." not in text


def check_repo(repo: str, revision: str | None) -> None:
    """Raises `Problems` for a name or revision that no hub could have."""
    problems = []
    if not is_id(repo):
        problems.append(Problem(short_repr(repo), "not the name of a repository", "expected owner/name"))
    if revision is not None and (not _REVISION.fullmatch(revision) or ".." in revision or "//" in revision):
        problems.append(Problem("revision", f"got {short_repr(revision)}", "expected a branch, tag or commit"))
    if problems:
        raise Problems(problems)
