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
    """Versions of a node by name (`python`, each package, `torch's CUDA`, `NCCL`, `driver`, `GPUs`), code and GPUs."""

    versions: dict[str, str]
    code: str
    """Hash of rlrun's own files: two clones may have one version and other code."""
    gpus: int


def collect(loaded: LoadedLibraries | None) -> Facts:
    """The facts of this machine; `loaded` is None where torch does not load."""
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
    """12 hex digits of a SHA-256 over name and content of every Python file of this package."""
    root = Path(launcher.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def compare(nodes: Mapping[str, Facts], code_here: str) -> list[CheckResult]:
    """Results on what differs between nodes; one OK where nothing does. `code_here`: hash of this machine's code."""
    results = []
    codes = _group_by_value({name: facts.code for name, facts in nodes.items()} | {"the machine that asks": code_here})
    if len(codes) > 1:
        majority, minority, *_ = codes.values()
        got = f"other code on {', '.join(minority)} than on {', '.join(majority)}"
        results.append(CheckResult("FAIL", "rlrun", got, "use one version, or one commit, on all nodes"))
    names = dict.fromkeys(name for facts in nodes.values() for name in facts.versions)
    for name in names:
        groups = _group_by_value({node: facts.versions.get(name, "not installed") for node, facts in nodes.items()})
        if len(groups) > 1:
            hardware = name in ("driver", "GPUs")
            level: Literal["WARN", "FAIL"] = "WARN" if hardware else "FAIL"
            fix = "use nodes of one kind" if hardware else "use one version on all nodes"
            text = "; ".join(f"{value} on {', '.join(having)}" for value, having in groups.items())
            results.append(CheckResult(level, name, text, fix))
    if not results:
        got = f"equal on {len(nodes)} nodes: {len(names)} versions, rlrun's code, driver and GPUs"
        results.append(CheckResult("OK", "versions", got))
    return results


def _group_by_value(values_by_name: Mapping[str, str]) -> dict[str, list[str]]:
    """Names by their value; the value that most names have comes first."""
    groups: dict[str, list[str]] = {}
    for name, value in values_by_name.items():
        groups.setdefault(value, []).append(name)
    return dict(sorted(groups.items(), key=lambda item: -len(item[1])))
