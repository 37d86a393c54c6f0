"""Hugging Face, by way of its own client: endpoint, token and offline mode are those that the client knows."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from launcher.core.problems import Problems, error_message, short_repr
from launcher.hubs.repo import Address, Kind, Listing, NetworkFaults, Patience, RemoteFile

ATTEMPTS = 3


def offline() -> bool:
    """HF_HUB_OFFLINE is set: nothing may be asked for."""
    from huggingface_hub import is_offline_mode  # noqa: PLC0415  # late: a client library, only where hubs are asked

    return is_offline_mode()


def has_token() -> bool:
    """Whether the client would name itself to the hub: HF_TOKEN, or a token that was stored by a login."""
    from huggingface_hub import get_token  # noqa: PLC0415  # late, as above

    return get_token() is not None


def endpoint() -> str:
    """The server that is asked."""
    from huggingface_hub import constants  # noqa: PLC0415  # late, as above

    return str(constants.ENDPOINT)


def cache() -> Path:
    """Where the client keeps what it downloads."""
    from huggingface_hub import constants  # noqa: PLC0415  # late, as above

    return Path(constants.HF_HUB_CACHE).expanduser()


def listing(kind: Kind, repo: str, revision: str | None, patience: Patience) -> Listing:
    """Raises `Problems` where the hub refuses, `NetworkFaults` where it cannot be reached."""
    from huggingface_hub import constants  # noqa: PLC0415  # late, as above

    info = _info(kind, repo, revision, patience)
    files = []
    for sibling in info.siblings or []:
        if sibling.lfs:
            files.append(RemoteFile(sibling.rfilename, sibling.lfs.size, sibling.lfs.sha256, None))
        elif sibling.size is not None:
            files.append(RemoteFile(sibling.rfilename, sibling.size, None, sibling.blob_id))
    asked = revision or constants.DEFAULT_REVISION
    return Listing("huggingface", kind, repo, asked, info.sha or asked, tuple(files), constants.ENDPOINT)


def address(listed: Listing, file: RemoteFile) -> Address:
    """At the commit that was listed, so that a branch that moves changes nothing."""
    from huggingface_hub import hf_hub_url  # noqa: PLC0415  # late, as above
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # noqa: PLC0415  # late, as above

    url = hf_hub_url(
        listed.repo, file.path, repo_type=listed.kind, revision=listed.commit, endpoint=listed.endpoint
    )  # fmt: skip
    return Address(url, build_hf_headers(library_name="rlrun"), file.sha256 or file.git_sha1)


def cached(repo: str, revision: str | None) -> Path | None:
    """The folder of a model that any tool downloaded through the client; whether it is whole is not looked at."""
    from huggingface_hub import constants, try_to_load_from_cache  # noqa: PLC0415  # late, as above

    found = try_to_load_from_cache(repo, "config.json", revision=revision)
    if not isinstance(found, str):
        return None
    folder, root = Path(found).parent, Path(constants.HF_HUB_CACHE)
    of_repo = root / f"models--{repo.replace('/', '--')}"
    return folder if folder.resolve().is_relative_to(of_repo.resolve()) else None


def _info(kind: Kind, repo: str, revision: str | None, patience: Patience) -> Any:
    from huggingface_hub import HfApi, constants, errors  # noqa: PLC0415  # late, as above

    http_error: type[BaseException] = errors.HfHubHTTPError.__bases__[0]  # httpx's or httpx2's: the client's choice
    tries = 0
    while True:
        tries += 1
        try:
            api = HfApi(library_name="rlrun")
            info = api.repo_info(repo, repo_type=kind, revision=revision, files_metadata=True, timeout=patience.read_s)
            if info.gated:  # it is listed to everyone, and its files are refused
                api.auth_check(repo, repo_type=kind)
            return info
        except errors.GatedRepoError as error:
            raise Problems(
                [f"{repo}: huggingface shows it to those who accepted its licence; accepting it at"
                 f" {constants.ENDPOINT}/{repo} and HF_TOKEN (or hf auth login) would do"]
            ) from error  # fmt: skip
        except errors.HFValidationError as error:
            raise Problems([f"{short_repr(repo)}: {error_message(error)}; owner/name would do"]) from error
        except errors.RevisionNotFoundError as error:
            raise Problems(
                [f"{repo}: huggingface has no revision {short_repr(revision)} of it; a branch, tag or commit would do"]
            ) from error
        except errors.RepositoryNotFoundError as error:
            raise Problems(
                [f"{repo}: huggingface has no such {kind}, or this token may not see it; another name would do,"
                 " or HF_TOKEN for a private one"]
            ) from error  # fmt: skip
        except (http_error, OSError) as error:
            fault = _fault(repo, error)
            if isinstance(fault, NetworkFaults) and tries < ATTEMPTS:
                time.sleep(patience.backoff_s * 2 ** (tries - 1))
                continue
            raise fault from error


def _fault(repo: str, error: Any) -> Problems:
    from huggingface_hub import constants, errors  # noqa: PLC0415  # late, as above

    if isinstance(error, errors.HfHubHTTPError):
        status = error.response.status_code
        line = f"{repo}: huggingface answers {status} at {constants.ENDPOINT}"
        if status < 500 and status not in (408, 429):
            why = f" ({short_repr(error.server_message)})" if error.server_message else ""
            return Problems([f"{line}{why}; a token that may see it (HF_TOKEN) would do"])
        return NetworkFaults([f"{line}; trying again later would do"])
    return NetworkFaults(
        [f"{repo}: huggingface cannot be reached at {constants.ENDPOINT}, {error_message(error)};"
         " a network, HF_ENDPOINT"
         " (a mirror) or another source would do"]
    )  # fmt: skip
