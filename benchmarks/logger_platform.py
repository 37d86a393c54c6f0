"""A server of its own, and a folder for its runs, for what tries the logger; and what its log holds of a job."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from launcher.core.bounded_parse import parse_json
from launcher.runs.folder import Folder

ROOT = Path(__file__).parents[1]


class Platform:
    """A server as a process, which may be killed and started again at its address."""

    def __init__(self, folder: Path) -> None:
        self.root, self.spool = folder / "runs", folder / "spool"
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self.url = f"http://localhost:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "launcher", "serve", "--root", str(self.root), "--port", str(self.port)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
        while True:
            try:
                urlopen(f"{self.url}/openapi.json").close()
                return
            except URLError:
                assert self._process.poll() is None, "the server ended"
                time.sleep(0.05)

    def kill(self) -> None:
        """kill -9"""
        if self._process:
            self._process.kill()
            self._process.wait()

    def environment(self, **more: str) -> dict[str, str]:
        """Of a script whose logger speaks to this server, and waits at its end until all has arrived."""
        known = {"PYTHONPATH": str(ROOT), "PLATFORM_URL": self.url, "RLRUN_SPOOL": str(self.spool)}
        return {**os.environ, **known, "RLRUN_FINISH_S": "3600", **more}

    def folder(self, job: str) -> Folder:
        return Folder(self.root / "logged" / job)

    def lines(self, job: str, kind: str = "") -> list[Mapping[str, Any]]:
        """The events of a job as their lines say them."""
        path = self.folder(job).events
        nodes = [parse_json(line) for line in path.read_bytes().splitlines()] if path.exists() else []
        return [node for node in nodes if kind in ("", node["kind"])]
