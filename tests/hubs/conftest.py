"""A hub on this machine that the real clients talk to, with short timeouts."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import local_hub
import pytest
from huggingface_hub import constants
from modelscope_hub.config import set_default_config

from launcher.hubs.fetch import fetch, list_files
from launcher.hubs.progress import Progress


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """Running, and known to both clients; nothing of this machine's own settings is left."""
    with local_hub.serving() as hub:
        for name in ("HF_TOKEN", "MODELSCOPE_API_TOKEN", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
            monkeypatch.delenv(name, raising=False)
        for name, value in hub.environment().items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("MODELSCOPE_HOME", str(tmp_path / "modelscope"))
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        monkeypatch.setenv("RLRUN_MODELS", str(tmp_path / "store"))
        set_default_config(None)  # it was read from another environment
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 1)
        monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1 << 16)
        for name, value in {"RETRY_TIMES": 4, "RETRY_MAX_DELAY_SECONDS": 0.1}.items():
            monkeypatch.setattr(f"modelscope_hub._download.DOWNLOAD_{name}", value)
        monkeypatch.setattr("modelscope_hub._legacy_api.DOWNLOAD_TIMEOUT", 1)
        monkeypatch.setattr("modelscope_hub._download.DOWNLOAD_INTEGRITY_RETRY_BACKOFF", 0.01)
        monkeypatch.setattr("launcher.hubs.fetch.RETRY_S", 0.01)
        yield hub
        set_default_config(None)


@pytest.fixture(scope="session")
def noise() -> Callable[..., bytes]:
    return lambda count, seed=0: random.Random(seed).randbytes(count)


class Download:
    """Lists a repository, downloads all of it, and keeps the notes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.notes: list[str] = []
        self.last: Progress | None = None

    def watch(self, progress: Progress) -> None:
        self.notes += progress.notes
        self.last = progress

    def __call__(self, repo: str = "o/m", source: str = "huggingface", kind: str = "model", **more: Any) -> None:
        found = list_files(kind, repo, sources=[source])  # type: ignore[arg-type, list-item]
        fetch(found, found.files, self.folder, **{"watch": self.watch, **more})

    def holds(self, files: dict[str, bytes]) -> bool:
        """Whether the folder holds exactly these files with these bytes, and otherwise only what is ours."""
        there = {path.relative_to(self.folder).as_posix(): path for path in self.folder.rglob("*") if path.is_file()}
        return {name: path.read_bytes() for name, path in there.items() if not name.startswith(".rlrun/")} == files

    def staged(self) -> list[Path]:
        """Files of the hub's client that are not verified yet."""
        partial = (self.folder / ".rlrun" / "partial").rglob("*")
        return [path for path in partial if path.is_file() and ".cache" not in path.parts]


@pytest.fixture
def download(hub: Any, tmp_path: Path) -> Download:
    return Download(tmp_path / "to")
