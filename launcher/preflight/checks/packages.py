"""Checks Python and installed packages against rlrun's own metadata, so that pyproject.toml is the only list."""

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
_EXTRA_MARKER = re.compile(r"""; *extra *== *['"][^'"]*['"]$|and extra *== *['"][^'"]*['"]$""")  # of extras only
SHOWN = ("torch", "transformers", "peft", "safetensors", "ray")


@dataclass(frozen=True)
class Installed:
    """A package of this environment."""

    version: str
    requires: tuple[str, ...]
    """The values of `Requires-Dist`, not parsed: most belong to extras that are not installed."""


def check(_: Context) -> Iterator[CheckResult]:
    """What is wrong with the installed packages, or one line if nothing is."""
    yield from _check_shadowed()
    yield from (result for result in check_packages() if result.level != "OK" or result.subject == "packages")


def _check_shadowed() -> Iterator[CheckResult]:
    """Packages that a folder of PYTHONPATH shadows, so that what is imported is not what is installed."""
    folders = [Path(folder).resolve() for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    own = _installed(OURS) if folders else None
    required = [Requirement(wants).name for wants in own.requires] if own else []
    for name in dict.fromkeys((*SHOWN, *required)) if folders else ():
        spec = find_spec(name.replace("-", "_"))
        file = Path(spec.origin).resolve() if spec and spec.origin else Path()
        folder = file.parent.parent if spec and spec.submodule_search_locations else file.parent
        if folder in folders and (installed := _installed(name)) and _install_folder(name) != folder:
            message = f"{folder / name} is imported in place of {name} {installed.version}, which is installed"
            yield CheckResult("FAIL", name, message, f"take {folder} out of PYTHONPATH")


def _install_folder(name: str) -> Path:
    return Path(str(distribution(name).locate_file(""))).resolve()


def check_packages(distribution: str = OURS) -> list[CheckResult]:
    """A result for Python, and one for each package that `distribution` requires and that is missing or incompatible;
    one for all if there is none. Requirements between packages are left to `pip check`."""
    ours = _installed(distribution)
    if ours is None:
        message = "is found on the path but not installed, so what it needs is not known"
        return [CheckResult("WARN", distribution, message, "run pip install --editable .")]
    versions, unmet = dict[str, str](), list[CheckResult]()
    for need in _requirements(ours):
        installed = _installed(need.name)
        if installed:
            versions[canonicalize_name(need.name)] = installed.version
        if installed is None or not need.specifier.contains(installed.version, prereleases=True):
            received = f"{installed.version} is installed" if installed else "is not installed"
            message = f"{received}, {distribution} wants {need.specifier or 'any version'}"
            unmet.append(CheckResult("FAIL", need.name, message, f"run pip install '{need.name}{need.specifier}'"))
    if not unmet:
        shown = ", ".join(f"{name} {versions[name]}" for name in SHOWN if name in versions)
        unmet = [CheckResult("OK", "packages", f"{len(versions)} packages are compatible: {shown}")]
    return [_python(metadata(distribution)["Requires-Python"]), *unmet]


def _python(specifier: str | None) -> CheckResult:
    version = platform.python_version()
    if specifier and not SpecifierSet(specifier).contains(version, prereleases=True):
        return CheckResult("FAIL", "python", f"is {version}, and {specifier} is needed", f"use python {specifier}")
    return CheckResult("OK", "python", version)


def _requirements(installed: Installed) -> Iterator[Requirement]:
    for text in installed.requires:
        if not _EXTRA_MARKER.search(text):
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                yield requirement


def _installed(name: str) -> Installed | None:
    """A package by the header of its METADATA; None if it is not installed. The description is not parsed."""
    try:
        package = distribution(name)
    except PackageNotFoundError:
        return None
    head, _, _ = (package.read_text("METADATA") or package.read_text("PKG-INFO") or "").partition("\n\n")
    fields = [line.partition(": ") for line in head.splitlines()]
    version = next((value for field, _, value in fields if field == "Version"), "")
    return Installed(version, tuple(value for field, _, value in fields if field == "Requires-Dist"))
