"""Python and the installed packages against what rlrun's own metadata promises: pyproject.toml is the only list."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution, metadata
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from launcher.core.check_result import CheckResult
from launcher.preflight.checks.context import Context

OURS = "rlrun"
_OF_EXTRA = re.compile(r"""; *extra *== *['"][^'"]*['"]$|and extra *== *['"][^'"]*['"]$""")  # only an extra brings it
SHOWN = ("torch", "transformers", "peft", "safetensors", "ray")


@dataclass(frozen=True)
class Installed:
    """A package of this environment."""

    version: str
    requires: tuple[str, ...]
    """The values of `Requires-Dist`, read when they are asked for: most belong to extras that are not installed."""


def check(_: Context) -> Iterator[CheckResult]:
    """What is wrong with the installed packages; one line where nothing is."""
    yield from _hidden()
    yield from (result for result in check_packages() if result.level != "OK" or result.subject == "packages")


def _hidden() -> Iterator[CheckResult]:
    """Packages that a folder of PYTHONPATH hides: what is imported is not what is installed."""
    folders = [Path(place).resolve() for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    ours = _installed(OURS) if folders else None
    wanted = [Requirement(wants).name for wants in ours.requires] if ours else []
    for name in dict.fromkeys((*SHOWN, *wanted)) if folders else ():
        found = find_spec(name.replace("-", "_"))
        file = Path(found.origin).resolve() if found and found.origin else Path()
        place = file.parent.parent if found and found.submodule_search_locations else file.parent
        if place in folders and (installed := _installed(name)) and _place(name) != place:
            message = f"{place / name} is imported in place of {name} {installed.version}, which is installed"
            yield CheckResult("FAIL", name, message, f"take {place} out of PYTHONPATH")


def _place(name: str) -> Path:
    return Path(str(distribution(name).locate_file(""))).resolve()


def check_packages(distribution: str = OURS) -> list[CheckResult]:
    """A line for Python, and one for each package that `distribution` needs and that is missing or has another version;
    a line for all where there is none. What packages want of one another `pip check` says."""
    ours = _installed(distribution)
    if ours is None:
        message = "is found on the path but not installed, so what it needs is not known"
        return [CheckResult("WARN", distribution, message, "run pip install --editable .")]
    seen, unmet = dict[str, str](), list[CheckResult]()
    for wants in _wants(ours):
        installed = _installed(wants.name)
        if installed:
            seen[canonicalize_name(wants.name)] = installed.version
        if installed is None or not wants.specifier.contains(installed.version, prereleases=True):
            received = f"{installed.version} is installed" if installed else "is not installed"
            message = f"{received}, {distribution} wants {wants.specifier or 'any version'}"
            unmet.append(CheckResult("FAIL", wants.name, message, f"run pip install '{wants.name}{wants.specifier}'"))
    if not unmet:
        shown = ", ".join(f"{name} {seen[name]}" for name in SHOWN if name in seen)
        unmet = [CheckResult("OK", "packages", f"{len(seen)} packages are compatible: {shown}")]
    return [_python(metadata(distribution)["Requires-Python"]), *unmet]


def _python(promised: str | None) -> CheckResult:
    received = platform.python_version()
    if promised and not SpecifierSet(promised).contains(received, prereleases=True):
        return CheckResult("FAIL", "python", f"is {received}, and {promised} is needed", f"use python {promised}")
    return CheckResult("OK", "python", received)


def _wants(installed: Installed) -> Iterator[Requirement]:
    for text in installed.requires:
        if not _OF_EXTRA.search(text):
            wants = Requirement(text)
            if wants.marker is None or wants.marker.evaluate({"extra": ""}):
                yield wants


def _installed(name: str) -> Installed | None:
    """From the head of the package's METADATA; its rest, the description, is long and not read."""
    try:
        found = distribution(name)
    except PackageNotFoundError:
        return None
    head, _, _ = (found.read_text("METADATA") or found.read_text("PKG-INFO") or "").partition("\n\n")
    fields = [line.partition(": ") for line in head.splitlines()]
    version = next((value for field, _, value in fields if field == "Version"), "")
    return Installed(version, tuple(value for field, _, value in fields if field == "Requires-Dist"))
