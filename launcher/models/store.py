"""The local store of models, and downloads into it: safetensors, tokenizer and configuration, never code or pickle.

$RLRUN_MODELS (or ~/.cache/rlrun/models)/<owner>/<name>             the hub's main revision at the time of the download
                                        /<owner>/<name>@<revision>  a revision that was asked for
                                        /<name>                     put there by hand, as <owner>/<name> may be
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from launcher.core.files import expand_user
from launcher.core.problems import Problem, Problems, short_repr
from launcher.hubs import huggingface, manifest, names
from launcher.hubs.choice import FromHub, hubs_of
from launcher.hubs.fetch import fetch, list_files
from launcher.hubs.progress import OnProgress
from launcher.hubs.repo import Listing, RemoteFile, Source, check_repo
from launcher.models import config, weights

_SMALL_FILES = re.compile(
    r"(config|generation_config|adapter_config|special_tokens_map|added_tokens|(video_)?preprocessor_config"
    r"|processor_config|chat_template)\.json"
    r"|tokenizer[\w.-]*\.(json|model|txt)|vocab[\w.-]*\.(json|txt|bpe)|merges\.txt|chat_template\.jinja"
    r"|[\w.-]+\.(model|tiktoken)|(LICEN[SC]E|NOTICE|USE_POLICY)(\.(md|txt))?|README\.md",
    re.ASCII,
)
"""Files that are downloaded beside the weights: configuration, tokenizer and licence at the top level, no code."""


def root() -> Path:
    """The folder of all models. Raises `Problems` where it names the home of an unknown user."""
    return expand_user(os.environ.get("RLRUN_MODELS") or "~/.cache/rlrun/models")


def folder_of(repo: str, revision: str | None = None) -> Path:
    """The store's folder of a repository; all differ, as repository names have no `@`. Raises `Problems` for a name
    that no hub can have."""
    check_repo(repo, revision)
    return root() / (f"{repo}@{revision.replace('/', '@')}" if revision else repo)


def find(repo: str, revision: str | None = None) -> Path | None:
    """The local folder of a model, in the store or in the Hugging Face client's cache; None where there is none. Raises
    `Problems` for a name that no hub can have."""
    stored = folder_of(repo, revision)
    for folder in (stored, *([] if revision else [root() / Path(repo).name])):
        downloaded = manifest.complete(folder)
        by_hand = not revision and (folder / "config.json").is_file() and not (folder / names.OURS).exists()
        complete = by_hand or (downloaded is not None and (folder == stored or downloaded.repo == repo))
        if complete and not weights.folder_faults(folder):
            return folder
    cached = huggingface.cached(repo, revision)
    return cached if cached and not weights.folder_faults(cached) else None


def find_or_download(wanted: FromHub, watch: OnProgress) -> Path:
    """The local folder of a model, which is downloaded if need be. Raises as `download` does."""
    folder = find(wanted.path, wanted.revision)
    return folder or download(wanted.path, watch, sources=hubs_of(wanted.source), revision=wanted.revision)


def download(
    repo: str, watch: OnProgress, *, sources: Sequence[Source], revision: str | None = None, to: Path | None = None,
    workers: int = 4,
) -> Path:  # fmt: skip
    """Download a model completely, and return its folder. Files that are there already are kept.

    Raises `Problems` (nothing to load, gated, disk full; `not-reachable` where a retry may help) or `OSError`.
    """
    if to is None and huggingface.offline() and (existing := find(repo, revision)):
        return existing  # offline: no hub can be asked whether it changed
    folder = to or folder_of(repo, revision)
    listing = list_files("model", repo, sources=sources, revision=revision)
    fetch(listing, _files_to_download(listing), folder, watch, workers=workers)
    if faults := weights.folder_faults(folder):
        raise Problems(faults)
    return folder


def _files_to_download(listed: Listing) -> list[RemoteFile]:
    """Small files and weights. Configuration and index are fetched first, so that no shard is downloaded in vain."""
    where, by_path = f"{listed.repo} on {listed.source}", {file.path: file for file in listed.files}
    found = [by_path[name] for name in (weights.SINGLE, weights.INDEX, weights.ADAPTER) if name in by_path]
    if not found:
        raise Problems(weights.missing_problem(where, by_path))
    weight, sharded = found[0], found[0].path == weights.INDEX  # the one that a loader would use
    texts = [file for file in listed.files if _SMALL_FILES.fullmatch(file.path)]
    config_files = [file for file in texts if file.path == "config.json"]
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        fetch(listed, [*config_files, *([weight] if sharded else [])], folder, lambda progress: None)
        if code := config.foreign_code(config.read(folder) or {}):
            got = f"needs Python code that comes with it ({short_repr(code)}), which is never downloaded"
            fix = "use a model that transformers knows, or set model.trust_remote_code=true in a run"
            raise Problems(Problem(where, got, fix, "not-supported"))
        shards = _find_shards((folder / weights.INDEX).read_bytes(), by_path, where) if sharded else []
    return [*texts, weight, *shards]


def _find_shards(index: bytes, by_path: Mapping[str, RemoteFile], where: str) -> list[RemoteFile]:
    """The files of weights that the index names. Raises `Problems` where it is damaged or a file is missing."""
    if faults := weights.index_faults(index, set(by_path)):
        raise Problems(problem.within(f"{where}: {weights.INDEX}") for problem in faults)
    shards = set(weights.shards_of(index)[0])
    return [file for path, file in by_path.items() if path in shards]
