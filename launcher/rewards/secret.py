"""Settings of rewards that look like secrets: what is set is kept with the run, where others read it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from launcher.core.redaction import is_secret_name


def in_query(url: str) -> list[str]:
    """Names in a URL's query."""
    return [name for name, value in parse_qsl(urlsplit(url).query) if value and is_secret_name(name, key=True)]


def in_mapping(values: Mapping[str, Any]) -> Iterator[str]:
    """Names of texts, also of those further down: `outer.inner`."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from (f"{name}.{inner}" for inner in in_mapping(value))
        elif isinstance(value, str) and value and is_secret_name(str(name)):
            yield str(name)
