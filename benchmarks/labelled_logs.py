"""Health rules on logs of which it is known what became of them: `labelled_logs.py FOLDER`.

FOLDER holds logs and `LABELS.csv` with the columns `file` and `label`: healthy, degraded, collapsed, or `warn only`.
Ends with 1 where a collapsed run has no critical finding before `EARLY` of its steps, a healthy or `warn only` one has
any, or a `warn only` one has no warning. Last, how many runs have a critical finding once their logs are changed in
ways that keep what became of them.
"""

from __future__ import annotations

import csv
import random
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from launcher.core.events import Alert, Step
from launcher.core.metric_aliases import canonical
from launcher.health.judge import Judge
from launcher.health.profiles import MEASURED, read_profile
from launcher.health.series import noise
from launcher.logs.sources import open_log
from launcher.spec.health import HealthRules
from launcher.views.findings import PROGRAMS

EARLY = 0.4
KNOWN = ("healthy", "degraded", "collapsed", "warn only")
Run = list[Step]
SCALED = ("critic/score/", "critic/rewards/", "rewards/", "val-core/", "reward")


def scale_rewards(factor: float, shift: float) -> Callable[[Run], Run]:
    """Every reward times `factor`, and `shift` added to what is no spread."""

    def change(name: str, value: float) -> float:
        if not canonical(name).startswith(SCALED):
            return value
        return value * factor + (0.0 if name.endswith("std") else shift)

    return lambda run: [Step(step=s.step, metrics={n: change(n, v) for n, v in s.metrics.items()}) for s in run]


def add_noise(run: Run) -> Run:
    """Noise as large as each metric's own, above 0 where the metric is."""
    chance, series = random.Random(0), dict[str, list[float]]()
    for step in run:
        for name, value in step.metrics.items():
            series.setdefault(name, []).append(value)
    spread, low = {n: noise(found) for n, found in series.items()}, {n: min(found) for n, found in series.items()}

    def put(name: str, value: float) -> float:
        return max(value + chance.gauss(0, spread[name]), 0.0 if low[name] >= 0 else low[name])

    return [Step(step=s.step, metrics={n: put(n, v) for n, v in s.metrics.items()}) for s in run]


def leave_out(*names: str) -> Callable[[Run], Run]:
    def kept(step: Step) -> dict[str, float]:
        return {name: value for name, value in step.metrics.items() if not canonical(name).startswith(names)}

    return lambda run: [Step(step=step.step, metrics=kept(step)) for step in run]


CHANGES: Mapping[str, Callable[[Run], Run]] = {
    "reward x 10": scale_rewards(10, 0),
    "reward -1 to 1": scale_rewards(2, -1),
    "reward + 1": scale_rewards(1, 1),
    "noise": add_noise,
    "every 5th step": lambda run: run[::5],
    "no importance, entropy": leave_out("sampling", "rollout_corr", "actor/entropy"),
    "from 10 %": lambda run: run[len(run) // 10 :],
    "to 50 %": lambda run: run[: len(run) // 2],
}


def judged(run: Run, judge: Judge) -> list[Alert]:
    return [alert for step in run for alert in judge.see(step)]


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


def main(folder: Path) -> int:
    with (folder / "LABELS.csv").open(encoding="utf-8") as file:
        labels = {row["file"]: row["label"] for row in csv.DictReader(file) if row["label"] in KNOWN}
    rules = read_profile(MEASURED)
    table = Table("log", "label", "last step", "critical", "warn", "", box=None)
    faults, runs = 0, dict[str, tuple[Run, str]]()
    for name, label in sorted(labels.items()):
        source = open_log(folder / name)
        run = [event for event in source.events() if isinstance(event, Step)]
        runs[name], last = (run, PROGRAMS.get(source.kind, "any")), max((each.step for each in run), default=0)
        alerts = judged(run, Judge(rules, runs[name][1]))
        wrong = fault(label, alerts, last)
        faults += bool(wrong)
        shown = {level: [f"{a.rule} {a.step}" for a in alerts if a.level == level] for level in ("critical", "warn")}
        table.add_row(escape(name), label, str(last), *(escape(", ".join(each)) for each in shown.values()), wrong)
    Console(width=220).print(table)
    print(f"{faults} faults")
    show_changes(runs, labels, rules)
    return 1 if faults else 0


def show_changes(runs: Mapping[str, tuple[Run, str]], labels: Mapping[str, str], rules: HealthRules) -> None:
    """How many runs of each label have a critical finding once their logs are changed."""
    for title, change in CHANGES.items():
        critical = Counter[str]()
        for name, (run, program) in runs.items():
            critical[labels[name]] += any(a.level == "critical" for a in judged(change(run), Judge(rules, program)))
        counts = Counter(labels.values())
        print(f"{title}: " + ", ".join(f"{critical[each]} of {counts[each]} {each}" for each in KNOWN))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
