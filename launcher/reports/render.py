"""The templates of this folder. Every value printed into a page is escaped."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from launcher import __version__
from launcher.core.numbers import compact
from launcher.monitor.console import clock
from launcher.reports import text


def render(template: str, **values: Any) -> str:
    """HTML from a template."""
    return _environment().get_template(template).render(version=__version__, **values)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=text.for_page,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "num": number, "percent": lambda share: f"{share:.0%}", "clock": clock, "cut": text.cut, "line": text.one_line,
    }  # fmt: skip
    return environment


def number(value: float | None) -> str:
    """A number as `compact` writes it; a dash for None and NaN."""
    if value is None or math.isnan(value):
        return "-"
    return compact(value) if math.isfinite(value) else repr(value)
