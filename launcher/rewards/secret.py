"""Settings that look like secrets: what is set is kept with the run, where others read it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

_SURE = {"token", "secret", "auth", "authorization", "cookie", "password", "passwd", "apikey"}
_OF_KEY = {"api", "access", "private", "secret", "signing"}  # any other key may be that of a dict
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")  # of `X-Api-Key`, `api_key` and `apiKey`


def secret(name: str, *, key: bool = False) -> bool:
    """Whether a value of this name is likely one; `key` where every key is."""
    words = [word.lower() for word in _WORD.findall(name)]
    return bool(_SURE.intersection(words)) or ("key" in words and (key or bool(_OF_KEY.intersection(words))))


def in_query(url: str) -> list[str]:
    """Names in a URL's query."""
    return [name for name, value in parse_qsl(urlsplit(url).query) if value and secret(name, key=True)]


def in_mapping(values: Mapping[str, Any]) -> Iterator[str]:
    """Names of texts, also of those further down: `outer.inner`."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from (f"{name}.{inner}" for inner in in_mapping(value))
        elif isinstance(value, str) and value and secret(str(name)):
            yield str(name)
