"""Hugging Face, through its own client, whose endpoint, token and offline mode are used."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from launcher.core.problems import Problem, Problems, error_message, short_repr
from launcher.hubs.progress import SilentBar, import_tqdm_disabled
from launcher.hubs.repo import Kind, Listing, RemoteFile

LISTING_TIMEOUT_S = 20.0


def _client(module: str = "") -> Any:
    """The client library, or a module of it, which is imported only where hubs are asked."""
    return importlib.import_module(f"huggingface_hub{module}")


def offline() -> bool:
    """Whether HF_HUB_OFFLINE is set, which forbids requests."""
    return bool(_client().is_offline_mode())


def has_token() -> bool:
    """Whether the client has a token for the hub: HF_TOKEN, or one that was stored by a login."""
    return _client().get_token() is not None


def endpoint() -> str:
    """The address of the server, with its scheme."""
    return str(_client(".constants").ENDPOINT)


def cache() -> Path:
    """The folder in which the client caches downloads."""
    return Path(_client(".constants").HF_HUB_CACHE).expanduser()


def cached(repo: str, revision: str | None) -> Path | None:
    """The folder of a model that any tool downloaded through the client; whether it is whole is not checked."""
    config_path = _client().try_to_load_from_cache(repo, "config.json", revision=revision)
    if not isinstance(config_path, str):
        return None
    folder, repo_cache = Path(config_path).parent, cache() / f"models--{repo.replace('/', '--')}"
    return folder if folder.resolve().is_relative_to(repo_cache.resolve()) else None


def list_files(kind: Kind, repo: str, revision: str | None) -> Listing:
    """The files of a repository. Raises `Problems`; their code is `not-reachable` where trying again may help."""
    import_tqdm_disabled()  # before this client imports it: the other one draws bars
    api = _client().HfApi(library_name="rlrun")
    try:
        info = api.repo_info(repo, repo_type=kind, revision=revision, files_metadata=True, timeout=LISTING_TIMEOUT_S)
        if info.gated:  # it is listed to everyone, and its files are refused
            api.auth_check(repo, repo_type=kind)
    except _errors() as error:
        raise Problems(_problem(repo, repo, error)) from error
    files = []
    for sibling in info.siblings or []:
        if sibling.lfs:
            files.append(RemoteFile(sibling.rfilename, sibling.lfs.size, sibling.lfs.sha256, None))
        elif sibling.size is not None:
            files.append(RemoteFile(sibling.rfilename, sibling.size, None, sibling.blob_id))
    requested = revision or _client(".constants").DEFAULT_REVISION
    return Listing("huggingface", kind, repo, requested, info.sha or requested, tuple(files), endpoint())


def download(listed: Listing, file: RemoteFile, staging: Path, on_bytes: Callable[[int], None]) -> Path:
    """One file of the commit that was listed, into `staging`; not verified. Through Xet where the hub offers it.

    `on_bytes` is called with the number of new bytes. Raises `Problems` or `OSError` of the disk.
    """
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # its warnings quote signed links
    bar: Any = type("Bar", (SilentBar,), {"update": lambda _, count: on_bytes(count)})
    where: dict[str, Any] = {"local_dir": staging, "cache_dir": staging / ".cache"}
    what: dict[str, Any] = {"repo_type": listed.kind, "revision": listed.commit, "endpoint": listed.endpoint}
    try:
        return Path(
            _client().hf_hub_download(listed.repo, file.path, **what, **where, library_name="rlrun", tqdm_class=bar)
        )
    except _errors() as error:
        raise Problems(_problem(file.path, listed.repo, error)) from error


def _errors() -> tuple[type[Exception], ...]:
    """Classes of errors that the client raises: its own, those of httpx or httpx2, and those of hf_xet."""
    return _client(".errors").HfHubHTTPError.__bases__[0], OSError, ValueError, RuntimeError


def _problem(where: str, repo: str, error: Exception) -> Problem:
    """The problem for an error of the client. Raises `error` itself where it is one of the disk."""
    errors, server = _client(".errors"), endpoint()
    if isinstance(error, errors.LocalEntryNotFoundError) and isinstance(error.__cause__, Exception):
        error = error.__cause__  # why the hub could not be asked
    if isinstance(error, errors.GatedRepoError):
        fix = f"accept its licence at {server}/{repo} and set HF_TOKEN (or run hf auth login)"
        return Problem(where, "gated on huggingface, and this token has no access", fix, "not-permitted")
    if isinstance(error, errors.RevisionNotFoundError):
        return Problem(where, "huggingface has no such revision of it", "use a branch, tag or commit", "not-found")
    if isinstance(error, errors.RepositoryNotFoundError):
        fix = "check the name, or set HF_TOKEN if it is private"
        return Problem(where, "not on huggingface, or not visible to this token", fix, "not-found")
    if isinstance(error, errors.EntryNotFoundError):
        return Problem(where, "huggingface lists it and does not have it", "use another revision", "not-found")
    if isinstance(error, errors.HfHubHTTPError):
        status, url = error.response.status_code, error.response.request.url
        got = f"huggingface answered {status} at {url.scheme}://{url.netloc.decode()}"
        if status < 500 and status not in (408, 429) and str(url).startswith(server):  # elsewhere a link expired
            why = f" ({short_repr(error.server_message)})" if error.server_message else ""
            return Problem(where, f"{got}{why}", "set HF_TOKEN to a token with access", "not-permitted")
        return Problem(where, got, "try again later", "not-reachable")
    if isinstance(error, ValueError):
        return Problem(where, error_message(error), "use another source or revision", "not-supported")
    if isinstance(error, OSError) and error.errno is not None:
        raise error
    fix = "try again, or set HF_ENDPOINT to a mirror or use another source"
    return Problem(where, f"cannot download from huggingface ({server}): {error_message(error)}", fix, "not-reachable")
