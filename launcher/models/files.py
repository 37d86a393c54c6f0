"""Which files of a repository make a model: safetensors, tokenizer and configuration. Never code, never pickle."""

from __future__ import annotations

import re

from launcher.core.problems import Problems, short_repr
from launcher.hubs.repo import Listing, RemoteFile
from launcher.models.weights import ADAPTER, INDEX, PICKLES, SINGLE

_TEXTS = re.compile(
    r"(config|generation_config|adapter_config|special_tokens_map|added_tokens|(video_)?preprocessor_config"
    r"|processor_config|chat_template)\.json"
    r"|tokenizer[\w.-]*\.(json|model|txt)|vocab[\w.-]*\.(json|txt|bpe)|merges\.txt|chat_template\.jinja"
    r"|[\w.-]+\.(model|tiktoken)|(LICEN[SC]E|NOTICE|USE_POLICY)(\.(md|txt))?|README\.md",
    re.ASCII,
)


def texts(listed: Listing) -> list[RemoteFile]:
    """Configuration, tokenizer and licence, all in the repository's own folder."""
    return [file for file in listed.files if _TEXTS.fullmatch(file.path)]


def weights(listed: Listing) -> RemoteFile:
    """The file that holds the weights, or the index that names those that do: the one that a loader would take.

    Raises `Problems` where there is none, and says so when there is only pickle.
    """
    by_path = {file.path: file for file in listed.files}
    for name in (SINGLE, INDEX, ADAPTER):
        if name in by_path:
            return by_path[name]
    where = f"{listed.repo} on {listed.source}"
    pickles = [file.path for file in listed.files if file.path.endswith(PICKLES)]
    if pickles:
        raise Problems(
            [f"{where}: has its weights as {short_repr(pickles[0])} only, a format that can run code when it is opened;"
             " a"
             " revision with safetensors would do, or another repository of that model"]
        )  # fmt: skip
    raise Problems([f"{where}: has no {SINGLE} and no {INDEX}; a repository of a model would do"])


def named(listed: Listing, paths: list[str]) -> list[RemoteFile]:
    by_path = {file.path: file for file in listed.files}
    return [by_path[path] for path in paths]
