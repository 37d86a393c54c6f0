"""Launches that fail and launches that are healthy, as tests/preflight/test_launches.py plans them.

Each case of reported/ is a failure that a user reported (`source` names the thread or the document), reduced
to its arguments; first_week/ holds others. `rlrun plan ARGUMENTS --json` must name it and the argument that fixes it;
with the fix, the plan must have no FAIL. A healthy launch must have none either, must mean what `means` says, and is
really run where it says `train: true`. Nothing is downloaded.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import chdir
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args
from unittest.mock import patch

import yaml
from huggingface_hub import constants
from launch_site import Site, site
from typer.testing import CliRunner

from launcher.cli.main import app

CASES = Path(__file__).parent / "reported"
ORIGIN = re.compile(r"https://github\.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+|S\d-\d+|R\d+|S\d+|F\d+")
"""A public thread, or the number of a requirement (S), a demand on reliability (R) or a finding (F)."""
LONGEST_S = 120.0
"""Seconds after which a plan is killed; of a training run, TRAIN_S."""
TRAIN_S = 600.0

FIELDS = ("level", "subject", "message", "fix")
Said = Mapping[str, str]
"""A check result: `FIELDS`."""
Level = Literal["FAIL", "WARN", "any"]
Plan = Callable[[Site, Sequence[str]], "Answer"]
Train = Callable[[Site, Sequence[str]], str]
"""Why a launch did not end well; empty where it did."""


def _holds(pattern: str, text: str) -> bool:
    return re.search(pattern, text, re.IGNORECASE) is not None


@dataclass(frozen=True)
class Answer:
    """What `rlrun plan` said."""

    results: tuple[Said, ...]
    code: int
    trouble: str = ""
    """Why it could not be understood."""
    run: Mapping[str, Any] = field(default_factory=dict)
    """All settings, as resolved."""

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
    """Pattern of the argument that fixes it, in `message; fix`; one that begins with `;.*` is looked for in `fix`."""
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
    means: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the resolved run, such as optim.lr: 0.0001."""
    train: bool = False
    """Whether it is really run: a tiny model, for seconds."""


def cases(folder: Path = CASES) -> list[Case]:
    """Those that fail, in the order of their files."""
    found = [Case(**node) for file in _files(folder) if not file.stem.startswith("healthy") for node in _read(file)]
    for case in found:
        if not ORIGIN.search(case.source) or case.level not in get_args(Level):
            raise ValueError(f"{case.name}: names no source, or a level that there is not")
    return found


def healthy(folder: Path = CASES) -> list[Healthy]:
    return [Healthy(**node) for file in _files(folder) if file.stem.startswith("healthy") for node in _read(file)]


def _files(at: Path) -> list[Path]:
    return [at] if at.is_file() else sorted(at.glob("*.yaml"))


def _read(file: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return found


# ---- asking


def in_a_process(where: Site, words: Sequence[str]) -> Answer:
    """As a person types it."""
    return understood(*_ran(where, ["plan", "--json", *words], LONGEST_S))


def in_this_process(where: Site, words: Sequence[str]) -> Answer:
    """The same in a tenth of the time; one at a time, as it changes the working folder."""
    offline = where.env.get("HF_HUB_OFFLINE") == "1"  # which its client reads once
    with (
        chdir(where.folder),
        patch.dict(os.environ, where.environment(), clear=True),
        patch.object(constants, "HF_HUB_OFFLINE", offline),
    ):
        ran = CliRunner().invoke(app, ["plan", "--json", *words], catch_exceptions=False)
    return understood(ran.stdout, ran.stderr, ran.exit_code)


def _ran(where: Site, words: Sequence[str], limit_s: float) -> tuple[str, str, int]:
    """Output, errors and exit code of `rlrun WORDS`; 124 after `limit_s`, with all the processes that it started."""
    argv = where.command(sys.executable, "-m", "launcher", *words)
    with subprocess.Popen(
        argv, cwd=where.folder, env=where.environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True,
    ) as started:  # fmt: skip
        try:
            stdout, stderr = started.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(started.pid, signal.SIGKILL)
            started.communicate()
            return "", f"did not end within {limit_s:g} s", 124
        return stdout, stderr, started.returncode


def understood(stdout: str, stderr: str, code: int) -> Answer:
    """The results of `--json`. A traceback, or an answer of another form, is no result."""
    try:
        node = json.loads(stdout)
        results = tuple({name: str(of[name]) for name in FIELDS} for of in node["results"])
        agrees = node["ok"] == (code == 0) == all(output["level"] != "FAIL" for output in results)
    except (ValueError, KeyError, TypeError):
        return Answer((), code, (stderr.strip() or stdout).strip()[-300:] or f"nothing, and exit code {code}")
    trouble = "" if agrees else f"ok={node['ok']}, exit code {code} and the results disagree"
    return Answer(results, code, trouble, node.get("run") or {})


def judge(case: Case, folder: Path, plan: Plan) -> str:
    """What is wrong with the plan before or after the fix; empty where both pass."""
    with site(folder, case.site) as where:
        words = where.words(case.words)
        before = plan(where, words)
        where.build(case.fixed_site)
        after = plan(where, with_arguments(words, where.words(case.fixed)))
    named = [output for output in before.results if case.names_it(output)]
    if before.trouble or not named:
        return f"not named: {before.trouble or _lines(before.results)}"
    if not any(map(case.shows_fix, named)):
        return f"no fix shown: {_lines(named)}"
    left = after.fails + [output for output in after.results if case.names_it(output)]
    return f"not OK after: {after.trouble or _lines(left)}" if after.trouble or left else ""


def judge_healthy(case: Healthy, folder: Path, plan: Plan, train: Train | None = None) -> str:
    """Why it is refused, means something else, or does not train; empty where all is well."""
    with site(folder, case.site) as where:
        words = where.words(case.words)
        answer = plan(where, words)
        trouble = answer.trouble or (_lines(answer.fails) if answer.fails else _other_meaning(case, answer))
        return train(where, words) if case.train and train and not trouble else trouble


def _other_meaning(case: Healthy, answer: Answer) -> str:
    """Settings that are not what the words mean."""
    found = {name: value_of(answer.run, name) for name in case.means}
    other = [f"{name} is {found[name]!r}" for name, value in case.means.items() if not _equal(found[name], value)]
    return f"it means something else: {', '.join(other)}" if other else ""


def value_of(run: Mapping[str, Any], name: str) -> Any:
    """Of `optim.lr` in a resolved run; None where it has no such setting."""
    node: Any = run
    for part in name.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node


def _equal(found: Any, value: Any) -> bool:
    """A list of one file equals that file, and a text that begins with `~` is a pattern."""
    found = found[0] if isinstance(found, list) and len(found) == 1 and not isinstance(value, list) else found
    return _holds(value[1:], str(found)) if isinstance(value, str) and value.startswith("~") else bool(found == value)


def trained(where: Site, words: Sequence[str]) -> str:
    """Why `rlrun train` did not end with 0."""
    stdout, stderr, code = _ran(where, ["train", *words], TRAIN_S)
    return f"train ended with {code}: {(stderr.strip() or stdout.strip())[-250:]}" if code else ""


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
