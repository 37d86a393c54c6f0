"""`rlrun import`: a launch script of verl becomes recipes of ours, which are planned."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from launcher.cli.commands.plan import result_table
from launcher.cli.output import CommandAnswer, out, say, say_problems, say_table, tell
from launcher.core.check_result import CheckResult
from launcher.core.files import write_atomic
from launcher.core.problems import Problem, Problems
from launcher.core.redaction import printable
from launcher.preflight.plan import plan
from launcher.tools.importing.launch import ImportedLaunch
from launcher.tools.importing.script import ImportedScript, import_script, recipe, recipe_paths


@dataclass(frozen=True)
class Written:
    """A written recipe with the warnings and failures of its plan."""

    path: Path
    made: ImportedLaunch
    results: list[CheckResult]

    @property
    def ok(self) -> bool:
        return not self.made.problems and all(result.level != "FAIL" for result in self.results)


def import_(
    script: Annotated[Path, typer.Argument(metavar="FILE.sh", help="A bash script that starts verl.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[-- ARGS]", help="The script's own arguments, after --.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Recipe to write; default: rlrun-FILE.sh in this folder.")
    ] = None,
    number: Annotated[int | None, typer.Option("--run", metavar="N", help="Only the launch with this number.")] = None,
    variables: Annotated[
        list[str] | None,
        typer.Option("--env", metavar="NAME=VALUE", help="A variable of the shell that starts the script; repeatable."),
    ] = None,
    unconfined: Annotated[bool, "Where this system has no Landlock: run it with your rights."] = False,
) -> CommandAnswer:
    """It runs where it can do nothing; what changed is said.

    Exit codes: 0 all is taken over, 1 something is refused or would fail, 2 nothing can be read.
    """
    imported = import_script(script, arguments or [], number, _variables(variables or []), confined=not unconfined)
    target = output or Path(f"rlrun-{script.stem}.sh")
    usable = [launch for launch in imported.launches if launch.arguments]
    written = [_write(launch, path) for launch, path in zip(usable, _free_paths(target, len(usable)), strict=True)]
    complete = not imported.problems and len(usable) == len(imported.launches) and all(one.ok for one in written)
    return CommandAnswer(_node(imported, written), lambda: _say(imported, written), exit_code=int(not complete))


def _variables(texts: list[str]) -> dict[str, str]:
    """The variables of `--env NAME=VALUE`. Raises `Problems`."""
    variables = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
            raise Problems(Problem(f"--env {text}", "is no variable with its value", "use --env NAME=VALUE"))
        variables[name] = value
    return variables


def _free_paths(target: Path, count: int) -> list[Path]:
    """The paths of `count` recipes. Raises `Problems` where one of them exists."""
    paths = recipe_paths(target, count)
    if existing := next((path for path in paths if path.exists()), None):
        raise Problems(Problem(str(existing), "is there already", "use -o FILE.sh, or delete it", "in-use"))
    return paths


def _write(launch: ImportedLaunch, path: Path) -> Written:
    results = [result for result in plan(launch.arguments).results if result.level in ("FAIL", "WARN")]
    write_atomic(path, recipe(launch, path.name))
    path.chmod(0o755)
    return Written(path, launch, results)


def _say(imported: ImportedScript, written: list[Written]) -> None:
    for note in imported.notes:
        tell(f"· {note}")
    say_problems([*imported.problems, *_unused_problems(imported)])
    for one in written:
        out.print(Text.assemble((printable(str(one.path)), "bold"), f"  {printable(one.made.name)}"), soft_wrap=True)
        for change in one.made.changes:
            say(f"  {change.line}")
        for note in one.made.notes:
            say(f"· {note}", "dim")
        say_problems(one.made.problems)
        if one.results:
            say_table(result_table(one.results))


def _unused_problems(imported: ImportedScript) -> list[Problem]:
    """Problems of the launches for which no recipe is written."""
    return [problem for launch in imported.launches if not launch.arguments for problem in launch.problems]


def _node(imported: ImportedScript, written: list[Written]) -> dict[str, Any]:
    return {
        "script": str(imported.path),
        "refused": [str(problem) for problem in [*imported.problems, *_unused_problems(imported)]],
        "open": imported.notes,
        "recipes": [
            {
                "path": str(one.path), "launch": one.made.name, "program": one.made.launch.program, "ok": one.ok,
                "arguments": one.made.arguments, "changes": one.made.changes,
                "notes": one.made.notes, "problems": [str(problem) for problem in one.made.problems],
                "results": one.results,
            }
            for one in written
        ],
    }  # fmt: skip
