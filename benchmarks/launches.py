"""Launches that fail and launches that are healthy: `python benchmarks/launches.py [PART OF A NAME ...]`.

Each case of launch_cases/ is a failure that a user reported (`source` names the thread or the document), reduced
to its arguments. `rlrun plan ARGUMENTS --json` must name it and the argument that fixes it; with the fix, the plan must
have no FAIL. A healthy launch must have none either. Every plan runs in its own process, offline.

Ends with 1 where fewer than LEAST of the failures are named and fixed, or a healthy launch is refused.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import yaml
from launch_site import Site, site
from rich.console import Console
from rich.table import Table
from rich.text import Text

from launcher.core.machine import cpu_count

CASES = Path(__file__).parent / "launch_cases"
LEAST = 57 / 60
ORIGIN = re.compile(r"https://github\.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+|S\d-\d+|R\d+|S\d+")
"""A public thread, or an item of REQUIREMENTS.md or RELIABILITY.md."""

FIELDS = ("level", "subject", "message", "fix")
Said = Mapping[str, str]
"""A check result: `FIELDS`."""
Level = Literal["FAIL", "WARN", "any"]
Plan = Callable[[Site, Sequence[str]], "Answer"]


def _holds(pattern: str, text: str) -> bool:
    return re.search(pattern, text, re.IGNORECASE) is not None


@dataclass(frozen=True)
class Answer:
    """What `rlrun plan` said."""

    results: tuple[Said, ...]
    code: int
    trouble: str = ""
    """Why it could not be understood."""

    @property
    def fails(self) -> list[Said]:
        return [output for output in self.results if output["level"] == "FAIL"]


@dataclass(frozen=True)
class Case:
    """One launch that fails."""

    name: str
    source: str
    words: str
    subject: str
    """Pattern of the result's `subject`."""
    message: str
    """Pattern of the result's line: what tells this failure from its neighbours."""
    fix: str
    """Pattern of the argument that fixes it, in the result's `fix` or `message`."""
    level: Level = "FAIL"
    site: Mapping[str, Any] = field(default_factory=dict)
    fixed: str = ""
    """Words that take the place of those with the same key; `~key` takes one away."""
    fixed_site: Mapping[str, Any] = field(default_factory=dict)

    def names_it(self, output: Said) -> bool:
        level = output["level"] in (("FAIL", "WARN") if self.level == "any" else (self.level,))
        line = f"{output['subject']}: {output['message']}; {output['fix']}"
        return level and _holds(self.subject, output["subject"]) and _holds(self.message, line)

    def shows_fix(self, output: Said) -> bool:
        return _holds(self.fix, f"{output['message']}; {output['fix']}")


@dataclass(frozen=True)
class Healthy:
    """One launch that does not fail."""

    name: str
    words: str
    site: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    name: str
    named: bool
    fix_shown: bool
    fine_after: bool
    saw: str
    """What was said where that is not what should be."""

    @property
    def passed(self) -> bool:
        return self.named and self.fix_shown and self.fine_after


def cases() -> list[Case]:
    """Those that fail, in the order of their files."""
    found = [Case(**node) for file in sorted(CASES.glob("*.yaml")) if file.stem != "healthy" for node in _read(file)]
    for case in found:
        if not ORIGIN.search(case.source) or case.level not in get_args(Level):
            raise ValueError(f"{case.name}: names no source, or a level that there is not")
        for pattern in (case.subject, case.message, case.fix):
            re.compile(pattern)
    return found


def healthy() -> list[Healthy]:
    return [Healthy(**node) for node in _read(CASES / "healthy.yaml")]


def _read(file: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return found


# ---- asking


def in_a_process(where: Site, words: Sequence[str]) -> Answer:
    """As a person types it."""
    argv = where.command(sys.executable, "-m", "launcher", "plan", "--json", *words)
    ran = subprocess.run(
        argv, cwd=where.folder, env=where.environment(), capture_output=True, text=True, check=False, timeout=120
    )
    return understood(ran.stdout, ran.stderr, ran.returncode)


def understood(stdout: str, stderr: str, code: int) -> Answer:
    """The results of `--json`. A traceback, or an answer of another form, is no result."""
    try:
        node = json.loads(stdout)
        results = tuple({name: str(of[name]) for name in FIELDS} for of in node["results"])
        agrees = node["ok"] == (code == 0) == all(output["level"] != "FAIL" for output in results)
    except (ValueError, KeyError, TypeError):
        return Answer((), code, (stderr.strip() or stdout).strip()[-300:] or f"nothing, and exit code {code}")
    return Answer(results, code, "" if agrees else f"ok={node['ok']}, exit code {code} and the results disagree")


def judge(case: Case, folder: Path, plan: Plan) -> Outcome:
    with site(folder, case.site) as where:
        words = where.words(case.words)
        before = plan(where, words)
        named = [output for output in before.results if case.names_it(output)]
        fix_shown = [output for output in named if case.shows_fix(output)]
        saw = "" if fix_shown else before.trouble or _lines(named or before.results)
        where.build(case.fixed_site)
        after = plan(where, with_arguments(words, where.words(case.fixed)))
    left = after.fails + [output for output in after.results if case.names_it(output)]
    fine = not after.trouble and not left
    saw = saw or ("" if fine else "after: " + (after.trouble or _lines(left)))
    return Outcome(case.name, bool(named) and not before.trouble, bool(fix_shown), fine, saw)


def judge_healthy(case: Healthy, folder: Path, plan: Plan) -> Outcome:
    with site(folder, case.site) as where:
        answer = plan(where, where.words(case.words))
    fine = not answer.trouble and not answer.fails
    return Outcome(case.name, True, True, fine, "" if fine else answer.trouble or _lines(answer.fails))


def with_arguments(words: Sequence[str], instead: Sequence[str]) -> list[str]:
    """`words` with what takes the place of some of them."""
    gone = {word.removeprefix("~").partition("=")[0] for word in instead}
    kept = [word for word in words if word.partition("=")[0] not in gone]
    return [*kept, *(word for word in instead if not word.startswith("~"))]


def _lines(results: Sequence[Said]) -> str:
    told = [output for output in results if output["level"] != "OK"]
    return (
        " | ".join(f"{output['level']} {output['subject']}: {output['message']}; {output['fix']}" for output in told)
        or "all OK"
    )


# ---- telling


def main(parts: Sequence[str]) -> int:
    def chosen(name: str) -> bool:
        return not parts or any(part in name for part in parts)

    with ThreadPoolExecutor(cpu_count()) as threads:
        failing = list(threads.map(_judged, [case for case in cases() if chosen(case.name)]))
        well = list(threads.map(_judged, [case for case in healthy() if chosen(case.name)]))
    table = Table("launch", "named", "fix shown", "OK after", "saw", title="launches that fail")
    for row in failing:
        marks = [_mark(value) for value in (row.named, row.fix_shown, row.fine_after)]
        table.add_row(row.name, *marks, Text(row.saw[:300]))
    others = Table("launch", "OK", "saw", title="healthy launches")
    for row in well:
        others.add_row(row.name, _mark(row.fine_after), Text(row.saw[:300]))
    good, fine = sum(row.passed for row in failing), sum(row.fine_after for row in well)
    least = math.ceil(LEAST * len(failing))
    Console().print(table, others)
    print(f"{good}/{len(failing)} named with their fix and OK after it, at least {least};"
          f" {len(well) - fine} of {len(well)} healthy refused")  # fmt: skip
    return 0 if good >= least and fine == len(well) else 1


def _judged(case: Case | Healthy) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder) / "here"
        return judge(case, here, in_a_process) if isinstance(case, Case) else judge_healthy(case, here, in_a_process)


def _mark(good: bool) -> str:
    return "yes" if good else "[red]NO[/]"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
