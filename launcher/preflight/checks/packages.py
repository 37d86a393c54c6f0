"""Checks Python and installed packages against rlrun's own metadata, so that pyproject.toml is the only list."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from launcher.core.check_result import CheckResult
from launcher.preflight.checks.context import Context

OURS = "rlrun"
SHOWN = ("torch", "transformers", "peft", "safetensors", "ray")


def check(_: Context) -> Iterator[CheckResult]:
    """What is wrong with the installed packages, or one line if nothing is."""
    yield from _check_shadowed()
    yield from check_packages()


def _check_shadowed() -> Iterator[CheckResult]:
    """Packages that a folder of PYTHONPATH shadows, so that what is imported is not what is installed."""
    folders = [Path(folder).resolve() for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    own = _installed(OURS) if folders else None
    needed = [*SHOWN, *(Requirement(text).name for text in own.requires or ())] if own else []  # with all extras
    for name in dict.fromkeys(needed):
        spec = find_spec(name.replace("-", "_"))
        file = Path(spec.origin).resolve() if spec and spec.origin else Path()
        folder = file.parent.parent if spec and spec.submodule_search_locations else file.parent
        installed = _installed(name) if folder in folders else None
        if installed and Path(str(installed.locate_file(""))).resolve() != folder:
            message = f"{folder / name} is imported in place of {name} {installed.version}, which is installed"
            yield CheckResult("FAIL", name, message, f"take {folder} out of PYTHONPATH")


def check_packages(name: str = OURS) -> list[CheckResult]:
    """A result for each package that the distribution `name` requires and that is missing or
    incompatible; one for all if there is none. Requirements between packages are left to `pip check`."""
    ours = _installed(name)
    if ours is None:
        message = "is found on the path but not installed, so what it needs is not known"
        return [CheckResult("WARN", name, message, "run pip install --editable .")]
    versions, unmet = dict[str, str](), list[CheckResult]()
    for need in map(Requirement, ours.requires or ()):
        if need.marker and not need.marker.evaluate({"extra": ""}):
            continue
        installed = _installed(need.name)
        if installed:
            versions[canonicalize_name(need.name)] = installed.version
        if installed is None or not need.specifier.contains(installed.version, prereleases=True):
            received = f"{installed.version} is installed" if installed else "is not installed"
            message = f"{received}, {name} wants {need.specifier or 'any version'}"
            unmet.append(CheckResult("FAIL", need.name, message, f"run pip install '{need.name}{need.specifier}'"))
    if not unmet:
        shown = ", ".join(f"{package} {versions[package]}" for package in SHOWN if package in versions)
        unmet = [CheckResult("OK", "packages", f"{len(versions)} packages are compatible: {shown}")]
    return unmet


def _installed(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None
