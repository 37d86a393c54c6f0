"""One run of a shell script where it can do nothing: what it started, what it wrote, and how it ended.

The folders of the script and of the caller are copied below `fs` of the sandbox, under their whole paths, so that the
script may write there; `fs` is taken away again from every word that it hands over.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

from launcher.core.problems import shortened
from launcher.sandbox.keeper import ShellCommand, ShellOutcome
from launcher.sandbox.stubs import ABSENT, RECORDED, THERE, TOOLS, write_stubs

ENTRIES, COPIED_BYTES, DEPTH = 2_000, 2**16, 4
"""Of a folder so many entries are copied, files of at most this size, and folders so deep; larger files are linked."""
TEXTS = (".sh", ".bash", ".env", ".conf", ".cfg", ".txt", ".yaml", ".yml", ".json", ".list", ".rc", "")
"""Endings of files that a script may source or change."""
CONFIGS = (".yaml", ".yml", ".json")
WRITTEN_BYTES, WRITTEN = 2**16, 100
LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/share/zoneinfo", "/etc/ld.so.cache",
             "/etc/localtime", "/dev/null", "/dev/zero", "/dev/urandom")  # fmt: skip
OF_SHELL = ("PWD", "OLDPWD", "SHLVL", "_", "BASH_ENV", "PATH", "HOME", "USER", "TMPDIR", "TERM", "LC_ALL", "LD_PRELOAD",
            "_STDBUF_O", "_STDBUF_E", "_STDBUF_I")  # fmt: skip
_TRACED = re.compile(r"^(?:\++(\d+) (\d+) (.*?):(\d+) (?:exec )?(\S*)|#(\d+) (\d+) (\d+)$)", re.MULTILINE)
_ERROR = re.compile(r"^(?P<file>.*?): line (?P<line>\d+): (?P<text>.*)")
_PATH = re.compile(r"(?<![\w.])/[^\s:'\"’‘`]+")
_FLAGS = ("-u", "-B", "-O", "-s", "-E", "-I")
LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "rlrun")
_MISSING = ("No such file or directory", "Permission denied", "Operation not permitted", "Read-only file system")


@dataclass(frozen=True)
class Machine:
    """Answers to what a script asks of the machine."""

    answers: Mapping[str, str]
    """By program; others print `number`."""
    number: int
    seconds: int
    """Since 1970: what `date` shows."""
    absent: tuple[str, ...] = ()
    depth: int = 0
    """Folders between the sandbox and its files, so that what depends on the length of a path differs between runs."""


@dataclass(frozen=True)
class StartedProgram:
    """A program that was started, as a stub recorded it."""

    place: str
    """`file:line`."""
    name: str
    words: tuple[str, ...]
    environment: Mapping[str, str]
    """What the script exports, and what stands before the command."""
    folder: str
    within: tuple[tuple[str, ...], ...]
    """The commands that started it (srun, docker, ...), from the outermost."""

    @property
    def launches(self) -> bool:
        """Whether it starts a training, and does not tell something to the script."""
        first = next((word for word in self.words if word not in _FLAGS), "")
        return self.name in LAUNCHERS or (self.name in RECORDED and first not in ("", "-", "-c", "-V", "--version"))

    @property
    def command(self) -> str:
        return shortened(" ".join([self.name, *self.words]))


@dataclass(frozen=True)
class ScriptRun:
    started: Sequence[StartedProgram]
    """In the order in which they were started."""
    written: Mapping[str, str]
    """Texts of the configs that it wrote, by path."""
    errors: Sequence[tuple[str, str]]
    """`file:line` and message of each error of bash, and errors of others at the end."""
    outcome: ShellOutcome
    last: str
    """`file:line` of its last command."""
    programs: Mapping[str, str]
    """Programs that it names by a path elsewhere, with their place."""


@dataclass(frozen=True)
class Substitute:
    """A path that the script uses and that cannot be used in the sandbox: it lies below `fs` instead."""

    path: str
    kind: str
    """`program`, `folder` or `file`, which is empty."""
    place: str = ""
    """`file:line` of the command that needs it."""
    prefixes: tuple[str, ...] = ()
    """Beginnings of the path, as they stand in the script: `fs` is put before them."""


def run_script(
    script: Path, arguments: Sequence[str], environment: Mapping[str, str], machine: Machine,
    substitutes: Sequence[Substitute] = (), *, confined: bool = True,
) -> ScriptRun:  # fmt: skip
    """Runs `bash script arguments...`. Raises `OSError` where the system cannot confine it, or has no bash."""
    with tempfile.TemporaryDirectory(prefix="rlrun-") as name:
        base = Path(name).resolve().joinpath(*["deeper"] * machine.depth)
        base.mkdir(parents=True, exist_ok=True)
        return _Sandbox(base, script, machine, substitutes).run(arguments, environment, confined)


class _Sandbox:
    def __init__(self, base: Path, script: Path, machine: Machine, substitutes: Sequence[Substitute]) -> None:
        self.base, self.script, self.machine = base, script, machine
        self.box, self.programs = base / "box", base / "programs"
        self.files = self.box / "fs"
        for folder in (self.files, self.box / "records", self.programs):
            folder.mkdir(parents=True)
        self.substitutes = substitutes
        prefixes = dict.fromkeys(part for each in substitutes for part in each.prefixes)
        self.prefixes = [(path, f"{self.files}{path}") for path in prefixes]

    def run(self, arguments: Sequence[str], environment: Mapping[str, str], confined: bool) -> ScriptRun:
        machine = self.machine
        home, here = os.path.expanduser("~"), os.getcwd()
        folders = list(dict.fromkeys([os.path.dirname(os.path.abspath(self.script)), here]))
        readable = list[str]()
        for folder in folders:
            readable += self._copy(folder, shallow=f"{home}/".startswith(f"{folder.rstrip('/')}/"))
        for folder in (home, here, "/tmp"):
            Path(f"{self.files}{folder}").mkdir(parents=True, exist_ok=True)
        self._make_stand_ins()
        words = {"SEED": str(machine.seconds % 1000), "HOST": machine.answers.get("hostname", "node"),
                 "NOW": str(machine.seconds), "NUMBER": str(machine.number)}  # fmt: skip
        executable = write_stubs(self.programs, self.box, words, machine.answers, (*ABSENT, *machine.absent))
        (self.box / "stdin").write_text(f"answer-{machine.number}\n" * 3)
        given = {name: self._moved(value) for name, value in environment.items()}
        base = {
            "PATH": str(self.programs / "bin"), "HOME": f"{self.files}{home}", "TMPDIR": f"{self.files}/tmp",
            "USER": machine.answers.get("whoami", "user"), "TERM": "dumb", "LC_ALL": "C.UTF-8",
            "BASH_ENV": str(self.programs / "prelude"),
        }  # fmt: skip
        path = str(self.script)
        shell = os.path.realpath(shutil.which("bash", path=os.defpath) or "/bin/bash")
        order = ShellCommand(
            [shell, f"{self.files}{path}" if os.path.isabs(path) else path, *map(self._moved, arguments)],
            f"{self.files}{here}", {**given, **base}, str(self.box),
            [*filter(os.path.exists, LIBRARIES), *readable, str(self.programs)],
            [*executable, *_loaders()], confined,
        )  # fmt: skip
        ended = subprocess.run(
            [sys.executable, "-P", "-m", "launcher.sandbox.keeper"], input=json.dumps(asdict(order)), text=True,
            capture_output=True, check=False, start_new_session=True,
        )  # fmt: skip
        if ended.returncode:
            raise OSError(f"the script cannot be run: {ended.stderr.strip().splitlines()[-1:]}")
        outcome = ShellOutcome(**json.loads(ended.stdout))
        places, last, programs = self._places()
        started = [*self._records(places, base)]
        return ScriptRun(started, self._written(), self._errors(), outcome, last, programs)

    # ---- before

    def _copy(self, folder: str, *, shallow: bool) -> list[str]:
        """Copies a folder; of one in which a person's whole home lies, the visible files alone. Returns what may be
        read in place."""
        files = list[str]()
        for place, names in islice(_folders_below(folder, shallow), ENTRIES):
            target = Path(f"{self.files}{place}")
            target.mkdir(parents=True, exist_ok=True)
            for name in names[: ENTRIES - len(files)]:
                files.append(os.path.join(place, name))
                if not os.path.lexists(target / name):
                    self._copy_file(files[-1], target / name)
        return files if shallow else [folder]

    def _copy_file(self, source: str, target: Path) -> None:
        with suppress(OSError):
            status = os.stat(source)
            if not stat.S_ISREG(status.st_mode):
                return
            text = os.path.splitext(source)[1] in TEXTS and status.st_size <= COPIED_BYTES
            if not text and source != os.path.abspath(self.script):
                target.symlink_to(source)
                return
            target.write_bytes(os.fsencode(self._moved(os.fsdecode(Path(source).read_bytes()))))
            target.chmod(status.st_mode & 0o777 | 0o600)

    def _moved(self, text: str) -> str:
        for path, moved in self.prefixes:
            text = re.sub(rf"(?<![\w./}}-]){re.escape(path)}(?![\w-])", moved, text)
        return text

    def _make_stand_ins(self) -> None:
        for each in self.substitutes:
            target = Path(f"{self.files}{each.path}")
            with suppress(OSError):
                if each.kind == "folder":
                    target.mkdir(parents=True, exist_ok=True)
                    continue
                target.parent.mkdir(parents=True, exist_ok=True)
                if each.kind == "program":
                    target.symlink_to(self.programs / "bin" / ".stub")
                elif each.kind == "file" and not target.exists():
                    target.touch()

    # ---- after

    def _shown(self, text: str) -> str:
        """As it stands on this machine."""
        return text.replace(f"{self.files}", "").replace(f"{self.programs}/bin/", "/usr/bin/")

    def _read(self, path: Path, most: int) -> str:
        """Text of a regular file; empty where it is none. Links are not followed, as a script may make them."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return ""
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return ""
            return file.read(most).decode("utf-8", "replace")

    def _places(self) -> tuple[dict[tuple[str, str], str], str, dict[str, str]]:
        """`file:line` of each command by the process that ran it and its number; of the last one; and of programs that
        are named by a path elsewhere."""
        programs = dict[str, str]()
        found, last = dict[tuple[str, str], str](), str(self.script)
        begun = dict[str, str]()  # where a shell was started, of which the text is in no file
        prelude = str(self.programs / "prelude")
        trace = self._read(self.box / "trace", 2**24)
        for process, step, file, line, word, shell, parent, before in _TRACED.findall(trace):
            if shell:
                begun[shell] = found.get((parent, before), last)
            elif file not in ("", "environment", "main", prelude):
                found[process, step] = last = f"{self._shown(file)}:{line}"
            else:
                found[process, step] = begun.get(process, last)
            if word.startswith("/") and not word.startswith((str(self.box), str(self.programs))):
                programs.setdefault(word, last)
        return found, last, programs

    def _records(self, places: Mapping[tuple[str, str], str], base: Mapping[str, str]) -> Iterator[StartedProgram]:
        folder = self.box / "records"
        wrappers = dict[str, tuple[str, ...]]()
        found = list[tuple[int, StartedProgram]]()
        for name in sorted(os.listdir(folder)):
            fields = self._read(folder / name, 2**22).split("\0")[:-1]
            if not name.startswith("record.") or len(fields) < 6:
                continue
            pid, program, place, process, step, within, *words = map(self._shown, fields)
            wrappers[name] = (program, *words)
            exported = self._read(folder / f"environment.{pid}", 2**22) if program in (*RECORDED, "rlrun") else ""
            entries = dict(entry.split("=", 1) for entry in exported.split("\0") if "=" in entry)
            environment = {
                key: self._shown(value) for key, value in entries.items()
                if key not in OF_SHELL and not key.startswith(("RLRUN_", "BASH_FUNC_")) and base.get(key) != value
            }  # fmt: skip
            chain = tuple(wrappers[each] for each in within.split() if each in wrappers)
            where = places.get((process, step), str(self.script))
            found.append((int(step or 0), StartedProgram(where, program, tuple(words), environment, place, chain)))
        yield from (one for _, one in _in_order(found))

    def _errors(self) -> list[tuple[str, str]]:
        found = list[tuple[str, str]]()
        for text in self._read(self.box / "stderr", 2**16).splitlines():
            match = _ERROR.match(text)
            where = f"{self._shown(match['file'])}:{match['line']}" if match else ""
            found.append((where, self._shown(match["text"] if match else text)))
        return found

    def _written(self) -> dict[str, str]:
        """Configs that are new or changed."""
        found = dict[str, str]()
        for place, _, names in os.walk(self.files):
            for name in names:
                path = os.path.join(place, name)
                real = path.removeprefix(str(self.files))
                if name.endswith(CONFIGS) and len(found) < WRITTEN and not os.path.islink(path):
                    text = self._read(Path(path), WRITTEN_BYTES)
                    if text and text != self._read(Path(os.path.realpath(real)), WRITTEN_BYTES):
                        found[real] = self._shown(text)
        return found


def _folders_below(folder: str, shallow: bool) -> Iterator[tuple[str, list[str]]]:
    """Each folder with its files, without hidden folders; where `shallow`, one folder with its visible files."""
    for place, names, files in os.walk(folder):
        if shallow or place[len(folder) :].count("/") >= DEPTH:
            names.clear()
        names[:] = [name for name in names if not name.startswith(".") and name != "node_modules"]
        yield place, [name for name in files if not (shallow and name.startswith("."))]


def missing_paths(run: ScriptRun) -> list[Substitute]:
    """Paths that stood in the way of the run and that can be in the sandbox instead."""
    found = [
        Substitute(path, "program", place)
        for path, place in run.programs.items() if os.path.basename(path) not in (*TOOLS, "bash")
    ]  # fmt: skip
    for place, text in run.errors:
        if not text.endswith(_MISSING):
            continue
        for path in _PATH.findall(text):
            name = os.path.basename(path)
            kind = "program" if name in (*RECORDED, *THERE, "sh", "bash") or "/bin/" in path else "file"
            found.append(Substitute(path, "folder" if text.startswith(("cd:", "pushd:", "mkdir")) else kind, place))
    return found


def _in_order(found: list[tuple[int, StartedProgram]]) -> list[tuple[int, StartedProgram]]:
    """Neighbours of one place, which a loop may have started beside each other, in the order of the loop."""
    ordered = list[tuple[int, StartedProgram]]()
    group = list[tuple[int, StartedProgram]]()
    for each in found:
        if group and group[-1][1].place != each[1].place:
            ordered += sorted(group, key=lambda one: one[0])
            group = []
        group.append(each)
    return ordered + sorted(group, key=lambda one: one[0])


def _loaders() -> list[str]:
    """The programs that load shared libraries."""
    names = ("/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1")
    return [os.path.realpath(name) for name in names if os.path.exists(name)]
