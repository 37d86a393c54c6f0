"""ModelScope, by way of its own client: endpoint (MODELSCOPE_ENDPOINT) and token are those that the client knows."""

from __future__ import annotations

import hashlib
import json

from launcher.core.problems import Problems, short_repr
from launcher.hubs.repo import Address, Kind, Listing, NetworkFaults, Patience, RemoteFile

DEFAULT_REVISION = "master"


def listing(kind: Kind, repo: str, revision: str | None, patience: Patience) -> Listing:
    """Raises `Problems` where the hub refuses, `NetworkFaults` where it cannot be reached.

    The client has patience of its own: it asks a page of the listing again where that failed.
    """
    from modelscope_hub import HubApi, errors  # noqa: PLC0415  # late: a client library, only where hubs are asked

    asked = revision or DEFAULT_REVISION
    try:
        endpoint = HubApi().resolve_endpoint_for_read(repo, repo_type=kind)
        found = HubApi(endpoint=endpoint).list_repo_files(repo, kind, revision=asked)
    except (errors.AuthenticationError, errors.PermissionDeniedError) as error:
        raise Problems(
            [f"{repo}: modelscope does not show it to this token ({short_repr(str(error))});"
             " asking for access at its page"
             " and MODELSCOPE_API_TOKEN would do"]
        ) from error  # fmt: skip
    except (errors.NotExistError, errors.InvalidParameter) as error:
        raise Problems(
            [f"{repo}: modelscope has no such {kind}, or no revision {short_repr(asked)} of it; another name would do"]
        ) from error
    except (errors.HubError, OSError) as error:
        raise NetworkFaults(
            [f"{repo}: modelscope cannot be reached ({type(error).__name__}); a network, MODELSCOPE_ENDPOINT or another"
             " source would do"]
        ) from error  # fmt: skip
    files = tuple(
        RemoteFile(file.path, file.size, file.sha256.lower() if file.sha256 else None, None)
        for file in found
        if not file.is_dir
    )
    return Listing("modelscope", kind, repo, asked, _state(files), files, endpoint)


def _state(files: tuple[RemoteFile, ...]) -> str:
    """In a commit's place, which the listing does not tell: a name that is another when any file is."""
    content = sorted((file.path, file.size, file.sha256) for file in files)
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def address(listed: Listing, file: RemoteFile) -> Address:
    """The hub takes the token as a cookie at some of its doors and as a header at others."""
    from modelscope_hub import HubApi  # noqa: PLC0415  # late, as above

    client = HubApi(endpoint=listed.endpoint).legacy
    headers = {"User-Agent": "rlrun"}
    if client.token:
        headers |= {"Authorization": f"Bearer {client.token}", "Cookie": f"m_session_id={client.token}"}
    return Address(client.get_download_url(listed.repo, listed.kind, file.path, listed.revision), headers)
