"""Checks for given settings that this run does not read, by their declarations (`ReadOnlyWith`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import Any

from launcher.config.descriptions import fields_of, written
from launcher.core.check_result import CheckResult
from launcher.core.settings import ReadOnlyWith
from launcher.preflight.checks.context import Context
from launcher.spec.run import RunSpec


def check(context: Context) -> Iterator[CheckResult]:
    """A warning for each setting without effect."""
    yield from _find_unread(context.asked, context.asked, "", None)  # `asked`: with a hub's model, not its folder


def _find_unread(run: RunSpec, settings: Any, prefix: str, reason_above: str | None) -> Iterator[CheckResult]:
    """Unread settings of `settings` and those nested in it; `reason_above`: why none of them is read."""
    for name, declared in fields_of(type(settings)).items():
        where, value = f"{prefix}.{name}".lstrip("."), getattr(settings, name)
        rule = next((rule for rule in declared.metadata if isinstance(rule, ReadOnlyWith)), None)
        reason = reason_above or (_unread_reason(run, settings, prefix, rule) if rule else None)
        nested = value if isinstance(value, Mapping) else {"": value}
        if any(fields_of(type(inner)) for inner in nested.values()):
            for key, inner in nested.items():
                yield from _find_unread(run, inner, f"{where}.{key}".rstrip("."), reason)
        elif reason and value != declared.get_default(call_default_factory=True, validated_data={}):
            message, _, fix = reason.partition("; ")
            yield CheckResult("WARN", where, f"{written(value)} has no effect, as {message}", fix)


def _unread_reason(run: RunSpec, settings: Any, prefix: str, rule: ReadOnlyWith) -> str | None:
    """Why a setting is not read, and what to use instead; None where it is read."""
    path = rule.other.removeprefix("run.")
    value = attrgetter(path)(settings if path == rule.other else run)
    if value in rule.values if rule.values else value:
        return None
    reason = rule.why or f"{prefix}.{rule.other} is {written(value)}"
    return f"{reason}; use {rule.fix.format(place=prefix)}, or leave it out"
