"""verl's own verdict on its arguments: its environment is probed, and its own checks run there."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.core.check_result import CheckResult
from launcher.core.problems import Problem, error_message
from launcher.core.remembered import recall, remember
from launcher.engines.verl.config.defaults import Program

PROBE = """
import importlib.metadata, json, pkgutil
names = sorted({module.name for module in pkgutil.iter_modules()})
try:
    version = importlib.metadata.version("verl")
except importlib.metadata.PackageNotFoundError:
    version = None
print(json.dumps({"packages": names, "verl": version}))
"""
PROBE_S = 20.0
ASKED_S = 120.0
"""For verl's own checks: it loads torch and Ray first, which takes 5 to 30 seconds."""
SCRIPT = Path(__file__).with_name("validate.py")
OWN_CHECK = "engine.python"


@dataclass(frozen=True)
class VerlEnvironment:
    """The Python that runs verl."""

    version: str | None
    """Version of verl; None where it is not installed there."""
    packages: frozenset[str]
    """Names of the modules that can be imported."""


UNKNOWN = VerlEnvironment(None, frozenset())
"""Stands for a Python that is not on this machine."""


def probe(python: str) -> VerlEnvironment | Problem:
    """What is installed for a Python of this machine: modules are looked up, none is loaded."""
    path = shutil.which(python)
    if path is None:
        return Problem("engine.python", f"{python} is not there", "use the Python of verl's environment", "not-found")
    try:
        node = json.loads(_output([path, "-c", PROBE], PROBE_S, {}))
        return VerlEnvironment(node["verl"], frozenset(map(str, node["packages"])))
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError) as error:
        got = f"{python} does not say what is installed: {error_message(error)}"
        return Problem("engine.python", got, "use the Python of verl's environment", "bad-file")


def ask(
    python: str, version: str, program: Program, arguments: Sequence[str], env: Mapping[str, str]
) -> CheckResult | None:
    """The result of verl's own checks, with its files and its code; None where it accepts the arguments. The verdict on
    equal arguments is kept below the cache folder. What stops the checks themselves (time, memory, a missing package)
    is a warning."""
    request = json.dumps({"verl": version, "program": program, "arguments": list(arguments), "env": dict(env)})
    name = hashlib.sha256((str(shutil.which(python)) + request + SCRIPT.read_text()).encode()).hexdigest()
    node = recall("verl", name)
    if node is None:
        try:
            node = json.loads(_output([python, str(SCRIPT), request], ASKED_S, env).splitlines()[-1])
        except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
            node = {"unanswered": error_message(error)}
        if not node.get("unanswered"):
            remember("verl", name, node)
    if reason := node.get("unanswered"):
        got = f"verl's own checks did not end: {reason}"
        return CheckResult("WARN", OWN_CHECK, got, "start the run to see more")
    if refusal := node.get("refused"):
        fix = "change the arguments that it names, in engine.extra or in ours"
        return CheckResult("FAIL", OWN_CHECK, f"verl {version} refuses its arguments: {refusal}", fix)
    return None


def _output(command: Sequence[str], seconds: float, env: Mapping[str, str]) -> str:
    """What a command prints. Raises `OSError` or `subprocess.SubprocessError`."""
    completed = subprocess.run(
        command, capture_output=True, text=True, errors="replace", timeout=seconds, check=True,
        stdin=subprocess.DEVNULL, env={**os.environ, **env},
    )  # fmt: skip
    return completed.stdout
