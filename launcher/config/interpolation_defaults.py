"""Values that config files refer to and nobody sets: `${data.max_response_length}` is then its class's default."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from launcher.config.descriptions import fields_of
from launcher.config.explain import owner_of

_REFERENCE = re.compile(r"\$\{([a-z_]+(?:\.[a-z_]+)+)\}")


def defaults(node: Any) -> dict[str, Any]:
    """Dotted setting -> default, for each `${group.setting}` in a config that is not yet resolved and lacks it."""
    names = {name for text in _texts(node) for name in _REFERENCE.findall(text)}
    found = {}
    for name in sorted(names):
        group, _, setting = name.rpartition(".")
        if not _holds(node, group) or _holds(node, name):
            continue
        cls = owner_of(group, node)
        field = fields_of(cls).get(setting) if cls else None
        if field is not None and not field.is_required():
            found[name] = field.get_default(call_default_factory=True, validated_data={})
    return found


def _holds(node: Any, name: str) -> bool:
    for part in name.split("."):
        if not isinstance(node, Mapping) or part not in node:
            return False
        node = node[part]
    return True


def _texts(node: Any) -> list[str]:
    if isinstance(node, Mapping):
        return [text for value in node.values() for text in _texts(value)]
    if isinstance(node, list):
        return [text for value in node for text in _texts(value)]
    return [node] if isinstance(node, str) and "${" in node else []
