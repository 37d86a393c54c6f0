"""What a run, or a log of any program, is judged by, and what follows from a critical finding."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from launcher.core.events import Level
from launcher.core.settings import Names, settings


def _check_hold(value: int | str) -> int | str:
    if isinstance(value, int) and value < 1:
        raise ValueError(f"is {value}; expected at least 1")
    return value


@settings
class HealthRule:
    """A condition on metrics, and what it means."""

    when: str
    """Condition over metrics: `mean(entropy, 2) >= 4 * first(entropy, 3)`. docs/reference.md lists the functions.
    `run.` stands before a setting or a fact of a run of ours: `run.data.shuffle and not run.solved`."""
    level: Level = "warn"
    """`info`: worth knowing; `warn`: worth a look soon; `critical`: the run is lost, or about to be."""
    hold: Annotated[int | str, AfterValidator(_check_hold)] = 1
    """Steps in a row for which the condition must hold, or an expression of it; a new value of `metric` counts as
    one."""
    at_end: bool = False
    """Judged once, at the end of a log or run, and not before."""
    metric: str
    """The metric that is shown, by its name under `metrics`."""
    value: str = ""
    """Expression of what is shown as the value; by default the latest value of `metric`."""
    threshold: str = ""
    """Expression of what the value is compared with."""
    text: str
    """What was found; `{value}`, `{threshold}` and `{EXPRESSION}` are filled in."""
    cause: str = ""
    """What it usually comes from."""
    fix: dict[str, str] = Field(default_factory=dict)
    """What helps, by program (`rlrun`, `verl`, `trl`): arguments in its spelling, and `{EXPRESSION}` filled in."""
    source: str = ""
    """Where the threshold is from."""
    covers: Names = ()
    """Rules that say no more once this one, as serious, has been reported, or while it holds."""


@settings
class NotApplied:
    """Rules of a profile that are not judged in some runs."""

    when: str
    """Condition over the run's settings."""
    rules: Names
    """Their names."""


@settings
class HealthRules:
    """Rules over metrics: a file of conf/health/rules."""

    metrics: dict[str, Names] = Field(default_factory=dict)
    """Names for the conditions, each with the metrics that it may stand for, the first that a log has; `*` matches any
    text. Spellings of other programs are known."""
    rules: dict[Annotated[str, Field(pattern=r"^[a-z0-9-]{1,60}$")], HealthRule] = Field(default_factory=dict)
    """The rules, by name."""
    from_measured: Names = ()
    """Rules of `measured` that are judged, too."""
    not_applied: tuple[NotApplied, ...] = ()
    """Of rules for runs of ours: which rules of the run's profile do not suit it."""


@settings
class HealthSettings:
    """What a run is judged by while it trains, and what follows from a critical finding."""

    profile: str | None = "measured"
    """The rules: a file of conf/health/rules, or of `health/rules` in the folder of --config-dir; null for none but
    `rules`."""
    on_critical: Literal["warn", "pause", "stop"] = "warn"
    """After a critical finding: `warn` only reports it, `pause` saves a checkpoint and stops the run, from where
    `rlrun train --resume` goes on, `stop` ends it at once without a checkpoint."""
    metrics: dict[str, Names] = Field(default_factory=dict)
    """More names for conditions, each with the metrics that it may stand for."""
    rules: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """What differs from the profile's rules, by rule: `health.rules.entropy-low.level=warn`; or new rules."""
