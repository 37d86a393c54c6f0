"""`rlrun diagnose LOG-OR-RUN`: what health rules find in a run of ours, or in a log that another program wrote."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from launcher.cli.arguments import Root
from launcher.cli.commands.metrics import LogOrRunName, no_metrics
from launcher.cli.log_or_run import PROGRAMS, LogOrRun, find, fixes_of_ending
from launcher.cli.output import AsJson, out, printable, problems_named, say, say_json
from launcher.cli.plot import CurveMeans, plot
from launcher.core.events import Alert, Event, Step, is_damage, writable
from launcher.core.metric_aliases import canonical
from launcher.core.metrics import metric
from launcher.core.problems import Problems
from launcher.health.advice import with_one_rate
from launcher.health.judge import Judge
from launcher.health.profiles import MEASURED, profile_names, read_profile
from launcher.launch.start import recorded_spec
from launcher.monitor.health import SERIOUS, Health
from launcher.monitor.run_rules import RATES
from launcher.runs import store
from launcher.spec.health import HealthRules

COLOURS = {"info": "blue", "warn": "yellow", "critical": "bold red"}
SIGNS = {"info": "i", "warn": "!", "critical": "✗"}
HEIGHT = 5


def diagnose(
    name: LogOrRunName,
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile", metavar="NAME", autocompletion=lambda: profile_names(),
            help="Judge by these rules, of conf/health or of a file; by default the run's own, or measured.",
        ),
    ] = None,
    root: Root = Path("runs"),
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Find what is wrong with a run, or with a log of another program.

    Prints each finding with its evidence, the likely cause and the arguments that help. The exit code is 1 where a
    finding is critical.
    """
    with problems_named():
        rules = None if profile is None else read_profile(profile)
        source = find(name, root)
        found, steps = _findings(source, name, root, rules)
    if as_json:
        say_json([writable(asdict(alert)) for alert in found])
    else:
        _show(source, found, steps)
    raise typer.Exit(1 if any(alert.level == "critical" for alert in found) else 0)


def _findings(source: LogOrRun, name: str, root: Path, rules: HealthRules | None) -> tuple[list[Alert], int]:
    """The findings, the most serious first, and the last step. Raises `Problems` where there are neither steps nor
    findings: nothing was judged."""
    judge = Judge(rules or read_profile(MEASURED), PROGRAMS.get(source.kind, "any"))
    own = source.log is None and rules is None
    see = Health(recorded_spec(store.find(name, root))).hear if own else judge.see
    found, last, rate = list[Alert](), -1, 0.0
    for event in source.events():
        if isinstance(event, Step):
            last, rate = max(last, event.step), max(rate, *_rates(event))
        found += see(event)
        if isinstance(event, Alert) and (is_damage(event) or source.log is not None):
            found.append(_with_fix(event, judge))
    if last < 0 and not found:
        raise Problems(no_metrics(source))
    return sorted(with_one_rate(found, rate), key=lambda alert: -SERIOUS[alert.level]), max(last, 0)


def _rates(event: Step) -> Iterator[float]:
    """The policy's learning rates, and 0."""
    yield 0.0
    yield from (value for name, value in event.metrics.items() if canonical(name) in RATES and math.isfinite(value))


def _with_fix(alert: Alert, judge: Judge) -> Alert:
    """An error that ended a program, with what helps in the program's own spelling."""
    fix = judge.fix_of(fixes_of_ending(alert.rule))
    return replace(alert, fix=fix) if fix else alert


def _show(source: LogOrRun, found: Iterable[Alert], steps: int) -> None:
    found = list(found)
    counts = ", ".join(
        f"{count} {level}" for level in ("critical", "warn", "info")
        if (count := sum(alert.level == level for alert in found))
    )  # fmt: skip
    say(f"{source.title}  ·  {source.kind}  ·  to step {steps}  ·  {counts or 'no finding'}", "dim")
    curves = _curves(source.events(), {alert.metric for alert in found if alert.metric})
    for alert in found:
        say("")
        for line, style in _lines(alert):
            say(line, style)
        evidence = curves.get(alert.metric)
        if evidence and len(evidence) > 1:
            marks = [alert.step if alert.since is None else alert.since]
            for line in plot(evidence, min(out.width, 80) - 2 if out.is_terminal else 78, HEIGHT, marks):
                say(f"  {line}", "cyan")


def _lines(alert: Alert) -> Iterator[tuple[str, str]]:
    since = "" if alert.since is None or alert.since == alert.step else f" (since step {alert.since})"
    rule = f"{alert.rule}: " if alert.rule else ""
    what = alert.text.removesuffix(f"; use {alert.fix}") if alert.fix else alert.text
    head = f"{SIGNS[alert.level]} {alert.level} at step {alert.step}{since}: {rule}{what}"
    yield printable(head), COLOURS[alert.level]
    subject = f"{alert.measure} " if alert.measure else ""
    numbers = [f"{subject}is {alert.value:.4g}"] if alert.value is not None else []
    numbers += [f"bound {alert.threshold:.4g}"] if alert.threshold is not None else []
    if alert.metric:
        known = metric(canonical(alert.metric))
        yield printable(f"  {', '.join([alert.metric, *numbers])}{f': {known.meaning}' if known else ''}"), ""
    for word, text in (("cause", alert.cause), ("use", alert.fix), ("from", alert.source)):
        if text:
            yield printable(f"  {word}: {text}"), "dim" if word == "from" else ""


def _curves(events: Iterable[Event], names: set[str]) -> dict[str, list[tuple[float, float]]]:
    """Of each metric (step, value) in at most some hundred means."""
    steps, values = ({name: CurveMeans(500) for name in names} for _ in range(2))
    for event in events if names else ():
        if isinstance(event, Step):
            for name in names & event.metrics.keys():
                steps[name].extend([event.step])
                values[name].extend([event.metrics[name]])
    return {name: list(zip(steps[name].points(), values[name].points(), strict=True)) for name in names}
