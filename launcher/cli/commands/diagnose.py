"""`rlrun diagnose LOG-OR-RUN`: what health rules find in a run of ours, or in a log that another program wrote."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from launcher.cli.arguments import LogOrRunName, Root
from launcher.cli.output import CommandAnswer, say
from launcher.core.events import Alert
from launcher.health.profiles import read_profile
from launcher.views import findings
from launcher.views.findings import Findings
from launcher.views.read import LogOrRun, find

COLOURS = {"info": "blue", "warn": "yellow", "critical": "bold red"}
SIGNS = {"info": "i", "warn": "!", "critical": "✗"}


def diagnose(
    name: LogOrRunName,
    profile: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Judge by these rules, of conf/health or of a file; by default the run's own, or measured.",
        ),
    ] = None,
    root: Root = Path("runs"),
) -> CommandAnswer:  # fmt: skip
    """Prints each finding with its evidence, the likely cause and the arguments that help. The exit code is 1 where a
    finding is critical.
    """
    rules = None if profile is None else read_profile(profile)
    source, own = find(name, root), None
    if source.log is None and rules is None:
        from launcher.launch.start import judge_of  # noqa: PLC0415  # late: a log needs no code that reads settings

        own = judge_of(source.folder)
    result = findings.find_problems(source, rules, own)
    critical = any(alert.level == "critical" for alert in result.alerts)
    return CommandAnswer(result.nodes, lambda: _say_findings(source, result), exit_code=int(critical))


def _say_findings(source: LogOrRun, result: Findings) -> None:
    counts = result.counts or "no finding"
    say(f"{source.title}  ·  {source.kind}  ·  to step {result.last_step}  ·  {counts}", "dim")
    if result.verdict:
        say(result.verdict.line)
    for alert in result.alerts:
        say("")
        for line, style in _alert_lines(alert):
            say(line, style)


def _alert_lines(alert: Alert) -> Iterator[tuple[str, str]]:
    since = "" if alert.since is None or alert.since == alert.step else f" (since step {alert.since})"
    rule = f"{alert.rule}: " if alert.rule else ""
    what = alert.text.removesuffix(f"; use {alert.fix}") if alert.fix else alert.text
    yield f"{SIGNS[alert.level]} {alert.level} at step {alert.step}{since}: {rule}{what}", COLOURS[alert.level]
    if evidence := findings.evidence_line(alert):
        yield f"  {evidence}", ""
    for word, text in (("cause", alert.cause), ("use", alert.fix), ("from", alert.source)):
        if text:
            yield f"  {word}: {text}", "dim" if word == "from" else ""
