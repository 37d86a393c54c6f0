"""Health profiles: the rules of conf/health/rules, or of a file of your own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from yaml import YAMLError

from launcher.core.bounded_parse import parse_yaml, read_start
from launcher.core.files import conf_dir
from launcher.core.problems import Problem, Problems, suggest
from launcher.core.settings import from_node
from launcher.spec.health import HealthRule, HealthRules

MEASURED = "measured"
FOLDER = Path("health", "rules")


def profile_names(code_dir: Path | None = None) -> list[str]:
    """Names of the profiles in conf and in the folder of --config-dir."""
    folders = [conf_dir(), *([code_dir] if code_dir else [])]
    return sorted({file.stem for folder in folders for file in (folder / FOLDER).glob("*.yaml")})


def read_profile(name: str) -> HealthRules:
    """The rules of the profile of this name, or of the file at this path; a judge parses their conditions. Raises
    `Problems`."""
    return rules_of(read_profile_file(name), name)


def read_profile_file(name: str, code_dir: Path | None = None) -> Mapping[str, Any]:
    folders = [*([code_dir] if code_dir else []), conf_dir()]
    files = [folder / FOLDER / f"{name}.yaml" for folder in folders] if "/" not in name else []
    file = next(filter(os.path.isfile, (*files, Path(name))), None)  # also where a name is too long for a path
    if file is None:
        names = ", ".join(profile_names(code_dir))
        raise Problems(
            Problem("health.profile", f"no profile {name!r}", f"use one of {names}, or a file", "unknown-choice")
        )
    return _add_measured_rules(read_rules(file))


def _add_measured_rules(node: Mapping[str, Any]) -> Mapping[str, Any]:
    """A profile with those rules of the profile `measured` that it lists under `from_measured`, and their metrics."""
    names = node.get("from_measured", ())
    if not names:
        return node
    base = read_profile_file(MEASURED)
    rules = {name: base["rules"][name] for name in names}
    return {**node, "metrics": base["metrics"] | node["metrics"], "rules": rules | node["rules"]}


def read_rules(file: Path) -> Mapping[str, Any]:
    """The mapping in a file of rules. Raises `Problems` where it cannot be read or has no rules and metrics."""
    fix = f"use a YAML file such as {conf_dir() / FOLDER / MEASURED}.yaml"
    try:
        node = parse_yaml(read_start(file))
    except (YAMLError, ValueError, OSError) as error:
        raise Problems(Problem(str(file), " ".join(str(error).split()), fix, "bad-file")) from error
    if not isinstance(node, dict) or not all(isinstance(node.get(key, {}), dict) for key in ("metrics", "rules")):
        raise Problems(Problem(str(file), "has no mappings metrics and rules", fix, "bad-file"))
    return node


def rules_of(node: Mapping[str, Any], where: str) -> HealthRules:
    """The rules in a file's mapping; their conditions are not parsed yet. Raises `Problems`."""
    try:
        return from_node(HealthRules, node)
    except ValidationError as error:
        raise Problems(_problem_of(item, where) for item in error.errors()) from error
    except ValueError as error:
        raise Problems(Problem(where, str(error), "see docs/health.md", "bad-file")) from error


def _problem_of(item: ErrorDetails, where: str) -> Problem:
    """A problem that pydantic has with a file of rules."""
    place = ".".join(map(str, (where, *item["loc"])))
    if item["type"] == "unexpected_keyword_argument" and "rules" in item["loc"]:
        fix = suggest(str(item["loc"][-1]), [field.name for field in fields(HealthRule)], listed="a rule has")
        return Problem(place, "is no key of a rule", fix, "bad-file")
    return Problem(place, item["msg"].lower(), "see docs/health.md", "bad-file")
