"""Which programs a shell script starts, and which of their arguments depend on the machine: it runs on fake machines.

Text that differs between the runs becomes a placeholder; a launch of one run alone is noted with its condition.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import eq
from pathlib import Path

from launcher.core.files import read_file
from launcher.core.problems import Problem, Problems, error_message, shortened
from launcher.sandbox import confine
from launcher.sandbox.script import Machine, ScriptRun, StartedProgram, Substitute, missing_paths, run_script

ARGUMENTS = "give its own arguments after --: rlrun import FILE.sh -- ARGUMENTS"
SIZE = 2**20  # bytes of a script
ROUNDS = 8  # runs to find the paths that are missing here
_ASKS_FOR_GPUS = re.compile(r"(command -v|which|hash|type)\s[^\n]*nvidia-smi")
_TEMPORARY = re.compile(r"/tmp/tmp\.rlrun\d+")
_START = re.compile(r"\b(python|torchrun|accelerate|deepspeed|rlrun)|\.sh\b")
_HARMLESS_ERROR = re.compile(r"Broken pipe|command not found")
_UNSET_ERROR = re.compile(r"(\w+): unbound variable")
_ARGUMENT_ERROR = re.compile(r"(\w+): (.*)")


def _machine(host: str, address: str, gpus: Sequence[str], numbers: Sequence[int], depth: int) -> Machine:
    number, processors, seconds, drawn = numbers
    answers = {
        "hostname": host, "whoami": f"user-{host}", "scontrol": f"{host}\n{host}2", "ray": f"node_1\nnode_{number}",
        "getent": f"{address} {host}", "ip": address, "nvidia-smi": "\n".join(gpus), "uname": "Linux", "squeue": "",
        "nproc": str(processors), "lscpu": str(processors), "shuf": str(drawn), "id": str(drawn),
        "uuidgen": f"{drawn:x}-{host}", "git": f"{drawn:x}{seconds:x}",
    }  # fmt: skip
    return Machine(answers, number, seconds, depth=depth)


FIRST, SECOND = (
    _machine("node-a", "10.0.0.1", [f"GPU {at}: NVIDIA H100 HBM3" for at in range(8)], (8, 64, 1735787045, 29512), 0),
    _machine("another", "192.168.7.9", [f"GPU {at}: NVIDIA A100" for at in range(4)], (4, 48, 1789135699, 31777), 1),
)
"""Two machines that differ in all that a script may ask of them, except the kind of system."""


@dataclass(frozen=True)
class OpenPart:
    """A part of a launch that is known only when the script runs on its own machine."""

    place: str
    text: str
    note: str = ""

    def __str__(self) -> str:
        return f"{self.text}: {self.note}" if self.note else self.text


@dataclass(frozen=True)
class Reading:
    started: tuple[StartedProgram, ...] = ()
    """Programs in the order of their start; an unknown part of a word is written `{the command that tells}`."""
    placeholders: tuple[str, ...] = ()
    open: tuple[OpenPart, ...] = ()
    refused: tuple[Problem, ...] = ()
    """Why the script could not be run to its end."""
    written: Mapping[str, str] = field(default_factory=dict)
    """Configs that it writes, by path."""


def read_script(
    path: Path, arguments: Sequence[str] = (), environment: Mapping[str, str] | None = None, *, confined: bool = True
) -> Reading:
    """What `bash path arguments...` starts, in a shell with that environment. Raises `Problems` where the file is no
    script, or the system cannot confine it."""
    text = _checked_text(path, confined)
    env = environment or {}
    first, substitutes = _first_run(path, text, arguments, env, confined)
    notes = _error_notes(first, substitutes)
    if not any(one.launches for one in first.started):
        notes.append(OpenPart(first.last, "the script", f"ended here, with exit code {first.outcome.code}"))
    if first.outcome.stopped:
        stopped = Problem(first.last, first.outcome.stopped, "use --env, or the script's own arguments", "bad-file")
        launches = tuple(one for one in first.started if one.launches)
        return Reading(launches, (), tuple(notes), (stopped,), first.written)

    def run_on(machine: Machine) -> ScriptRun:
        return run_script(path, arguments, env, machine, substitutes, confined=confined)

    compared = _Comparison(first, run_on)
    compared.add(SECOND)
    if any(one.name == "nvidia-smi" for one in first.started) or _ASKS_FOR_GPUS.search(text):
        compared.add(replace(FIRST, absent=("nvidia-smi",)))
    refused = _fatal_errors(first, text, bool(compared.launches))
    parts, placeholders = dict.fromkeys([*compared.open, *notes]), dict.fromkeys(compared.placeholders)
    return Reading(tuple(compared.launches), tuple(placeholders), tuple(parts), tuple(refused), compared.written)


def can_confine() -> bool:
    return not confine.missing()


def _checked_text(path: Path, confined: bool) -> str:
    if confined and (absent := confine.missing()):
        fix = "use --unconfined, which runs it with your rights, and programs other than text tools replaced"
        raise Problems(Problem(str(path), f"is run confined, and this system has no {absent[0]}", fix, "not-supported"))
    if not shutil.which("bash", path=os.defpath):
        got = "is read by bash, which this system does not have"
        raise Problems(Problem(str(path), got, "install it", "not-installed"))
    try:
        content = read_file(path, SIZE)
        text = content.decode()
    except FileNotFoundError:
        raise Problems(Problem(str(path), "no such file", code="not-found")) from None
    except (OSError, ValueError) as error:
        got = f"cannot be read ({error_message(error)})"
        raise Problems(Problem(str(path), got, "use a shell script", "bad-file")) from error
    for mark, name, fix in (("\0", "a NUL", "use a shell script"), ("\r\n", "CRLF at its end", "use dos2unix")):
        if mark in text:
            line = text[: text.index(mark)].count("\n") + 1
            raise Problems(Problem(f"{path}:{line}", f"has {name}", fix, "bad-file"))
    return text


def _first_run(
    path: Path, text: str, arguments: Sequence[str], environment: Mapping[str, str], confined: bool
) -> tuple[ScriptRun, list[Substitute]]:
    """The run on the first machine, and the paths that had to be replaced for it by ones in the sandbox."""
    substitutes = list[Substitute]()
    for _ in range(ROUNDS):
        run = run_script(path, arguments, environment, FIRST, substitutes, confined=confined)
        known_paths = {one.path for one in substitutes}
        missing = {one.path: one for one in missing_paths(run) if one.path not in known_paths}
        if not missing or run.outcome.stopped:
            break
        words = " ".join([text, *arguments, *environment.values()])
        for one in missing.values():
            parts = [one.path, *map(str, Path(one.path).parents)][:-1]
            prefixes = tuple(part for part in parts if part in words)
            substitutes.append(replace(one, prefixes=prefixes[: 1 if one.path in words else 9]))
    return run, substitutes


# ---- what differs between machines


class _Comparison:
    """The launches of the first run, with placeholders where they differ on other machines."""

    def __init__(self, first: ScriptRun, run_on: Callable[[Machine], ScriptRun]) -> None:
        self.run_on, self.first = run_on, first
        self.before = [one for one in first.started if one.launches]
        self.calls = [one for one in first.started if not one.launches and not _START.search(" ".join(one.words))]
        self.placeholders = list[str]()
        self.open = list[OpenPart]()
        self.launches = [_map_text(launch, self._mask_temporary) for launch in self.before]
        self.written = {self._mask_temporary(key): self._mask_temporary(text) for key, text in first.written.items()}

    def add(self, machine: Machine) -> None:
        run = self.run_on(machine)
        remaining = [_map_text(one, self._mask_temporary) for one in run.started if one.launches]
        unmatched = list[StartedProgram]()
        for number, launch in enumerate(self.launches[: len(self.before)]):
            candidates = [one for one in remaining if _shape(one) == _shape(launch)]
            if not candidates:
                unmatched.append(launch)
                continue
            other = max(candidates, key=lambda one: sum(map(eq, one.words, launch.words)))
            remaining.remove(other)
            self.launches[number] = self._merge_launches(launch, other)
        for path, text in {**self.written}.items():
            self.written[path] = self._mark_differing_lines(text, self._mask_temporary(run.written.get(path, "")))
        previous = self.launches[len(self.before) :]
        remaining = [one for one in remaining if not any(_shape(one) == _shape(launch) for launch in previous)]
        if not unmatched and not remaining:
            return
        reason = self._reason(machine, {*map(_shape, self.before)})
        self.open += [OpenPart(one.place, one.command, f"is not started where {reason}") for one in unmatched]
        self.open += [OpenPart(one.place, one.command, f"is started only where {reason}") for one in remaining]
        self.launches += remaining

    def _reason(self, machine: Machine, shapes: set[tuple[str, str, int]]) -> str:
        """The answer of the machine that decides whether a program is started."""
        if machine.absent:
            return f"{machine.absent[0]} is not there"
        for name in dict.fromkeys(one.name for one in self.calls):
            if name == "date":
                changed = replace(FIRST, seconds=machine.seconds)
            elif name in machine.answers:
                changed = replace(FIRST, answers={**FIRST.answers, name: machine.answers[name]})
            else:
                continue
            if {_shape(one) for one in self.run_on(changed).started if one.launches} != shapes:
                answer = machine.answers.get(name, "another day").splitlines()
                return f"{name} says {answer[0]!r}" + (f" and {len(answer) - 1} lines more" if answer[1:] else "")
        return "the machine answers otherwise"

    def _merge_launches(self, launch: StartedProgram, other: StartedProgram) -> StartedProgram:
        words = tuple(map(self._mark_difference, launch.words, other.words))
        environment = {key: self._mark_difference(value, other.environment.get(key, value))
                       for key, value in launch.environment.items()}  # fmt: skip
        return replace(launch, words=words, environment=environment)

    def _mark_differing_lines(self, text: str, other: str) -> str:
        lines, others = text.splitlines(), other.splitlines()
        return "\n".join([*map(self._mark_difference, lines, others), ""]) if len(lines) == len(others) else text

    def _mark_difference(self, text: str, other: str) -> str:
        """`text`, with a placeholder for the part in which `other` differs."""
        if text == other or any(part in text for part in self.placeholders):
            return text
        begin = _common_prefix_length(text, other)
        end = _common_prefix_length(text[begin:][::-1], other[begin:][::-1])
        while begin and text[begin - 1].isalnum():  # to the end of a number or a name
            begin -= 1
        while end and text[len(text) - end].isalnum():
            end -= 1
        middle = text[begin : len(text) - end]
        return f"{text[:begin]}{self._placeholder(middle)}{text[len(text) - end :]}"

    def _placeholder(self, value: str) -> str:
        """Adds and returns a placeholder that names the commands of which `value` may be the output: `{date +%m%d}`."""
        calls = {f"{one.name} {' '.join(one.words)}".strip(): one for one in self.calls}
        likelihoods = {text: _likelihood(one, value) for text, one in calls.items()}
        maximum = max(likelihoods.values(), default=0)
        chosen = [text for text, likelihood in likelihoods.items() if likelihood == maximum]
        source = shortened(" or ".join(chosen[:3]) or "running the script", 80)
        place = next((one.place for text, one in calls.items() if text in chosen), self.first.last)
        self.open.append(OpenPart(place, f"$({source})" if chosen else source, "only running the script tells"))
        self.placeholders.append(f"{{{source}}}")
        return self.placeholders[-1]

    def _mask_temporary(self, text: str) -> str:
        masked = _TEMPORARY.sub("{mktemp}", text)
        self.placeholders += ["{mktemp}"] if masked != text else []
        return masked


def _shape(one: StartedProgram) -> tuple[str, str, int]:
    return one.place, one.name, len(one.words)


def _likelihood(one: StartedProgram, value: str) -> int:
    """2 where `value` is the answer to the call or the number of its lines, 1 where it is a part of it, else 0."""
    answer = FIRST.answers.get(one.name, str(FIRST.number))
    if one.name == "date":
        return int(value[:1].isdigit() and len(value) > 2)
    if value in (answer, str(len(answer.splitlines()))):
        return 2
    return int(len(value) > 1 and value in answer)


def _common_prefix_length(text: str, other: str) -> int:
    return next((at for at, (a, b) in enumerate(zip(text, other, strict=False)) if a != b), min(len(text), len(other)))


def _map_text(one: StartedProgram, change: Callable[[str], str]) -> StartedProgram:
    environment = {name: change(value) for name, value in one.environment.items()}
    return replace(one, words=tuple(map(change, one.words)), environment=environment)


# ---- errors and notes of a run


def _fatal_errors(run: ScriptRun, script: str, launches: bool) -> list[Problem]:
    """Why bash ended the script early; where the script started no training, also its exit code."""
    for place, text in run.errors:
        if unset := _UNSET_ERROR.match(text):
            got = f"{unset[1]} is not set, and set -u ends the script there"
            return [Problem(place, got, how_to_set(unset[1]), "bad-file")]
        argument = _ARGUMENT_ERROR.match(text)
        if argument and re.search(rf"\$\{{{argument[1]}:?\?", script) and not launches:
            return [Problem(place, f"{text} ends the script there", how_to_set(argument[1]), "bad-file")]
        if "syntax error" in text or "unexpected" in text:
            return [Problem(place, f"bash says: {shortened(text)}", "", "bad-file")]
    if launches or not run.outcome.code:
        return []
    got = f"the script ended here before it started anything (exit code {run.outcome.code})"
    return [Problem(run.last, got, "use --env NAME=VALUE, or the script's own arguments after --", "not-found")]


def how_to_set(name: str) -> str:
    """How a variable of a script, or an argument with this number, gets a value."""
    return ARGUMENTS if name.isdigit() else f"use --env {name}=VALUE" if name.isidentifier() else ""


def _error_notes(run: ScriptRun, substitutes: Sequence[Substitute]) -> list[OpenPart]:
    notes = [
        OpenPart(place, shortened(text), "an error of bash here")
        for place, text in run.errors if place and not _HARMLESS_ERROR.search(text)
    ]  # fmt: skip
    treatment = {"folder": "taken as an empty folder", "file": "taken as an empty file"}
    notes += [
        OpenPart(str(one.place), one.path, f"cannot be used here; {treatment[one.kind]}")
        for one in substitutes if one.kind in treatment
    ]  # fmt: skip
    return notes
