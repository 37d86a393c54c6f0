"""The templates of this folder. Every value printed into a page or into Markdown is escaped."""

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
    """Markdown from a template that ends with .md.j2; HTML from any other template."""
    environment = _environment(html=not template.endswith(".md.j2"))
    return environment.get_template(template).render(version=__version__, **values)


@cache
def _environment(html: bool) -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=html,
        undefined=StrictUndefined,
        finalize=text.for_page if html else text.for_markdown,
        trim_blocks=False,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "num": number, "percent": lambda share: f"{share:.0%}", "clock": clock, "cut": text.cut, "line": text.one_line,
        "fenced": text.fenced, "ours": text.Plain,
    }  # fmt: skip
    return environment


def number(value: float | None) -> str:
    """A number as `compact` writes it; a dash for None and NaN."""
    if value is None or math.isnan(value):
        return "-"
    return compact(value) if math.isfinite(value) else repr(value)
