"""Checks from the folder of --config-dir: each `check/NAME.yaml` in it names a class that extends `Check`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from pydantic import TypeAdapter, ValidationError
from yaml import YAMLError

from launcher.core.bounded_parse import parse_yaml
from launcher.core.check_result import CheckResult
from launcher.core.problems import error_message
from launcher.core.settings import Chosen
from launcher.core.user_code import CallFailure, try_call
from launcher.preflight.checks.context import Check, Context


def check(context: Context) -> Iterator[CheckResult]:
    """What raises, or cannot be loaded, is a failure that names the file."""
    folder = context.run.code_dir
    for file in sorted(Path(folder, "check").glob("*.yaml")) if folder else ():
        found = try_call(partial(_results, file, context))
        if isinstance(found, CallFailure):
            yield CheckResult("FAIL", f"check/{file.name}", found.reason)
        else:
            yield from found


def _results(file: Path, context: Context) -> list[CheckResult]:
    return list(_load(file).check(context))


def _load(file: Path) -> Check:
    """Raises `ValueError` with the reason where the file does not describe a check."""
    try:
        made: Check = TypeAdapter(Chosen[Check]).validate_python(parse_yaml(file.read_bytes()))
    except ValidationError as error:
        raise ValueError("; ".join(fault["msg"] for fault in error.errors())) from error
    except (OSError, YAMLError) as error:
        raise ValueError(error_message(error)) from error
    return made
