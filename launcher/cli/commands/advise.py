"""`rlrun advise`: a few questions, and the command that fits the answers."""

from __future__ import annotations

import shlex
import sys
from typing import Annotated, cast, get_args

import typer

from launcher.cli.output import AsJson, printable, problems_named, say, say_json
from launcher.core import machine
from launcher.core.problems import Problem, Problems
from launcher.tools.advise import Compute, Have, advise, inspect_rows, reward_for

QUESTIONS = {
    "have": "What do you have: answers to imitate, pairs (chosen, rejected), prompts with a reward, or mixed",
    "compute": "How much compute: little, or much (a second model of the same size fits and trains, too)",
    "model": "Which model: a Hugging Face id, a folder, or a run",
    "files": "Which file holds the rows",
}


def recommend(
    files: Annotated[str | None, typer.Argument(metavar="FILE", help="Data file; its rows are inspected.")] = None,
    have: Annotated[str | None, typer.Option("--have", help="Kind of data: answers, pairs, prompts or mixed.")] = None,
    compute: Annotated[str | None, typer.Option("--compute", help="Available compute: little or much.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="Hugging Face id, folder or run.")] = None,
    hardware: Annotated[
        str | None, typer.Option("--hardware", help="Choice of the hardware group; by default what is here.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Suggest a command for your data, model and hardware."""
    with problems_named():
        if have is None and files is not None:
            have = inspect_rows(files)
        given = {"have": have, "compute": compute or ("little" if have not in (None, "prompts") else None)}
        given |= {"model": model, "files": files}
        given = _asked(given)
        reward = reward_for(str(given["files"])) if given["have"] in ("prompts", "mixed") else ()
        advice = advise(
            cast("Have", given["have"]), cast("Compute", given["compute"]), str(given["model"]), str(given["files"]),
            hardware or ("gpu" if machine.query_gpus().found else "cpu"), reward,
        )  # fmt: skip
    command = shlex.join(["rlrun", "train", *advice.words])
    if as_json:
        return say_json({"algorithm": advice.algorithm, "why": advice.why, "command": command})
    say(advice.why)
    say(f"\n  {printable(command)}", "bold")
    return None


def _asked(given: dict[str, str | None]) -> dict[str, str | None]:
    """Ask for what was not given; without a terminal, raise `Problems` that name what is missing."""
    missing = [name for name, value in given.items() if value is None]
    if missing and not sys.stdin.isatty():
        raise Problems([Problem(name, "is not given", f"use {_example(name)}") for name in missing])
    choices = {"have": get_args(Have), "compute": get_args(Compute)}
    for name in missing:
        if name == "compute" and given["have"] not in (None, "prompts"):
            given[name] = "little"
            continue
        answer = typer.prompt(QUESTIONS[name])
        while name in choices and answer not in choices[name]:
            answer = typer.prompt(f"{' or '.join(choices[name])}")
        given[name] = answer
    return given


def _example(name: str) -> str:
    return {
        "have": "--have answers, pairs, prompts or mixed", "compute": "--compute little or much",
        "model": "--model Qwen/Qwen3-0.6B", "files": "a file of rows",
    }[name]  # fmt: skip
