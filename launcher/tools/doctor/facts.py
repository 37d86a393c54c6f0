"""What is compared between nodes: versions, GPUs, rlrun's own code, clocks."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from pathlib import Path

from pydantic.dataclasses import dataclass

import launcher
from launcher.core import machine
from launcher.core.check_result import CheckResult
from launcher.tools.doctor.loading import LoadedLibraries

MOST_APART_S = 1.0  # between the clocks of two nodes


@dataclass(frozen=True)
class Facts:
    """Of one node."""

    python: str
    packages: dict[str, str | None]
    code: str
    """Hash of rlrun's own files: two clones may have one version and other code."""
    driver: str
    gpus: tuple[str, ...]
    """Their names, as the driver tells."""
    torch_cuda: str
    nccl: str


def collected(loaded: LoadedLibraries | None) -> Facts:
    """Of this machine; `loaded` None where torch does not load."""
    gpus = machine.query_gpus()
    return Facts(
        python=platform.python_version(),
        packages=machine.package_versions(),
        code=code(),
        driver=gpus.driver,
        gpus=tuple(gpu.name for gpu in gpus.found),
        torch_cuda=(loaded.cuda or "none") if loaded else "not loaded",
        nccl=(loaded.nccl or "none") if loaded else "not loaded",
    )


def code() -> str:
    """Of every Python file of this package, by name and content."""
    root = Path(launcher.__file__).parent
    found = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        found.update(f"{path.relative_to(root).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return found.hexdigest()[:12]


def compared(nodes: Mapping[str, Facts], code_here: str) -> list[CheckResult]:
    """What differs between nodes, by name; one line where nothing does. `code_here` is of the machine that asks."""
    found = [
        *_differ("python", {name: facts.python for name, facts in nodes.items()}, "use one version on all nodes"),
        *_codes({name: facts.code for name, facts in nodes.items()} | {"the machine that asks": code_here}),
    ]
    packages = sorted({package for facts in nodes.values() for package in facts.packages})
    for package in packages:
        if package != "rlrun":
            received = {name: facts.packages.get(package) or "not installed" for name, facts in nodes.items()}
            found += _differ(package, received, "use one version on all nodes")
    for what, of in (
        ("torch's CUDA", {name: facts.torch_cuda for name, facts in nodes.items()}),
        ("NCCL", {name: facts.nccl for name, facts in nodes.items()}),
    ):
        found += _differ(what, of, "use one build of torch on all nodes")
    for what, of in (
        ("driver", {name: facts.driver or "none" for name, facts in nodes.items()}),
        ("GPUs", {name: _counted(facts.gpus) for name, facts in nodes.items()}),
    ):
        found += _differ(what, of, "use nodes of one kind", "WARN")
    if not found:
        one = next(iter(nodes.values()))
        message = f"equal on {len(nodes)} nodes: python {one.python}, torch {one.packages.get('torch')}"
        return [CheckResult("OK", "versions", f"{message}, {len(packages)} packages, rlrun's code, driver and GPUs")]
    return found


def _differ(what: str, of: Mapping[str, str], cure: str, level: str = "FAIL") -> list[CheckResult]:
    if len(set(of.values())) < 2:
        return []
    text = "; ".join(f"{value} on {', '.join(names)}" for value, names in _by_value(of).items())
    return [CheckResult("WARN" if level == "WARN" else "FAIL", what, text, cure)]


def _codes(of: Mapping[str, str]) -> list[CheckResult]:
    groups = list(_by_value(of).values())
    if len(groups) < 2:
        return []
    text = f"other code on {', '.join(groups[1])} than on {', '.join(groups[0])}"
    return [CheckResult("FAIL", "rlrun", text, "use one version, or one commit, on all nodes")]


def _by_value(of: Mapping[str, str]) -> dict[str, list[str]]:
    """Names by what they have; what most have first."""
    found: dict[str, list[str]] = {}
    for name, value in of.items():
        found.setdefault(value, []).append(name)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def _counted(gpus: tuple[str, ...]) -> str:
    return " and ".join(f"{gpus.count(name)} {name}" for name in sorted(set(gpus))) or "none"


def compare_clocks(moment: Mapping[int, float], whose: Mapping[int, str]) -> list[CheckResult]:
    """`moment`: what the clock of each rank's node said at one moment, to some milliseconds. By that of the first."""
    if len(set(whose.values())) < 2 or len(moment) < 2:
        return []
    first = min(moment)
    ahead = {whose[rank]: at - moment[first] for rank, at in moment.items()}
    wrong = [
        f"{node} is {abs(by):.1f} s {'ahead of' if by > 0 else 'behind'} {whose[first]}"
        for node, by in ahead.items()
        if abs(by) > MOST_APART_S
    ]
    if wrong:
        fix = "use one time server for all (timedatectl set-ntp true)"
        return [CheckResult("WARN", "clocks", "; ".join(wrong), fix)]
    return [CheckResult("OK", "clocks", f"at most {max(map(abs, ahead.values())) * 1e3:.0f} ms apart")]
