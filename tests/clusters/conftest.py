"""A machine that is the head of a Ray cluster."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.core.machine import free_ports


@pytest.fixture(scope="module")
def base() -> Iterator[Path]:
    """Sockets lie in it, whose paths may not be long."""
    folder = Path(tempfile.mkdtemp(prefix="rlj", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def head(base: Path, commands: Any) -> Iterator[Any]:
    """The command line on a machine that is the head of a cluster."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RLRUN_CLUSTER", str(base / "cluster"))
        patch.setenv("TMPDIR", str(base))
        made = commands(base)
        port = f"--port={free_ports(1)[0]}"  # others try the usual one at the same time
        up = made("cluster", "up", port, "--", "--num-cpus=2", "--object-store-memory=83886080")
        assert up.returncode == 0, up.stderr
        yield made
        for lock in base.glob("runs/*/*/.lock"):
            made("stop", "--now", str(lock.parent))
        assert made("cluster", "down").returncode == 0
