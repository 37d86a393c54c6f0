"""Health profiles: the files of conf/health, or one of your own."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError
from yaml import YAMLError

from launcher.core.bounded_parse import parse_yaml, read_start
from launcher.core.files import conf_dir
from launcher.core.problems import Problem, Problems
from launcher.core.settings import from_node
from launcher.health.judge import Judge
from launcher.spec.health import HealthRules

MEASURED = "measured"


def profile_names() -> list[str]:
    """Those of conf/health."""
    return sorted(file.stem for file in (conf_dir() / "health").glob("*.yaml"))


def read_profile(name: str) -> HealthRules:
    """The rules of `conf/health/NAME.yaml`, or of the file with that path. Raises `Problems`."""
    named = conf_dir() / "health" / f"{name}.yaml"
    file = named if name in profile_names() else Path(name)
    if not file.is_file():
        known = ", ".join(profile_names())
        raise Problems(Problem("profile", f"no profile {name!r}", f"use one of {known}, or a file", "unknown-choice"))
    try:
        rules = from_node(HealthRules, parse_yaml(read_start(file)))
    except ValidationError as error:
        raise Problems(
            Problem(f"{file}: {'.'.join(map(str, each['loc']))}", each["msg"].lower(), "see docs/health.md", "bad-file")
            for each in error.errors()
        ) from error
    except (YAMLError, ValueError, OSError) as error:
        got = " ".join(str(error).split())
        fix = "use a YAML file such as conf/health/measured.yaml"
        raise Problems(Problem(str(file), got, fix, "bad-file")) from error
    Judge(rules)  # reads every condition
    return rules
