"""One run of a shell script in a sandbox: what it started, what it wrote, and how it ended.

The folders of the script and of the caller are copied below `fs` of the sandbox, under their full paths, so that the
script may write there; this prefix is removed from every path in the result.
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
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path

from launcher.core.problems import shortened
from launcher.sandbox.keeper import ShellCommand, ShellOutcome
from launcher.sandbox.stubs import ABSENT, RECORDED, THERE, TOOLS, write_stubs

ENTRIES, COPIED_BYTES, DEPTH = 2_000, 2**16, 4
"""Limits for a copied folder: number of files, size of a copied file, and depth; larger files are linked."""
TEXTS = (".sh", ".bash", ".env", ".conf", ".cfg", ".txt", ".yaml", ".yml", ".json", ".list", ".rc", "")
"""Endings of files that a script may source or change."""
CONFIGS = (".yaml", ".yml", ".json")
WRITTEN_BYTES, WRITTEN = 2**16, 100
LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/share/zoneinfo", "/etc/ld.so.cache",
             "/etc/localtime", "/dev/null", "/dev/zero", "/dev/urandom")  # fmt: skip
LINKERS = ("/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1")  # they load shared libraries
OF_SHELL = ("PWD", "OLDPWD", "SHLVL", "_", "BASH_ENV", "PATH", "HOME", "USER", "TMPDIR", "TERM", "LC_ALL", "LD_PRELOAD",
            "_STDBUF_O", "_STDBUF_E", "_STDBUF_I")  # fmt: skip
_TRACED = re.compile(r"^(?:\++(\d+) (\d+) (.*?):(\d+) (?:exec )?(\S*)|#(\d+) (\d+) (\d+)$)", re.MULTILINE)
_ERROR = re.compile(r"^(?P<file>.*?): line (?P<line>\d+): (?P<text>.*)")
_PATH = re.compile(r"(?<![\w.])/[^\s:'\"’‘`]+")
_FLAGS = ("-u", "-B", "-O", "-s", "-E", "-I")
LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "rlrun")
_MISSING_ERRORS = ("No such file or directory", "Permission denied", "Operation not permitted", "Read-only file system")


@dataclass(frozen=True)
class Machine:
    """Answers to what a script asks of the machine."""

    answers: Mapping[str, str]
    """What a program prints, by its name; others print `number`."""
    number: int
    seconds: int
    """Since 1970: what `date` shows."""
    absent: tuple[str, ...] = ()
    depth: int = 0
    """How many folders deeper the sandbox lies, so that what depends on the length of a path differs between runs."""


@dataclass(frozen=True)
class StartedProgram:
    """A program that was started, as a stub recorded it."""

    place: str
    """`file:line`."""
    name: str
    words: tuple[str, ...]
    environment: Mapping[str, str]
    """Variables that the script exports, and those set before the command."""
    folder: str
    within: tuple[tuple[str, ...], ...]
    """The commands that started it (srun, docker, ...), from the outermost."""

    @property
    def launches(self) -> bool:
        """Whether it starts a training, rather than answering the script (`python -c`, `--version`)."""
        first = next((word for word in self.words if word not in _FLAGS), "")
        return self.name in LAUNCHERS or (self.name in RECORDED and first not in ("", "-", "-c", "-V", "--version"))

    @property
    def command(self) -> str:
        return shortened(" ".join([self.name, *self.words]))


@dataclass(frozen=True)
class ScriptRun:
    started: Sequence[StartedProgram]
    """Programs in the order in which they were started."""
    written: Mapping[str, str]
    """Texts of the configs that it wrote, by path."""
    errors: Sequence[tuple[str, str]]
    """`file:line` and message of each line on standard error; lines that are not of bash have no place."""
    outcome: ShellOutcome
    last: str
    """`file:line` of its last command."""
    programs: Mapping[str, str]
    """`file:line` of each program that it names by a path outside the sandbox, by that path."""


@dataclass(frozen=True)
class Substitute:
    """A path that the script uses and that is missing in the sandbox: one below `fs` takes its place."""

    path: str
    kind: str
    """`program`, `folder` or `file`, which is empty."""
    place: str = ""
    """`file:line` of the command that needs it."""
    prefixes: tuple[str, ...] = ()
    """Beginnings of the path that stand in the script: each is replaced by its path below `fs`."""


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
        prefixes = dict.fromkeys(part for substitute in substitutes for part in substitute.prefixes)
        self.prefixes = [(path, f"{self.files}{path}") for path in prefixes]

    def run(self, arguments: Sequence[str], environment: Mapping[str, str], confined: bool) -> ScriptRun:
        machine = self.machine
        home, cwd = os.path.expanduser("~"), os.getcwd()
        folders = list(dict.fromkeys([os.path.dirname(os.path.abspath(self.script)), cwd]))
        readable = list[str]()
        for folder in folders:
            readable += self._copy(folder, shallow=f"{home}/".startswith(f"{folder.rstrip('/')}/"))
        for folder in (home, cwd, "/tmp"):
            Path(f"{self.files}{folder}").mkdir(parents=True, exist_ok=True)
        self._create_substitutes()
        words = {"SEED": str(machine.seconds % 1000), "HOST": machine.answers.get("hostname", "node"),
                 "NOW": str(machine.seconds), "NUMBER": str(machine.number)}  # fmt: skip
        executable = write_stubs(self.programs, self.box, words, machine.answers, (*ABSENT, *machine.absent))
        (self.box / "stdin").write_text(f"answer-{machine.number}\n" * 3)
        variables = {name: self._redirect_paths(value) for name, value in environment.items()}
        base = {
            "PATH": str(self.programs / "bin"), "HOME": f"{self.files}{home}", "TMPDIR": f"{self.files}/tmp",
            "USER": machine.answers.get("whoami", "user"), "TERM": "dumb", "LC_ALL": "C.UTF-8",
            "BASH_ENV": str(self.programs / "prelude"),
        }  # fmt: skip
        path = str(self.script)
        shell = os.path.realpath(shutil.which("bash", path=os.defpath) or "/bin/bash")
        command = ShellCommand(
            [shell, f"{self.files}{path}" if os.path.isabs(path) else path, *map(self._redirect_paths, arguments)],
            f"{self.files}{cwd}", {**variables, **base}, str(self.box),
            [*filter(os.path.exists, LIBRARIES), *readable, str(self.programs)],
            [*executable, *map(os.path.realpath, filter(os.path.exists, LINKERS))], confined,
        )  # fmt: skip
        completed = subprocess.run(
            [sys.executable, "-P", "-m", "launcher.sandbox.keeper"], input=json.dumps(asdict(command)), text=True,
            capture_output=True, check=False, start_new_session=True,
        )  # fmt: skip
        if completed.returncode:
            raise OSError(f"the script cannot be run: {completed.stderr.strip().splitlines()[-1:]}")
        outcome = ShellOutcome(**json.loads(completed.stdout))
        places, last, programs = self._read_trace()
        started = [*self._read_records(places, base)]
        return ScriptRun(started, self._read_configs(), self._read_errors(), outcome, last, programs)

    # ---- before

    def _copy(self, folder: str, *, shallow: bool) -> list[str]:
        """Copies a folder; where `shallow`, as it holds the home folder, its own visible files alone. Returns the paths
        that may be read in place."""
        files = list[str]()
        for subfolder, names in islice(_folders_below(folder, shallow), ENTRIES):
            target = Path(f"{self.files}{subfolder}")
            target.mkdir(parents=True, exist_ok=True)
            for name in names[: ENTRIES - len(files)]:
                files.append(os.path.join(subfolder, name))
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
            target.write_bytes(os.fsencode(self._redirect_paths(os.fsdecode(Path(source).read_bytes()))))
            target.chmod(status.st_mode & 0o777 | 0o600)

    def _redirect_paths(self, text: str) -> str:
        for path, redirected in self.prefixes:
            text = re.sub(rf"(?<![\w./}}-]){re.escape(path)}(?![\w-])", redirected, text)
        return text

    def _create_substitutes(self) -> None:
        for substitute in self.substitutes:
            target = Path(f"{self.files}{substitute.path}")
            with suppress(OSError):
                if substitute.kind == "folder":
                    target.mkdir(parents=True, exist_ok=True)
                    continue
                target.parent.mkdir(parents=True, exist_ok=True)
                if substitute.kind == "program":
                    target.symlink_to(self.programs / "bin" / ".stub")
                elif substitute.kind == "file" and not target.exists():
                    target.touch()

    # ---- after

    def _restore_paths(self, text: str) -> str:
        """`text` with the sandbox's paths replaced by those that they stand for."""
        return text.replace(f"{self.files}", "").replace(f"{self.programs}/bin/", "/usr/bin/")

    def _read_text(self, path: Path, most: int) -> str:
        """Up to `most` bytes of a regular file as text, else empty. Links, which scripts may make, are not followed."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return ""
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return ""
            return file.read(most).decode("utf-8", "replace")

    def _read_trace(self) -> tuple[dict[tuple[str, str], str], str, dict[str, str]]:
        """`file:line` of each command, by its process and its number there; of the last command; and of each program
        that is named by a path outside the sandbox, by that path."""
        programs = dict[str, str]()
        places, last = dict[tuple[str, str], str](), str(self.script)
        shell_places = dict[str, str]()  # of shells whose text is in no file (bash -c)
        prelude = str(self.programs / "prelude")
        trace = self._read_text(self.box / "trace", 2**24)
        for process, step, file, line, word, shell, parent, started_by in _TRACED.findall(trace):
            if shell:
                shell_places[shell] = places.get((parent, started_by), last)
            elif file not in ("", "environment", "main", prelude):
                places[process, step] = last = f"{self._restore_paths(file)}:{line}"
            else:
                places[process, step] = shell_places.get(process, last)
            if word.startswith("/") and not word.startswith((str(self.box), str(self.programs))):
                programs.setdefault(word, last)
        return places, last, programs

    def _read_records(self, places: Mapping[tuple[str, str], str], base: Mapping[str, str]) -> Iterator[StartedProgram]:
        folder = self.box / "records"
        wrappers = dict[str, tuple[str, ...]]()
        programs = list[tuple[int, StartedProgram]]()
        for name in sorted(os.listdir(folder)):
            fields = self._read_text(folder / name, 2**22).split("\0")[:-1]
            if not name.startswith("record.") or len(fields) < 6:
                continue
            pid, program, cwd, process, step, within, *words = map(self._restore_paths, fields)
            wrappers[name] = (program, *words)
            exported = self._read_text(folder / f"environment.{pid}", 2**22) if program in (*RECORDED, "rlrun") else ""
            entries = dict(entry.split("=", 1) for entry in exported.split("\0") if "=" in entry)
            environment = {
                key: self._restore_paths(value) for key, value in entries.items()
                if key not in OF_SHELL and not key.startswith(("RLRUN_", "BASH_FUNC_")) and base.get(key) != value
            }  # fmt: skip
            chain = tuple(wrappers[record] for record in within.split() if record in wrappers)
            place = places.get((process, step), str(self.script))
            programs.append((int(step or 0), StartedProgram(place, program, tuple(words), environment, cwd, chain)))
        yield from _order_by_step(programs)

    def _read_errors(self) -> list[tuple[str, str]]:
        errors = list[tuple[str, str]]()
        for text in self._read_text(self.box / "stderr", 2**16).splitlines():
            match = _ERROR.match(text)
            place = f"{self._restore_paths(match['file'])}:{match['line']}" if match else ""
            errors.append((place, self._restore_paths(match["text"] if match else text)))
        return errors

    def _read_configs(self) -> dict[str, str]:
        """Configs that are new or changed."""
        configs = dict[str, str]()
        for folder, _, names in os.walk(self.files):
            for name in names:
                path = os.path.join(folder, name)
                original = path.removeprefix(str(self.files))
                if name.endswith(CONFIGS) and len(configs) < WRITTEN and not os.path.islink(path):
                    text = self._read_text(Path(path), WRITTEN_BYTES)
                    if text and text != self._read_text(Path(os.path.realpath(original)), WRITTEN_BYTES):
                        configs[original] = self._restore_paths(text)
        return configs


def _folders_below(folder: str, shallow: bool) -> Iterator[tuple[str, list[str]]]:
    """Each folder with its files, without hidden folders; where `shallow`, one folder with its visible files."""
    for root, folders, files in os.walk(folder):
        if shallow or root[len(folder) :].count("/") >= DEPTH:
            folders.clear()
        folders[:] = [name for name in folders if not name.startswith(".") and name != "node_modules"]
        yield root, [name for name in files if not (shallow and name.startswith("."))]


def missing_paths(run: ScriptRun) -> list[Substitute]:
    """Paths that the run needed and did not find, and that can be replaced by ones in the sandbox."""
    missing = [
        Substitute(path, "program", place)
        for path, place in run.programs.items() if os.path.basename(path) not in (*TOOLS, "bash")
    ]  # fmt: skip
    for place, text in run.errors:
        if not text.endswith(_MISSING_ERRORS):
            continue
        for path in _PATH.findall(text):
            name = os.path.basename(path)
            kind = "program" if name in (*RECORDED, *THERE, "sh", "bash") or "/bin/" in path else "file"
            missing.append(Substitute(path, "folder" if text.startswith(("cd:", "pushd:", "mkdir")) else kind, place))
    return missing


def _order_by_step(programs: list[tuple[int, StartedProgram]]) -> Iterator[StartedProgram]:
    """Sorts successive programs of one place by step: a loop may have started them in parallel."""
    for _, successive in groupby(programs, key=lambda one: one[1].place):
        yield from (one for _, one in sorted(successive, key=itemgetter(0)))
