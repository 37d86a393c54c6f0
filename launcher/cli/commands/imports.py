"""`rlrun import`: a launch script of verl becomes recipes of ours, which are planned."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from datetime import date
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
    """A recipe with what a plan of it found."""

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
    unconfined: Annotated[
        bool, typer.Option("--unconfined", help="Where this system has no Landlock: run it with your rights.")
    ] = False,
) -> CommandAnswer:
    """It runs where it can do nothing; what changed is said.

    Exit codes: 0 all is taken over, 1 something is refused or would fail, 2 nothing can be read.
    """
    found = import_script(script, arguments or [], number, _environment(variables or []), confined=not unconfined)
    target = output or Path(f"rlrun-{script.stem}.sh")
    taken = [made for made in found.launches if made.arguments]
    written = [_write(made, path) for made, path in zip(taken, _free(target, len(taken)), strict=True)]
    whole = not found.problems and len(taken) == len(found.launches) and all(one.ok for one in written)
    return CommandAnswer(_node(found, written), lambda: _say(found, written), exit_code=int(not whole))


def _environment(texts: list[str]) -> dict[str, str]:
    """The variables of `--env NAME=VALUE`. Raises `Problems`."""
    found = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
            raise Problems(Problem(f"--env {text}", "is no variable with its value", "use --env NAME=VALUE"))
        found[name] = value
    return found


def _free(target: Path, count: int) -> list[Path]:
    """The recipes' paths. Raises `Problems` where one is there already."""
    paths = recipe_paths(target, count)
    if there := next((path for path in paths if path.exists()), None):
        raise Problems(Problem(str(there), "is there already", "use -o FILE.sh, or delete it", "in-use"))
    return paths


def _write(made: ImportedLaunch, path: Path) -> Written:
    results = [result for result in plan(made.arguments).results if result.level in ("FAIL", "WARN")]
    write_atomic(path, recipe(made, path.name, date.today()))
    path.chmod(0o755)
    return Written(path, made, results)


def _say(found: ImportedScript, written: list[Written]) -> None:
    for note in found.notes:
        tell(f"· {note}")
    say_problems([*found.problems, *_not_taken(found)])
    for one in written:
        out.print(Text.assemble((printable(str(one.path)), "bold"), f"  {printable(one.made.name)}"), soft_wrap=True)
        for change in one.made.changes:
            say(f"  {change.line}")
        for note in one.made.notes:
            say(f"· {note}", "dim")
        say_problems(one.made.problems)
        if one.results:
            say_table(result_table(one.results))


def _not_taken(found: ImportedScript) -> list[Problem]:
    """Of launches of which no recipe is made."""
    return [problem for made in found.launches if not made.arguments for problem in made.problems]


def _node(found: ImportedScript, written: list[Written]) -> dict[str, Any]:
    return {
        "script": str(found.path),
        "refused": [str(problem) for problem in [*found.problems, *_not_taken(found)]],
        "open": found.notes,
        "recipes": [
            {
                "path": str(one.path), "launch": one.made.name, "program": one.made.launch.program, "ok": one.ok,
                "arguments": one.made.arguments, "changes": [asdict(change) for change in one.made.changes],
                "notes": one.made.notes, "problems": [str(problem) for problem in one.made.problems],
                "results": [asdict(result) for result in one.results],
            }
            for one in written
        ],
    }  # fmt: skip
