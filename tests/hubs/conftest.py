"""A hub on this machine that the real clients talk to, and short patience with it."""

from __future__ import annotations

import hashlib
import importlib.util
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants
from modelscope_hub.config import set_default_config

from launcher.core.state import RunState
from launcher.hubs.fetch import fetch, listing
from launcher.hubs.progress import Progress
from launcher.hubs.repo import Patience

ROOT = Path(__file__).parents[2]
QUICK = Patience(
    connect_s=2, read_s=0.6, window_s=0.4, least_bytes_per_s=20_000, attempts=4, backoff_s=0.01
)  # fmt: skip


def benchmark(name: str) -> Any:
    """A file of benchmarks/, by the name that its neighbours import it by."""
    if name == "local_hub":
        benchmark("misbehaving")
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
        assert spec and spec.loader
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


@pytest.fixture(scope="session")
def downloads() -> Any:
    benchmark("local_hub")
    return benchmark("downloads")


@pytest.fixture(scope="session")
def act() -> Callable[..., Any]:
    return benchmark("local_hub").Act


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """Running, and known to both clients; nothing of this machine's own settings is left."""
    with benchmark("local_hub").serving() as hub:
        for name in ("HF_TOKEN", "MODELSCOPE_API_TOKEN", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
            monkeypatch.delenv(name, raising=False)
        for name, value in hub.environment().items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("MODELSCOPE_HOME", str(tmp_path / "modelscope"))
        monkeypatch.setenv("RLRUN_MODELS", str(tmp_path / "store"))
        set_default_config(None)  # it was read from another environment
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        )
        yield hub
        set_default_config(None)


def some_bytes(count: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(count)


@pytest.fixture(scope="session")
def noise() -> Callable[..., bytes]:
    return some_bytes


class Bringing:
    """Lists a repository, fetches all of it, and remembers what was told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.notes: list[str] = []
        self.last: Progress | None = None

    def watch(self, progress: Progress) -> None:
        self.notes += progress.notes
        self.last = progress

    def __call__(self, repo: str = "o/m", source: str = "huggingface", kind: str = "model", **more: Any) -> None:
        found = listing(kind, repo, sources=[source], patience=QUICK)  # type: ignore[arg-type, list-item]
        wanted = more.pop("wanted", None) or found.files
        fetch(found, wanted, self.folder, more.pop("watch", self.watch), **{"patience": QUICK, **more})

    def partial(self) -> int:
        """Bytes of unfinished files."""
        return sum(path.stat().st_size for path in (self.folder / ".rlrun" / "partial").glob("*"))


@pytest.fixture
def bring(hub: Any, tmp_path: Path) -> Bringing:
    return Bringing(tmp_path / "to")


@pytest.fixture(scope="session")
def quick() -> Patience:
    return QUICK


@pytest.fixture(scope="session")
def holds() -> Callable[[Path, dict[str, bytes]], bool]:
    """Whether a folder holds exactly these files with these bytes, and otherwise only what is ours."""

    def check(folder: Path, files: dict[str, bytes]) -> bool:
        there = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
        theirs = {name: path for name, path in there.items() if not name.startswith(".rlrun/")}
        return theirs.keys() == files.keys() and all(
            hashlib.sha256(path.read_bytes()).digest() == hashlib.sha256(files[name]).digest()
            for name, path in theirs.items()
        )

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
