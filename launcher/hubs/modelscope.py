"""ModelScope, through its own client, whose endpoint (MODELSCOPE_ENDPOINT) and token are used."""

from __future__ import annotations

import hashlib
import importlib
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from launcher.core.problems import Problem, Problems
from launcher.hubs.progress import import_tqdm_disabled
from launcher.hubs.repo import Kind, Listing, RemoteFile

DEFAULT_REVISION = "master"


def _client() -> Any:
    """The client library, which is imported only where hubs are asked. It draws a bar for each file, with no switch of
    its own."""
    import_tqdm_disabled()
    return importlib.import_module("modelscope_hub")


def list_files(kind: Kind, repo: str, revision: str | None) -> Listing:
    """The files of a repository. Raises `Problems`; their code is `not-reachable` where trying again may help."""
    client, wanted_revision = _client(), revision or DEFAULT_REVISION
    try:
        endpoint = client.HubApi().resolve_endpoint_for_read(repo, repo_type=kind)
        entries = client.HubApi(endpoint=endpoint).list_repo_files(repo, kind, revision=wanted_revision)
    except (client.errors.HubError, OSError) as error:
        raise Problems(_problem(repo, error)) from error
    files = tuple(
        RemoteFile(file.path, file.size, file.sha256.lower() if file.sha256 else None, None)
        for file in entries
        if not file.is_dir
    )
    return Listing("modelscope", kind, repo, wanted_revision, _hash_of(files), files, endpoint)


def _hash_of(files: tuple[RemoteFile, ...]) -> str:
    """A hash of the listing in place of a commit, which it does not contain: it changes when any file does."""
    content = sorted((file.path, file.size, file.sha256) for file in files)
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def download(listed: Listing, file: RemoteFile, staging: Path, on_bytes: Callable[[int], None]) -> Path:
    """One file into `staging`, resumed where an earlier call was cut; its hash is verified by the client, too.

    `on_bytes` is called with the number of new bytes. Raises `Problems` or `OSError` of the disk.
    """
    client = _client()
    logging.getLogger("modelscope_hub").setLevel(logging.CRITICAL)  # its lines would stand among ours
    callback = type("Callback", (client.ProgressCallback,), {"update": lambda _, size: on_bytes(size)})
    try:
        return Path(client.HubApi(endpoint=listed.endpoint).downloader.download_file(
            listed.repo, listed.kind, file.path, revision=listed.revision, local_dir=staging,
            cache_dir=staging / ".cache", expected_sha256=file.sha256, file_size=file.size,
            progress_callbacks=[callback],
        ))  # fmt: skip
    except (client.errors.HubError, OSError) as error:
        raise Problems(_problem(file.path, error)) from error


def _problem(where: str, error: Exception) -> Problem:
    """The problem for an error, without the client's text, which may quote signed links. Raises errors of the disk."""
    errors = _client().errors
    if isinstance(error, errors.AuthenticationError | errors.PermissionDeniedError):
        fix = "ask for access at its page and set MODELSCOPE_API_TOKEN"
        return Problem(where, "modelscope refuses it to this token", fix, "not-permitted")
    if isinstance(error, errors.NotExistError | errors.InvalidParameter):
        fix = "check the name and the revision"
        return Problem(where, "not on modelscope, or not in this revision", fix, "not-found")
    if isinstance(error, errors.FileIntegrityError):
        got = "modelscope served other bytes than it lists"
        return Problem(where, got, "try again later, or use another source", "not-reachable")
    if isinstance(error, OSError) and error.errno is not None:
        raise error
    status = f" ({error.status_code})" if isinstance(error, errors.APIError) and error.status_code else ""
    got = f"cannot download from modelscope: {type(error).__name__}{status}"
    fix = "try again, or set MODELSCOPE_ENDPOINT or use another source"
    return Problem(where, got, fix, "not-reachable")
