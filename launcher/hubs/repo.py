"""The nouns of a hub: a repository of files, each with its size and the hash of its content."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from launcher.core.problems import Problems, short_repr

Kind = Literal["model", "dataset"]
Source = Literal["huggingface", "modelscope"]

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,95}/[A-Za-z0-9_-][A-Za-z0-9_.-]{0,95}")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+/-]{0,199}")


@dataclass(frozen=True)
class RemoteFile:
    path: str
    """Parts are divided by `/`; it is what the hub says, so it is checked before anything is written."""
    size: int
    sha256: str | None
    git_sha1: str | None
    """Git's name of the content, sha1 of `blob SIZE\\0` and the bytes; small files on Hugging Face have only this."""


@dataclass(frozen=True)
class Listing:
    """All files of a repository at one moment."""

    source: Source
    kind: Kind
    repo: str
    revision: str
    """What was asked for: a branch, a tag or a commit."""
    commit: str
    """What that stood for, where the hub says it; otherwise the revision itself."""
    files: tuple[RemoteFile, ...]
    endpoint: str
    """Scheme and host that the hub answered from."""


@dataclass(frozen=True)
class Address:
    """Where a file's bytes are to be asked for."""

    url: str
    headers: dict[str, str]
    """For the host of `url` only: they may hold a token."""
    etag: str | None = None
    """What the hub must name the content, where it names it."""


@dataclass(frozen=True)
class Patience:
    """How long a slow or failing server is waited for."""

    connect_s: float = 10.0
    read_s: float = 20.0
    """Silence that counts as a cut connection."""
    window_s: float = 30.0
    least_bytes_per_s: float = 1024.0
    """A server that sends less than this, over the window, has stalled."""
    attempts: int = 6
    """Tries in a row that bring next to nothing, before it is given up."""
    backoff_s: float = 1.0
    """Wait after the first of them; it doubles."""


class NetworkFaults(Problems):
    """The network or the hub failed, after every retry: nothing is to mend, trying again may do."""


def is_id(text: str) -> bool:
    """Whether `text` can name a repository: `owner/name`, and nothing that could be a path or an address."""
    return bool(_ID.fullmatch(text)) and ".." not in text


def check_asked(repo: str, revision: str | None) -> None:
    """Raises `Problems` for a name or revision that no hub could have."""
    found = []
    if not is_id(repo):
        found.append(f"{short_repr(repo)}: is no repository's name; owner/name would do")
    if revision is not None and (not _REVISION.fullmatch(revision) or ".." in revision or "//" in revision):
        found.append(f"revision: got {short_repr(revision)}; a branch, tag or commit would do")
    if found:
        raise Problems(found)
