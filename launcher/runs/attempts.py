"""The attempts of a run: what each left in its folder `logs/attempt_N`, and how it ended.

ended.json  {"cause": "killed", "why": "...", "rank": 0, "step": 20, "at": 1700000000.0}
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from launcher.core.bounded_parse import parse_json
from launcher.core.files import write_atomic
from launcher.runs.folder import Folder

FILE = "ended.json"
YEAR_9999 = 253370764800.0  # Unix seconds: later is no time that can be shown


@dataclass(frozen=True)
class End:
    """How an attempt ended."""

    cause: str
    """finished, stopped, or the name of a `Cause`."""
    why: str
    rank: int | None
    """The process that ended by it; None where it was no single one."""
    step: int
    """The last step that it told."""
    at: float
    """Unix seconds (UTC)."""


@dataclass(frozen=True)
class Attempt:
    name: str
    ended: End | None
    """None while it goes on, and where nobody was left to write it down."""


def write(logs: Path, end: End) -> None:
    write_atomic(logs / FILE, json.dumps(asdict(end)) + "\n")


def read(folder: Folder) -> list[Attempt]:
    """All attempts, the first one first."""
    return [Attempt(logs.name, _end(logs)) for logs in folder.attempts()]


def _end(logs: Path) -> End | None:
    """Of a folder that somebody else wrote, what can be read."""
    try:
        node = parse_json((logs / FILE).read_bytes())
        rank = None if node["rank"] is None else int(node["rank"])
        end = End(str(node["cause"]), str(node["why"]), rank, int(node["step"]), float(node["at"]))
        return end if 0 <= end.at < YEAR_9999 else None
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None
