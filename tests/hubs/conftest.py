"""A hub on this machine that the real clients talk to, with short timeouts."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import local_hub
import pytest
from huggingface_hub import constants
from modelscope_hub.config import set_default_config

from launcher.core.state import RunState
from launcher.hubs.fetch import fetch, list_files
from launcher.hubs.progress import Progress


@pytest.fixture(scope="session")
def act() -> Callable[..., Any]:
    return local_hub.Act


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


def some_bytes(count: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(count)


@pytest.fixture(scope="session")
def noise() -> Callable[..., bytes]:
    return some_bytes


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
        wanted = more.pop("wanted", None) or found.files
        fetch(found, wanted, self.folder, more.pop("watch", self.watch), **more)

    def staged(self) -> list[Path]:
        """Files of the hub's client that are not verified yet."""
        partial = (self.folder / ".rlrun" / "partial").rglob("*")
        return [path for path in partial if path.is_file() and ".cache" not in path.parts]


@pytest.fixture
def download(hub: Any, tmp_path: Path) -> Download:
    return Download(tmp_path / "to")


@pytest.fixture(scope="session")
def holds() -> Callable[[Path, dict[str, bytes]], bool]:
    """Whether a folder holds exactly these files with these bytes, and otherwise only what is ours."""

    def check(folder: Path, files: dict[str, bytes]) -> bool:
        there = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        return {name: data for name, data in there.items() if not name.startswith(".rlrun/")} == files

    return check


class Shown:
    """What a run shows while it prepares."""

    def __init__(self) -> None:
        self.shown: list[tuple[str, Sequence[str]]] = []

    def write(self, state: RunState, events: Sequence[Any], lines: Sequence[str]) -> None:
        self.shown.append((state.phase, lines))

    def close(self) -> None: ...


@pytest.fixture
def view() -> Shown:
    return Shown()
