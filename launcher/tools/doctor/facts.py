"""What is compared between nodes: versions, GPUs, rlrun's own code."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic.dataclasses import dataclass

import launcher
from launcher.core import machine
from launcher.core.check_result import CheckResult
from launcher.tools.doctor.loading import LoadedLibraries


@dataclass(frozen=True)
class Facts:
    """What a node has, by name: `python`, each package, `torch's CUDA`, `NCCL`, `driver`, `GPUs`."""

    versions: dict[str, str]
    code: str
    """Hash of rlrun's own files: two clones may have one version and other code."""
    gpus: int


def collect(loaded: LoadedLibraries | None) -> Facts:
    """Of this machine; `loaded` None where torch does not load."""
    gpus = machine.query_gpus()
    names = [gpu.name for gpu in gpus.found]
    counted = " and ".join(f"{names.count(name)} {name}" for name in sorted(set(names)))
    versions = {
        "python": platform.python_version(),
        **{name: machine.package_version(name) or "not installed" for name in machine.PACKAGES if name != "rlrun"},
        "torch's CUDA": (loaded.cuda or "none") if loaded else "not loaded",
        "NCCL": (loaded.nccl or "none") if loaded else "not loaded",
        "driver": gpus.driver or "none",
        "GPUs": counted or "none",
    }
    return Facts(versions, hash_code(), len(names))


def hash_code() -> str:
    """Of every Python file of this package, by name and content."""
    root = Path(launcher.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def compare(nodes: Mapping[str, Facts], code_here: str) -> list[CheckResult]:
    """What differs between nodes, by name; one line where nothing does. `code_here` is of the machine that asks."""
    found = []
    codes = _by_value({name: facts.code for name, facts in nodes.items()} | {"the machine that asks": code_here})
    if len(codes) > 1:
        most, other, *_ = codes.values()
        got = f"other code on {', '.join(other)} than on {', '.join(most)}"
        found.append(CheckResult("FAIL", "rlrun", got, "use one version, or one commit, on all nodes"))
    names = dict.fromkeys(name for facts in nodes.values() for name in facts.versions)
    for name in names:
        groups = _by_value({node: facts.versions.get(name, "not installed") for node, facts in nodes.items()})
        if len(groups) > 1:
            hardware = name in ("driver", "GPUs")
            level: Literal["WARN", "FAIL"] = "WARN" if hardware else "FAIL"
            fix = "use nodes of one kind" if hardware else "use one version on all nodes"
            text = "; ".join(f"{value} on {', '.join(of)}" for value, of in groups.items())
            found.append(CheckResult(level, name, text, fix))
    if not found:
        got = f"equal on {len(nodes)} nodes: {len(names)} versions, rlrun's code, driver and GPUs"
        found.append(CheckResult("OK", "versions", got))
    return found


def _by_value(of: Mapping[str, str]) -> dict[str, list[str]]:
    """Names by what they have; what most have first."""
    found: dict[str, list[str]] = {}
    for name, value in of.items():
        found.setdefault(value, []).append(name)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))
