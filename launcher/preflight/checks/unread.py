"""Settings that are given and that this run does not read, as their own declarations say (`ReadOnlyWith`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from launcher.config.descriptions import fields_of, written
from launcher.core.check_result import CheckResult
from launcher.core.settings import ReadOnlyWith
from launcher.preflight.checks.context import Context
from launcher.spec.run import RunSpec


def check(context: Context) -> Iterator[CheckResult]:
    """A warning for each: the run is as well without it."""
    yield from _unread(context.asked, context.asked, "", None)  # a hub's model, not its folder


def _unread(run: RunSpec, settings: Any, place: str, above: str | None) -> Iterator[CheckResult]:
    """Those of `settings` and below; `above`: why nothing of them is read."""
    for name, declared in fields_of(type(settings)).items():
        where, value = f"{place}.{name}".lstrip("."), getattr(settings, name)
        rule = next((rule for rule in declared.metadata if isinstance(rule, ReadOnlyWith)), None)
        why = above or (_why(run, settings, place, rule) if rule else None)
        inside = value if isinstance(value, Mapping) else {"": value}
        if any(fields_of(type(each)) for each in inside.values()):
            for key, each in inside.items():
                yield from _unread(run, each, f"{where}.{key}".rstrip("."), why)
        elif why and value != declared.get_default(call_default_factory=True, validated_data={}):
            message, _, fix = why.partition("; ")
            yield CheckResult("WARN", where, f"{written(value)} has no effect, as {message}", fix)


def _why(run: RunSpec, settings: Any, place: str, rule: ReadOnlyWith) -> str | None:
    """Why a setting is not read, and what to use; None where it is."""
    of_run = rule.other.removeprefix("run.")
    held: Any = settings if of_run == rule.other else run
    for part in of_run.split("."):
        held = getattr(held, part)
    if held in rule.values if rule.values else held:
        return None
    why = rule.why or f"{place}.{rule.other} is {written(held)}"
    return f"{why}; use {rule.fix.format(place=place)}, or leave it out"
