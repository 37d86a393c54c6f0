"""Health rules on labelled logs that are changed in ways that keep what became of the run: `label_variants.py FOLDER`.

Prints of each change how many collapsed runs have a critical finding, before `EARLY` of their steps or at all, and how
many others have one. FOLDER is that of `labelled_logs.py`.
"""

from __future__ import annotations

import argparse
import csv
import random
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from labelled_logs import EARLY, KNOWN
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from launcher.core.events import Alert, Step
from launcher.core.metric_aliases import canonical
from launcher.health.judge import Judge
from launcher.health.profiles import MEASURED, read_profile
from launcher.health.series import noise
from launcher.logs.sources import open_log

Values = Mapping[str, float]
Run = list[tuple[int, Values]]
Change = Callable[[Run, random.Random], Run]
SCALED = ("critic/score/", "critic/rewards/", "rewards/", "val-core/", "reward")
SEEDS = 5
NEVER = float("inf")
RULES = read_profile(MEASURED)


def rewards(factor: float, shift: float = 0.0) -> Change:
    """Every reward times `factor`, and `shift` added to what is no spread."""

    def changed(name: str, value: float) -> float:
        if not canonical(name).startswith(SCALED):
            return value
        return value * factor + (0.0 if name.endswith("std") else shift)

    return lambda run, _: [(step, {name: changed(name, v) for name, v in values.items()}) for step, values in run]


def noisy(times: float) -> Change:
    """Noise as large as each metric's own, within the range 0 to 1 or above 0 where the metric is."""

    def change(run: Run, chance: random.Random) -> Run:
        series: dict[str, list[float]] = {}
        for _, values in run:
            for name, value in values.items():
                series.setdefault(canonical(name), []).append(value)
        spread = {name: times * noise(found) for name, found in series.items()}
        low = {name: 0.0 if min(found) >= 0 else -NEVER for name, found in series.items()}
        high = {name: 1.0 if min(found) >= 0 and max(found) <= 1 else NEVER for name, found in series.items()}

        def put(n: str, value: float) -> float:
            return min(max(value + chance.gauss(0, spread[n]), low[n]), high[n])

        return [(step, {n: put(canonical(n), v) for n, v in values.items()}) for step, values in run]

    return change


def without(*names: str) -> Change:
    return lambda run, _: [
        (step, {n: v for n, v in values.items() if not canonical(n).startswith(names)}) for step, values in run
    ]


def cut(start: float, end: float) -> Change:
    return lambda run, _: run[int(start * len(run)) : int(end * len(run))]


CHANGES: Mapping[str, Change] = {
    "none": lambda run, _: run,
    "reward x 10": rewards(10),
    "reward -1 to 1": rewards(2, -1),
    "reward + 0.2": rewards(1, 0.2),
    "reward + 1": rewards(1, 1),
    "reward - 1": rewards(1, -1),
    "noise x 1": noisy(1),
    "noise x 0.5": noisy(0.5),
    "every 2nd step": lambda run, _: run[::2],
    "every 5th step": lambda run, _: run[::5],
    "verl's names": lambda run, _: [(s, {canonical(n): v for n, v in values.items()}) for s, values in run],
    "no entropy": without("actor/entropy"),
    "no importance": without("sampling", "rollout_corr"),
    "no importance, entropy": without("sampling", "rollout_corr", "actor/entropy"),
    "from 10 %": cut(0.1, 1),
    "to 50 %": cut(0, 0.5),
    "to 75 %": cut(0, 0.75),
}


def judged(run: Run) -> list[Alert]:
    judge = Judge(RULES)
    found = [alert for step, values in run for alert in judge.see(Step(step=step, metrics=values))]
    return [alert for alert in found if alert.level == "critical"]


@cache
def read(path: Path) -> Run:
    return [(e.step, e.metrics) for e in open_log(path).events() if isinstance(e, Step)]


def row(title: str, runs: Mapping[Path, str]) -> list[str]:
    count, found, wrong = Counter[str](), Counter[str](), Counter[str]()
    at = list[float]()  # where in a collapsed run the first critical finding is
    for path, label in runs.items():
        run = read(path)
        for seed in range(SEEDS if title.startswith("noise") else 1):
            alerts = judged(CHANGES[title](run, random.Random(f"{seed} {path.name}")))
            count[label] += 1
            found[label] += bool(alerts)
            if label == "collapsed":
                at.append(alerts[0].step / run[-1][0] if alerts else NEVER)
            elif alerts:
                wrong[f"{alerts[0].rule} ({label})"] += 1
    cells = [f"{found[each]} of {count[each]}" for each in ("collapsed", "healthy", "official", "degraded")]
    latest = "missed" if NEVER in at else f"{max(at, default=0):.0%}"
    early = str(sum(each < EARLY for each in at))
    return [title, cells[0], early, latest, *cells[1:], ", ".join(f"{key} {n}" for key, n in wrong.items())]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="changes whose name has this text")
    given = parser.parse_args()
    with (given.folder / "LABELS.csv").open(encoding="utf-8") as file:
        labels = {row["file"]: row["label"] for row in csv.DictReader(file)}
    runs = {
        given.folder / name: "official" if name.startswith("verl") else label
        for name, label in sorted(labels.items())
        if label in KNOWN
    }
    table = Table("change", "collapsed", "early", "latest", "healthy", "official", "degraded", "first rule", box=None)
    for title in CHANGES:
        if given.only in title:
            table.add_row(*map(escape, row(title, runs)))
    Console(width=170).print(table)


if __name__ == "__main__":
    main()
