"""Where models lie on this machine, and how they come here.

$RLRUN_MODELS (or ~/.cache/rlrun/models)/<owner>/<name>             the hub's main revision, as it was when it came
                                        /<owner>/<name>@<revision>  one that was asked for
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from launcher.core.files import expand_user
from launcher.core.problems import Problems, short_repr
from launcher.hubs import huggingface, manifest
from launcher.hubs.fetch import fetch, listing
from launcher.hubs.progress import Watch
from launcher.hubs.repo import Listing, RemoteFile, Source, check_asked
from launcher.models import config, files, weights


def root() -> Path:
    return expand_user(os.environ.get("RLRUN_MODELS") or "~/.cache/rlrun/models")


def folder_of(repo: str, revision: str | None = None) -> Path:
    """Where the store keeps a repository. `@` stands in no repository's name, so no two share a folder."""
    check_asked(repo, revision)
    return root() / (f"{repo}@{revision.replace('/', '@')}" if revision else repo)


def find(repo: str, revision: str | None = None) -> Path | None:
    """The folder of a model that is here: in the store, or where the Hugging Face client keeps what it downloaded."""
    stored = folder_of(repo, revision)
    if manifest.complete(stored) and not weights.folder_faults(stored):
        return stored
    cached = huggingface.cached(repo, revision)
    return cached if cached and not weights.folder_faults(cached) else None


def download(
    repo: str,
    watch: Watch,
    *,
    sources: Sequence[Source],
    revision: str | None = None,
    to: Path | None = None,
    workers: int = 4,
) -> Path:
    """The folder with the model, complete. What is there already is not fetched again.

    Raises `Problems` (nothing to load, gated, no room), `NetworkFaults`, or `OSError`.
    """
    if to is None and huggingface.offline() and (here := find(repo, revision)):
        return here  # nobody may be asked whether it changed
    folder = to or folder_of(repo, revision)
    listed = listing("model", repo, sources=sources, revision=revision)
    fetch(listed, _wanted(listed), folder, watch, workers=workers)
    if found := weights.folder_faults(folder):
        raise Problems(found)
    return folder


def _wanted(listed: Listing) -> list[RemoteFile]:
    """Texts and weights. Configuration and index are read before: no shard is fetched on the word of bad ones."""
    texts, weight = files.texts(listed), files.weights(listed)
    where, looked_at = f"{listed.repo} on {listed.source}", [file for file in texts if file.path == "config.json"]
    sharded = weight.path == weights.INDEX
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        fetch(listed, [*looked_at, *([weight] if sharded else [])], folder, lambda progress: None)
        if code := config.foreign_code(config.read(folder) or {}):
            raise Problems(
                [f"{where}: needs Python code that comes with it ({short_repr(code)}), which is never fetched;"
                 " a model that"
                 " transformers knows by itself would do, or model.trust_remote_code=true in a run"]
            )  # fmt: skip
        index = (folder / weights.INDEX).read_bytes() if sharded else b""
    if not sharded:
        return [*texts, weight]
    if found := weights.index_faults(index, {file.path for file in listed.files}):
        raise Problems([f"{where}: {weights.INDEX}: {line}" for line in found])
    return [*texts, weight, *files.named(listed, weights.shards_of(index)[0])]
