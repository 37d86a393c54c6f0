"""An environment of verifiers 0.4: `environment=verifiers environment.id=NAME`, as `vf-eval NAME` takes it.

verifiers has its own virtual environment, as its pinned packages conflict with others, and the environment's processes
run in that Python (`launcher.environments.verifiers_session`). Its tasks are the rows (`data=verifiers`).
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Self

from launcher.core.problems import Problem, Problems, error_message
from launcher.core.settings import AtLeastOne, Count, settings
from launcher.core.user_code import shorten
from launcher.environments.processes import Processes
from launcher.environments.several import SeveralTurns
from launcher.spec.algorithm import Kind
from launcher.spec.data import Dataset, Message, RefusedRow, Row, Split
from launcher.spec.environment import Session, Sessions

FOLDER, VERSION = ".venv-verifiers", "0.4.0"
LOAD_S = 600.0  # time limit for loading a package with its tasks
PROGRAM = """import sys
from importlib.metadata import version
if not (found := version("verifiers")).startswith("0.4."):
    raise ImportError(f"verifiers {{found}} is installed")
sys.path.append({root!r})  # not for long: other packages there are not those of verifiers
from launcher.environments import verifiers, verifiers_session, worker
sys.path.pop()
{call}()
"""


def interpreter(python: str) -> str:
    """Absolute path of verifiers' Python; by default in the current folder, or beside the environment of rlrun."""
    defaults = [Path(FOLDER, "bin", "python"), Path(sys.prefix).parent / FOLDER / "bin" / "python"]
    candidates = [Path(python).expanduser()] if python else defaults
    return str(next((path for path in candidates if path.is_file()), candidates[0]).absolute())  # links not resolved


def program(python: str, call: str) -> list[str]:
    root = str(Path(__file__).parents[2])
    return [interpreter(python), "-P", "-c", PROGRAM.format(root=root, call=call)]


@cache
def described(python: str, id: str, args: str, n_tasks: int) -> dict[str, Any]:
    """The tasks and tools of a package, loaded by a subprocess. Raises `Problems`."""
    executable = interpreter(python)
    if not Path(executable).is_file():
        make = f"python3 -m venv {FOLDER} && {FOLDER}/bin/pip install verifiers=={VERSION}, or name another Python"
        raise Problems(Problem("environment.python", f"there is no {executable}", make, "not-found"))
    settings_node = asdict(VerifiersEnvironment(id=id, args=json.loads(args), n_tasks=n_tasks))
    try:
        result = subprocess.run(program(python, "verifiers_session.describe"), input=json.dumps(settings_node),
                             capture_output=True, text=True, check=False, timeout=LOAD_S)  # fmt: skip
    except OSError as error:
        got = f"{executable} cannot be run: {error_message(error)}"
        raise Problems(Problem("environment.python", got, "name another Python")) from error
    except subprocess.TimeoutExpired:
        fix = "look at what it downloads or waits for"
        raise Problems(Problem("environment.id", f"{id} was not loaded in {LOAD_S:g} s", fix)) from None
    last_line = (result.stderr.strip().splitlines() or [f"its process ended with exit code {result.returncode}"])[-1]
    description: dict[str, Any] = json.loads(result.stdout) if result.stdout else {"fault": shorten(last_line)}
    if "fault" in description:
        fix = f"use {executable} -m pip install verifiers=={VERSION} {id}, and look at environment.args"
        raise Problems(Problem("environment.id", f"{id} cannot be loaded: {description['fault']}", fix, "not-found"))
    return description


@settings
class VerifiersEnvironment(SeveralTurns):
    """A package of verifiers; its rewards score the episodes."""

    id: str
    """Name of the package, which is installed beside verifiers."""
    args: dict[str, Any] = field(default_factory=dict)
    """Its settings, as `vf-eval` takes them after --env: `{taskset: {num_tasks: 10}}`. The model talks by verifiers'
    chat loop without tools of its own (null), on this machine, unless this names another one."""
    python: str = ""
    """The Python of a virtual environment that has verifiers; by default that of .venv-verifiers."""
    n_tasks: AtLeastOne = 1024
    """Tasks that are rows, at most: some environments never end."""

    @property
    def scores(self) -> bool:
        return True

    def sessions(self) -> Sessions:
        return Processes(self, program(self.python, "worker.main"))

    def session(self) -> Session:
        made: Session = sys.modules["launcher.environments.verifiers_session"].session(self)  # imported by PROGRAM
        return made

    def problems(self) -> list[Problem]:
        if not self.system_prompt:
            return []
        fix = "leave it out, and name a file as system_prompt of the taskset in environment.args"
        return [Problem("environment.system_prompt", "is not read: verifiers writes its prompts", fix)]

    def missing_requirements(self) -> list[Problem]:
        try:
            self.tools()
        except Problems as error:
            return list(error.problems)
        return []

    def tools(self) -> Sequence[Mapping[str, Any]]:
        """The tools' schemas. Raises `Problems` where they cannot be loaded."""
        schemas: Sequence[Mapping[str, Any]] = described(self.python, self.id, json.dumps(self.args), self.n_tasks)[
            "tools"
        ]
        return schemas

    def with_absolute_paths(self) -> Self:
        return replace(self, python=interpreter(self.python))


@settings
class VerifiersTasks(Dataset):
    """The tasks of environment=verifiers."""

    id: str
    """That of the environment, and so are the next ones."""
    args: dict[str, Any] = field(default_factory=dict)
    """Its settings."""
    python: str = ""
    """Its Python."""
    n_tasks: AtLeastOne = 1024
    """Its tasks, at most."""
    n_val: Count = 64
    """The first tasks are held out: so many, at most a tenth of them."""

    @property
    def held_out(self) -> int | None:
        return None if self.n_val else 0

    def problems(self) -> list[Problem]:
        if self.id:
            return []
        fix = "use environment=verifiers environment.id=NAME"
        return [Problem("data", "has the tasks of environment=verifiers", fix, "conflicting-settings")]

    def with_absolute_paths(self) -> Self:
        return replace(self, python=interpreter(self.python))

    def read(self, split: Split, kind: Kind) -> Iterator[Row | RefusedRow]:
        tasks = self._tasks
        held_out = min(self.n_val, len(tasks) // 10)
        for number, task in enumerate(tasks, start=1):
            if (number <= held_out) == (split == "val"):
                prompt = tuple(Message(role, text) for role, text in task["prompt"])
                info = {"task": task["task"]}
                yield Row(f"{self.id}:{number}", prompt, data_source=self.id, ability="agent", extra_info=info)

    @property
    def _tasks(self) -> list[Any]:
        if problems := self.problems():
            raise Problems(problems)
        tasks: list[Any] = described(self.python, self.id, json.dumps(self.args), self.n_tasks)["tasks"]
        return tasks

    def fingerprint(self) -> str:
        """SHA-256 of the tasks."""
        return hashlib.sha256(json.dumps(self._tasks, sort_keys=True).encode()).hexdigest()
