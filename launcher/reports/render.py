"""The templates of this folder. All that is printed into a page is escaped, and all that is printed into Markdown."""

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
    """Markdown of a template that ends with .md.j2; a page, or a part of one, of another."""
    environment = _environment(html=not template.endswith(".md.j2"))
    return environment.get_template(template).render(version=__version__, **values)


@cache
def _environment(html: bool) -> Environment:
    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=html,
        undefined=StrictUndefined,
        finalize=text.for_page if html else text.for_markdown,
        trim_blocks=False,
        keep_trailing_newline=True,
    )
    made.filters |= {
        "num": number, "percent": lambda share: f"{share:.0%}", "clock": clock, "cut": text.cut, "line": text.one_line,
        "fenced": text.fenced, "ours": text.Plain,
    }  # fmt: skip
    return made


def number(value: float | None) -> str:
    """Four significant digits; a dash for none."""
    if value is None or math.isnan(value):
        return "-"
    return compact(value) if math.isfinite(value) else repr(value)
