"""A RunSpec as YAML text: what spec.yaml holds."""

from __future__ import annotations

from typing import Any

import yaml

from launcher.core.bounded_parse import parse_yaml
from launcher.core.classes import add_code_dir
from launcher.core.settings import adapter, from_node
from launcher.spec.run import RunSpec


def to_node(run: RunSpec) -> dict[str, Any]:
    """Plain dicts, lists, numbers and texts."""
    node: dict[str, Any] = adapter(RunSpec).dump_python(run, mode="json")
    return node


def to_yaml(run: RunSpec) -> str:
    return yaml.safe_dump(to_node(run), sort_keys=False, allow_unicode=True, width=120)


def from_yaml(text: str) -> RunSpec:
    """The run, with its own code importable. Raises pydantic's `ValidationError` where the text is not a run of this
    version."""
    node = parse_yaml(text)
    add_code_dir(node.get("code_dir"))
    return from_node(RunSpec, node)
