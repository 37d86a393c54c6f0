"""Where models are on this machine, and their download: safetensors, tokenizer and configuration, never code or pickle.

$RLRUN_MODELS (or ~/.cache/rlrun/models)/<owner>/<name>             the hub's main revision when it was downloaded
                                        /<owner>/<name>@<revision>  one that was asked for
                                        /<name>                     put there by hand, as <owner>/<name> may be, too
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from launcher.core.files import expand_user
from launcher.core.problems import Problem, Problems, short_repr
from launcher.hubs import huggingface, manifest, names
from launcher.hubs.choice import FromHub
from launcher.hubs.fetch import fetch, list_files
from launcher.hubs.progress import OnProgress
from launcher.hubs.repo import Listing, RemoteFile, Source, check_repo
from launcher.models import config, weights

_TEXTS = re.compile(
    r"(config|generation_config|adapter_config|special_tokens_map|added_tokens|(video_)?preprocessor_config"
    r"|processor_config|chat_template)\.json"
    r"|tokenizer[\w.-]*\.(json|model|txt)|vocab[\w.-]*\.(json|txt|bpe)|merges\.txt|chat_template\.jinja"
    r"|[\w.-]+\.(model|tiktoken)|(LICEN[SC]E|NOTICE|USE_POLICY)(\.(md|txt))?|README\.md",
    re.ASCII,
)
"""What is taken beside the weights: configuration, tokenizer and licence in the repository's own folder, no code."""


def root() -> Path:
    """The folder of all models. Raises `Problems` where it names the home of nobody."""
    return expand_user(os.environ.get("RLRUN_MODELS") or "~/.cache/rlrun/models")


def folder_of(repo: str, revision: str | None = None) -> Path:
    """Where the store keeps a repository. No two share a folder, as no repository's name has an `@`. Raises `Problems`
    for a name that no hub could have."""
    check_repo(repo, revision)
    return root() / (f"{repo}@{revision.replace('/', '@')}" if revision else repo)


def find(repo: str, revision: str | None = None) -> Path | None:
    """The folder of a model that is here: in the store, or where the Hugging Face client keeps what it downloaded.
    Raises `Problems` for a name that no hub could have."""
    stored = folder_of(repo, revision)
    for folder in (stored, *([] if revision else [root() / Path(repo).name])):
        made = manifest.complete(folder)
        put_there = not revision and (folder / "config.json").is_file() and not (folder / names.OURS).exists()
        is_whole = put_there or (made is not None and (folder == stored or made.repo == repo))
        if is_whole and not weights.folder_faults(folder):
            return folder
    cached = huggingface.cached(repo, revision)
    return cached if cached and not weights.folder_faults(cached) else None


def find_or_download(wanted: FromHub, watch: OnProgress) -> Path:
    """The folder of a model that is here, or is downloaded. Raises as `download` does."""
    here = find(wanted.path, wanted.revision)
    return here or download(wanted.path, watch, sources=wanted.hub_order, revision=wanted.revision)


def download(
    repo: str, watch: OnProgress, *, sources: Sequence[Source], revision: str | None = None, to: Path | None = None,
    workers: int = 4,
) -> Path:  # fmt: skip
    """The folder with the model, complete. What is there already is not downloaded again.

    Raises `Problems` (nothing to load, gated, no room; `not-reachable` where trying again may help) or `OSError`.
    """
    if to is None and huggingface.offline() and (here := find(repo, revision)):
        return here  # no hub may be asked whether it changed
    folder = to or folder_of(repo, revision)
    listed = list_files("model", repo, sources=sources, revision=revision)
    fetch(listed, _wanted(listed), folder, watch, workers=workers)
    if found := weights.folder_faults(folder):
        raise Problems(found)
    return folder


def _wanted(listed: Listing) -> list[RemoteFile]:
    """Texts and weights. Configuration and index are read first, so that no shard is downloaded for nothing."""
    texts, weight = [file for file in listed.files if _TEXTS.fullmatch(file.path)], _weights_file(listed)
    where, read_first = f"{listed.repo} on {listed.source}", [file for file in texts if file.path == "config.json"]
    sharded = weight.path == weights.INDEX
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        fetch(listed, [*read_first, *([weight] if sharded else [])], folder, lambda progress: None)
        if code := config.foreign_code(config.read(folder) or {}):
            got = f"needs Python code that comes with it ({short_repr(code)}), which is never downloaded"
            fix = "use a model that transformers knows, or set model.trust_remote_code=true in a run"
            raise Problems(Problem(where, got, fix, "not-supported"))
        index = (folder / weights.INDEX).read_bytes() if sharded else b""
    if not sharded:
        return [*texts, weight]
    if found := weights.index_faults(index, {file.path for file in listed.files}):
        raise Problems(problem.within(f"{where}: {weights.INDEX}") for problem in found)
    shards = set(weights.shards_of(index)[0])
    return [*texts, weight, *(file for file in listed.files if file.path in shards)]


def _weights_file(listed: Listing) -> RemoteFile:
    """The file that holds the weights, or the index that names those that do: the one that a loader would take.

    Raises `Problems` where there is none, or only pickle.
    """
    by_path = {file.path: file for file in listed.files}
    for name in (weights.SINGLE, weights.INDEX, weights.ADAPTER):
        if name in by_path:
            return by_path[name]
    where = f"{listed.repo} on {listed.source}"
    pickles = [file.path for file in listed.files if file.path.endswith(weights.PICKLES)]
    if pickles:
        got = f"has its weights as {short_repr(pickles[0])} only, a format that can run code when it is opened"
        fix = "use a revision with safetensors, or another repository of that model"
        raise Problems(Problem(where, got, fix, "not-supported"))
    got = f"has no {weights.SINGLE} and no {weights.INDEX}"
    raise Problems(Problem(where, got, "use a repository of a model", "not-found"))
