"""Health rules on logs of which it is known what became of them: `labelled_logs.py FOLDER [--profile measured]`.

FOLDER holds logs and `LABELS.csv` with the columns `file` and `label`: healthy, degraded, collapsed, or `warn only`.
Ends with 1 where a collapsed run has no critical finding before `EARLY` of its steps, a healthy or `warn only` one has
any, or a `warn only` one has no warning.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from launcher.core.events import Alert, Step
from launcher.health.judge import Judge
from launcher.health.profiles import MEASURED, read_profile
from launcher.logs.sources import open_log
from launcher.views.findings import PROGRAMS

EARLY = 0.4
KNOWN = ("healthy", "degraded", "collapsed", "warn only")


def judged(path: Path, profile: str) -> tuple[list[Alert], int, float]:
    """The findings, the last step, and the CPU seconds of judging it."""
    source = open_log(path)
    judge, steps = Judge(read_profile(profile), PROGRAMS.get(source.kind, "any")), list[Step]()
    steps = [event for event in source.events() if isinstance(event, Step)]
    begin = time.process_time()
    alerts = [alert for step in steps for alert in judge.see(step)]
    return alerts, steps[-1].step if steps else 0, time.process_time() - begin


def fault(label: str, alerts: list[Alert], last: int) -> str:
    """What is wrong with the findings of a log; empty where nothing is."""
    critical = [alert for alert in alerts if alert.level == "critical"]
    if label in ("healthy", "warn only") and critical:
        return "critical"
    if label == "warn only" and not any(alert.level == "warn" for alert in alerts):
        return "no warning"
    if label == "collapsed" and not any(alert.step < EARLY * last for alert in critical):
        return "late" if critical else "missed"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--profile", default=MEASURED)
    given = parser.parse_args()
    with (given.folder / "LABELS.csv").open(encoding="utf-8") as file:
        labels: Mapping[str, str] = {row["file"]: row["label"] for row in csv.DictReader(file)}
    table = Table("log", "label", "last step", "critical", "warn", "", box=None)
    faults, seconds, steps = 0, 0.0, 0
    for name, label in sorted(labels.items()):
        if label not in KNOWN:
            continue
        alerts, last, took = judged(given.folder / name, given.profile)
        wrong = fault(label, alerts, last)
        faults, seconds, steps = faults + bool(wrong), seconds + took, steps + last
        found = {level: [each for each in alerts if each.level == level] for level in ("critical", "warn")}
        shown = (
            ", ".join(f"{each.rule} {each.step} ({each.step / max(last, 1):.0%})" for each in of_level)
            for of_level in found.values()
        )
        table.add_row(escape(name), label, str(last), *map(escape, shown), wrong)
    Console(width=220).print(table)
    print(f"{faults} faults; {1000 * seconds / max(steps, 1):.2f} CPU ms a step")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
