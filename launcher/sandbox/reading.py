"""What a shell script starts, and which parts of it depend on the machine: it runs with different answers.

Parts of words that differ between the runs are open; launches of one run alone are named with the answer that decides.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from launcher.core.files import read_file
from launcher.core.problems import Problem, Problems, error_message, shortened
from launcher.sandbox import confine
from launcher.sandbox.script import Machine, ScriptRun, StartedProgram, Substitute, missing_paths, run_script

ARGUMENTS = "give its own arguments after --: rlrun import FILE.sh -- ARGUMENTS"
SIZE = 2**20  # bytes of a script
ROUNDS = 8  # runs to find the paths that are missing here
SHELL_SETS = re.compile(
    r"(BASH|RLRUN)\w*|S?RANDOM|SECONDS|LINENO|EPOCH\w+|P?PID|E?UID|HOSTNAME|\w+TYPE|OPTARG|OPTIND|IFS|(OLD)?PWD|HOME|USER|"
    r"PATH|TMPDIR|REPLY|FUNCNAME|PIPESTATUS|SHELL|TERM|LANG|COLUMNS|LINES|MAPFILE|DIRSTACK|COPROC|PS\d|SHLVL|GROUPS|_"
)
"""Variables that a shell has without a script."""
_USED = re.compile(r"(?<!\\)\$(?:\{(?P<braced>[A-Za-z_]\w*)(?P<after>[^}]?)|(?P<plain>[A-Za-z_]\w*))", re.ASCII)
_SET = re.compile(r"\b([A-Za-z_]\w*)(?:\[[^\]]*\])?\+?=|\b(?:for|select|read|mapfile|readarray|getopts|local|declare|"
                  r"typeset|export|printf -v)\b([^;|&\n]*)", re.ASCII)  # fmt: skip
_ASKS_FOR_GPUS = re.compile(r"(command -v|which|hash|type)\s[^\n]*nvidia-smi")
_TEMPORARY = re.compile(r"/tmp/tmp\.rlrun\d+")
_START = re.compile(r"\b(python|torchrun|accelerate|deepspeed|rlrun)|\.sh\b")
_EXPECTED = re.compile(r"Broken pipe|command not found")
_UNSET = re.compile(r"(\w+): unbound variable")
_ARGUMENT = re.compile(r"(\w+): (.*)")


def _machine(host: str, address: str, gpus: Sequence[str], numbers: Sequence[int], depth: int) -> Machine:
    number, processors, seconds, chosen = numbers
    answers = {
        "hostname": host, "whoami": f"user-{host}", "scontrol": f"{host}\n{host}2", "ray": f"node_1\nnode_{number}",
        "getent": f"{address} {host}", "ip": address, "nvidia-smi": "\n".join(gpus), "uname": "Linux", "squeue": "",
        "nproc": str(processors), "lscpu": str(processors), "shuf": str(chosen), "id": str(chosen),
        "uuidgen": f"{chosen:x}-{host}", "git": f"{chosen:x}{seconds:x}",
    }  # fmt: skip
    return Machine(answers, number, seconds, depth=depth)


FIRST, SECOND = (
    _machine("node-a", "10.0.0.1", [f"GPU {at}: NVIDIA H100 HBM3" for at in range(8)], (8, 64, 1735787045, 29512), 0),
    _machine("another", "192.168.7.9", [f"GPU {at}: NVIDIA A100" for at in range(4)], (4, 48, 1789135699, 31777), 1),
)
"""Two machines that differ in whatever a script may ask, but for the kind of system."""


@dataclass(frozen=True)
class OpenPart:
    """What only running the script on its own machine could tell."""

    place: str
    text: str
    note: str = ""

    def __str__(self) -> str:
        return f"{self.text}: {self.note}" if self.note else self.text


@dataclass(frozen=True)
class Reading:
    started: tuple[StartedProgram, ...] = ()
    """In the order in which the script starts them; what is open in a word is written `{the command that tells}`."""
    placeholders: tuple[str, ...] = ()
    open: tuple[OpenPart, ...] = ()
    refused: tuple[Problem, ...] = ()
    """Why it could not be read to its end."""
    written: Mapping[str, str] = field(default_factory=dict)
    """Configs that it writes, by path."""


def read_script(
    path: Path, arguments: Sequence[str] = (), environment: Mapping[str, str] | None = None, *, confined: bool = True
) -> Reading:
    """What `bash path arguments...` starts, in a shell with that environment. Raises `Problems` where the file is no
    script, or the system cannot confine it."""
    text = _checked_text(path, confined)
    given = environment or {}
    first, substitutes = _first_run(path, text, arguments, given, confined)
    notes = _error_notes(first, substitutes)
    if not any(one.launches for one in first.started):
        notes.append(OpenPart(first.last, "the script", f"ended here, with exit code {first.outcome.code}"))
    if first.outcome.stopped:
        stopped = Problem(first.last, first.outcome.stopped, "use --env, or the script's own arguments", "bad-file")
        launches = tuple(one for one in first.started if one.launches)
        return Reading(launches, (), tuple(notes), (stopped,), first.written)

    def run_on(machine: Machine) -> ScriptRun:
        return run_script(path, arguments, given, machine, substitutes, confined=confined)

    found = _Comparison(first, run_on)
    found.add(SECOND)
    if any(one.name == "nvidia-smi" for one in first.started) or _ASKS_FOR_GPUS.search(text):
        found.add(replace(FIRST, absent=("nvidia-smi",)))
    refused = _ends(first, text, bool(found.launches))
    unset = [] if refused else _unset(path, text, {*given})
    return Reading(
        tuple(found.launches), tuple(found.placeholders), tuple(dict.fromkeys([*found.open, *notes, *unset])),
        tuple(refused), found.written,
    )  # fmt: skip


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
    path: Path, text: str, arguments: Sequence[str], given: Mapping[str, str], confined: bool
) -> tuple[ScriptRun, list[Substitute]]:
    """The run on the first machine, where paths that stood in its way lie in the sandbox."""
    substitutes = list[Substitute]()
    for _ in range(ROUNDS):
        run = run_script(path, arguments, given, FIRST, substitutes, confined=confined)
        known = {one.path for one in substitutes}
        more = {one.path: one for one in missing_paths(run) if one.path not in known}
        if not more or run.outcome.stopped:
            break
        words = " ".join([text, *arguments, *given.values()])
        for one in more.values():
            parts = [one.path, *map(str, Path(one.path).parents)][:-1]
            named = tuple(part for part in parts if part in words)
            substitutes.append(replace(one, prefixes=named[: 1 if one.path in words else 9]))
    return run, substitutes


# ---- what differs between machines


class _Comparison:
    """The launches of the first run, with what other machines change in them."""

    def __init__(self, first: ScriptRun, run_on: Callable[[Machine], ScriptRun]) -> None:
        self.run_on, self.first = run_on, first
        self.before = [one for one in first.started if one.launches]
        self.calls = [one for one in first.started if not one.launches and not _START.search(" ".join(one.words))]
        self.placeholders = dict[str, None]()
        self.open = list[OpenPart]()
        self.launches = [_each_text(launch, self._temporary) for launch in self.before]
        self.written = {self._temporary(key): self._temporary(text) for key, text in first.written.items()}

    def add(self, machine: Machine) -> None:
        run = self.run_on(machine)
        left = [_each_text(one, self._temporary) for one in run.started if one.launches]
        unmatched = list[StartedProgram]()
        for number, launch in enumerate(self.launches[: len(self.before)]):
            alike = [one for one in left if _shape(one) == _shape(launch)]
            if not alike:
                unmatched.append(launch)
                continue
            other = max(alike, key=lambda one: _equal_words(one, launch))
            left.remove(other)
            self.launches[number] = self._merged(launch, other, machine)
        for path, text in {**self.written}.items():
            other_text = self._temporary(run.written.get(path, ""))
            self.written[path] = self._differing_lines(text, other_text, machine)
        more = self.launches[len(self.before) :]
        left = [one for one in left if not any(_shape(one) == _shape(there) for there in more)]
        if not unmatched and not left:
            return
        reason = self._reason(machine, {*map(_shape, self.before)})
        self.open += [OpenPart(one.place, one.command, f"is not started where {reason}") for one in unmatched]
        self.open += [OpenPart(one.place, one.command, f"is started only where {reason}") for one in left]
        self.launches += left

    def _reason(self, machine: Machine, shapes: set[tuple[str, str, int]]) -> str:
        """The answer that decides what is started."""
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

    def _merged(self, launch: StartedProgram, other: StartedProgram, machine: Machine) -> StartedProgram:
        words = tuple(self._differing(a, b, machine) for a, b in zip(launch.words, other.words, strict=True))
        environment = {
            key: self._differing(value, other.environment.get(key, value), machine)
            for key, value in launch.environment.items()
        }
        return replace(launch, words=words, environment=environment)

    def _differing_lines(self, text: str, other: str, machine: Machine) -> str:
        lines, others = text.splitlines(), other.splitlines()
        if len(lines) != len(others):
            return text
        return "\n".join([*(self._differing(a, b, machine) for a, b in zip(lines, others, strict=True)), ""])

    def _differing(self, text: str, other: str, machine: Machine) -> str:
        """`text`, with a placeholder where the other machine has something else."""
        if text == other or any(part in text for part in self.placeholders):
            return text
        begin = _alike(text, other)
        end = _alike(text[begin:][::-1], other[begin:][::-1])
        while begin and text[begin - 1].isalnum():  # to the end of a number or a name
            begin -= 1
        while end and text[len(text) - end].isalnum():
            end -= 1
        middle = text[begin : len(text) - end]
        return f"{text[:begin]}{self._placeholder(middle)}{text[len(text) - end :]}"

    def _placeholder(self, value: str) -> str:
        """`{date +%m%d}`: the commands that the value may come from."""
        calls = {f"{one.name} {' '.join(one.words)}".strip(): one for one in self.calls}
        likely = {text: _likelihood(one, value) for text, one in calls.items()}
        most = max(likely.values(), default=0)
        chosen = [text for text, likelihood in likely.items() if likelihood == most]
        named = shortened(" or ".join(chosen[:3]) or "running the script", 80)
        place = next((one.place for text, one in calls.items() if text in chosen), self.first.last)
        self.open.append(OpenPart(place, f"$({named})" if chosen else named, "only running the script tells"))
        return self._open(f"{{{named}}}")

    def _temporary(self, text: str) -> str:
        return _TEMPORARY.sub(lambda _: self._open("{mktemp}"), text)

    def _open(self, placeholder: str) -> str:
        self.placeholders[placeholder] = None
        return placeholder


def _shape(one: StartedProgram) -> tuple[str, str, int]:
    return one.place, one.name, len(one.words)


def _likelihood(one: StartedProgram, value: str) -> int:
    """Of the value coming from the call: it is the answer, the number of its lines, or a part of it."""
    answer = FIRST.answers.get(one.name, str(FIRST.number))
    if one.name == "date":
        return int(value[:1].isdigit() and len(value) > 2)
    if value in (answer, str(len(answer.splitlines()))):
        return 2
    return int(len(value) > 1 and value in answer)


def _alike(text: str, other: str) -> int:
    """How many characters both begin with."""
    return next((at for at, (a, b) in enumerate(zip(text, other, strict=False)) if a != b), min(len(text), len(other)))


def _equal_words(one: StartedProgram, other: StartedProgram) -> int:
    return sum(a == b for a, b in zip(one.words, other.words, strict=False))


def _each_text(one: StartedProgram, change: Callable[[str], str]) -> StartedProgram:
    environment = {name: change(value) for name, value in one.environment.items()}
    return replace(one, words=tuple(map(change, one.words)), environment=environment)


# ---- what is told of the run itself


def _ends(run: ScriptRun, script: str, launches: bool) -> list[Problem]:
    """Why bash ended the script; where it started nothing, whatever ended it."""
    for place, text in run.errors:
        if name := _UNSET.match(text):
            got = f"{name[1]} is not set, and set -u ends the script there"
            return [Problem(place, got, how_to_set(name[1]), "bad-file")]
        missing = _ARGUMENT.match(text)
        if missing and re.search(rf"\$\{{{missing[1]}:?\?", script) and not launches:
            return [Problem(place, f"{text} ends the script there", how_to_set(missing[1]), "bad-file")]
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
        for place, text in run.errors if place and not _EXPECTED.search(text)
    ]  # fmt: skip
    taken = {"folder": "taken as an empty folder", "file": "taken as an empty file"}
    notes += [
        OpenPart(str(one.place), one.path, f"cannot be used here; {taken[one.kind]}")
        for one in substitutes if one.kind in taken
    ]  # fmt: skip
    return notes


def _unset(path: Path, text: str, given: set[str]) -> list[OpenPart]:
    """Variables that the script uses and nobody sets, where it has no default for them."""
    plain = re.sub(r"'[^'\n]*'|(?m:(?:^|\s)#.*$)", "", text)
    whole = "\n".join([plain, *_sourced(path, plain)])
    known = {name for match in _SET.finditer(whole) for name in re.findall(r"\w+", match[1] or match[2])} | given
    found = dict[str, OpenPart]()
    for match in _USED.finditer(plain):
        name = match["braced"] or match["plain"]
        checked = re.search(rf"-[nzv]\s+\"?\$?\{{?{name}\b", plain)
        has_default = (match["after"] or "x") in ":-=+?"
        if name in {*known, *found} or checked or has_default or SHELL_SETS.fullmatch(name):
            continue
        line = plain[: match.start()].count("\n") + 1
        note = f"not set in the script; empty as in a clean shell; {how_to_set(name)}"
        found[name] = OpenPart(f"{path}:{line}", f"${{{name}}}", note)
    return [*found.values()]


def _sourced(path: Path, text: str) -> Iterator[str]:
    """Texts of the files beside the script that it sources."""
    for word in re.findall(r"(?m)(?:^|[;&|]|\b(?:then|do|else)\b)\s*(?:source|\.)\s+(\S+)", text):
        name = re.sub(r"^.*[$})]\w*/", "", word.strip("\"'"))
        with suppress(OSError, ValueError):
            yield read_file(path.parent / name, SIZE).decode()
