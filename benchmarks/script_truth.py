"""What bash really does with a launch script: it runs in a folder of its own, where every program is a stub.

A stub of Python or of a launcher of processes writes its words and its environment to a file; stubs such as date and
nvidia-smi have fixed answers; only programs that compute text (dirname, sed, seq, ...) are the machine's.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from launcher.scripts.read import ScriptReading, read_script
from launcher.scripts.words.state import NOT_SET, Launch

REAL = re.findall(
    r"\S+",
    """awk basename bash cat cut dirname echo env expr false getopt grep head nice nohup paste printf readlink realpath
    rev sed seq setsid sh sort stdbuf tac tail tee test timeout tr true uniq wc xargs""",
)
RECORDS = ("python", "python3", "python3.11", "torchrun", "accelerate", "deepspeed")
PASSES = re.findall(
    r"\S+", "srun kubectl mpirun sudo numactl nsys apptainer singularity docker conda uv taskset ray poetry micromamba"
)
QUIET = re.findall(
    r"\S+",
    """apt chmod clear cp curl free hf huggingface-cli kill lsof module mv nc pgrep pip pip3 pkill ps rm rsync sleep
    ln printenv tar touch ulimit wandb wget""",
)
ANSWERS = {
    "date": "20250102_030405",
    "find": "one.yaml",
    "getent": "10.0.0.1 node-a",
    "git": "abc1234",
    "hostname": "node-a",
    "id": "1000",
    "ip": "10.0.0.1",
    "jq": "8",
    "ls": "one.yaml\ntwo.yaml",
    "lscpu": "64",
    "mktemp": "tmp.ab",
    "nproc": "64",
    "nvidia-smi": "\n".join(f"GPU {number}: H100" for number in range(8)),
    "openssl": "ff00",
    "scontrol": "node-a\nnode-b",
    "shuf": "29512",
    "squeue": "",
    "uname": "Linux",
    "uuidgen": "ab-12",
    "which": "/usr/bin/python3",
    "whoami": "tester",
}
STARTS = f"({'|'.join([*RECORDS, *PASSES, 'bash', 'sh', 'env', 'nohup', 'timeout', 'nice', 'stdbuf'])})"
BASE = frozenset(
    ["PATH", "HOME", "USER", "PWD", "OLDPWD", "SHLVL", "_", "HOSTNAME", "TERM", "LD_PRELOAD", "_STDBUF_O", "_STDBUF_E"]
)
APART = ("ray job submit", "docker", "kubectl", "ssh", "apptainer")
"""Wrappers that start a program in another environment than the script's."""
SECONDS = 20

RECORD = """#!{bash}
case "$1" in
  -c|-|--version|-V) echo 8; exit 0;;
esac
file={records}/$$.$RANDOM$RANDOM
{{ printf '%s\\0' "${{0##*/}}" "$@"; }} > "$file.words"
{cat} /proc/$$/environ > "$file.environ"
echo "stub of ${{0##*/}}"
"""
PASS = """#!{bash}
name="${{0##*/}}"
if [ "$name" = ray ] && [ "$1 $2" != "job submit" ]; then printf 'node_a\\nnode_b\\n'; exit 0; fi
while [ $# -gt 0 ]; do
  if [[ "$1" == --export=* ]]; then IFS=, read -ra given <<< "${{1#*=}}"; for one in "${{given[@]}}"; do
    if [[ "$one" == *=* ]]; then export "$one"; fi; done; fi
  if [[ "${{1##*/}}" =~ ^{starts}$ || "$1" == *.sh ]]; then exec "$@"; fi
  if [[ "$1" == *" "* && "$1" =~ ^[^\\ ]*{starts}\\  ]]; then exec {bash} -c "$1"; fi
  if [[ "$1" =~ ^[A-Z_]+=  && $name == sudo ]]; then export "$1"; fi
  shift
done
"""
MKDIR = """#!{bash}
for folder in "$@"; do if [[ "$folder" != [-/]* ]]; then {mkdir} -p "$folder"; fi; done
"""
"""Folders of the sandbox alone."""
LOGIN = """#!{bash}
case "$1" in -l|--login) shift;; -*l*) first="${{1/l/}}"; shift; set -- "$first" "$@";; esac
exec {bash} "$@"
"""
"""A login shell would read the machine's profile, and take its PATH."""
SSH = """#!{bash}
while [[ $# -gt 0 && "$1" == -* ]]; do case "$1" in -[iplo]) shift 2;; *) shift;; esac; done
shift
if [ $# -gt 0 ]; then exec {env} -i PATH="$PATH" HOME="$HOME" {bash} -c "$*"; fi
exec {env} -i PATH="$PATH" HOME="$HOME" {bash}
"""


@dataclass(frozen=True)
class Started:
    """A program that bash started."""

    program: str
    words: tuple[str, ...]
    environment: Mapping[str, str]


def executable(path: Path, text: str) -> None:
    """Writes a stub."""
    path.write_text(text)
    path.chmod(0o755)


def make_stubs(folder: Path) -> None:
    """A folder `bin` with the stubs, and one for what they record."""
    programs, records = folder / "bin", folder / "records"
    programs.mkdir()
    records.mkdir()
    bash, cat, env = (shutil.which(name) or "" for name in ("bash", "cat", "env"))
    for name in REAL:
        if found := shutil.which(name):
            (programs / name).symlink_to(found)
    for name in RECORDS:
        executable(programs / name, RECORD.format(bash=bash, cat=cat, records=records))
    for name in PASSES:
        executable(programs / name, PASS.format(bash=bash, starts=STARTS))
    executable(programs / "mkdir", MKDIR.format(bash=bash, mkdir=shutil.which("mkdir")))
    for name in ("bash", "sh"):
        (programs / name).unlink()
        executable(programs / name, LOGIN.format(bash=bash))
    executable(programs / "ssh", SSH.format(bash=bash, env=env))
    for name in QUIET:
        executable(programs / name, f"#!{bash}\nexit 0\n")
    for name, answer in ANSWERS.items():
        executable(programs / name, f"#!{bash}\nprintf '%s\\n' {shlex.quote(answer)}\n")


@cache
def apart() -> tuple[str, ...]:
    """The command that takes the network away, where this machine allows it."""
    command = (shutil.which("unshare") or "", "--map-root-user", "--net")
    if command[0] and not subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        return command
    return ()


def settings_of(script: Path) -> tuple[list[str], dict[str, str]]:
    """Arguments and environment of a case: its lines `# arguments: ...` and `# environment: A=b`."""
    text = script.read_text(encoding="utf-8")
    arguments = re.search(r"^# arguments: (.*)$", text, re.MULTILINE)
    environment = re.search(r"^# environment: (.*)$", text, re.MULTILINE)
    pairs = [word.split("=", 1) for word in shlex.split(environment[1])] if environment else []
    return shlex.split(arguments[1]) if arguments else [], dict(pairs)


def run_in_sandbox(
    folder: Path, script: Path, arguments: Sequence[str], environment: Mapping[str, str]
) -> tuple[list[Started], str]:
    """What the script starts, and what it writes as errors."""
    make_stubs(folder)
    (folder / "home").mkdir()
    base = {"PATH": str(folder / "bin"), "HOME": str(folder / "home"), "USER": "tester", "TERM": "dumb", **environment}
    command = [*apart(), shutil.which("bash") or "bash", str(script), *arguments]
    ours, theirs = os.pipe()  # every process of the script holds its end: it closes once all have ended
    errors = folder / "stderr"
    with errors.open("w") as out:
        process = subprocess.Popen(
            command, cwd=script.parent, env=base, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=out,
            pass_fds=(theirs,), start_new_session=True,
        )  # fmt: skip
    os.close(theirs)
    try:
        process.wait(SECONDS)
        select.select([ours], [], [], SECONDS)
    except subprocess.TimeoutExpired:
        pass
    finally:
        os.close(ours)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # what waits for a node or a free GPU, or loops in the background
        process.wait()
    return [started(path) for path in sorted((folder / "records").glob("*.words"))], errors.read_text()


def started(path: Path) -> Started:
    """Reads what a stub recorded."""
    name, *words = path.read_text().split("\0")[:-1]
    variables = dict(
        entry.split("=", 1) for entry in path.with_suffix(".environ").read_text().split("\0") if "=" in entry
    )
    if name == "accelerate" and words[:1] == ["launch"]:
        words = words[1:]
    at = 0
    for at, word in enumerate(words):  # noqa: B007  the place is used after the loop
        if word in ("-m", "--module") or word.endswith(".py"):
            break
    module = bool(words) and words[at] in ("-m", "--module")
    rest = words[at + module :]
    if (
        module
        and rest
        and rest[0] in ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
    ):
        at = next(
            (place for place, word in enumerate(rest[1:], 1) if word in ("-m", "--module") or word.endswith(".py")), 0
        )
        rest = rest[at + (rest[at] in ("-m", "--module")) :]
    return Started(rest[0] if rest else "", tuple(rest[1:]), variables)


def expression(text: str, placeholders: Sequence[str]) -> str:
    """A regular expression for a word in which each placeholder stands for anything."""
    if not placeholders:
        return re.escape(text)
    marks = "|".join(re.escape(one) for one in sorted(placeholders, key=len, reverse=True))
    return "".join(".*" if re.fullmatch(marks, part) else re.escape(part) for part in re.split(f"({marks})", text))


def same_launch(ours: Launch, truth: Started, placeholders: Sequence[str]) -> bool:
    """Whether program and words are those that bash handed over."""
    return len(ours.words) == len(truth.words) and all(
        re.fullmatch(expression(mine, placeholders), real, re.DOTALL) is not None
        for mine, real in zip((ours.program, *ours.words), (truth.program, *truth.words), strict=True)
    )


def environment_differs(
    ours: Launch, truth: Started, placeholders: Sequence[str], given: Mapping[str, str]
) -> list[str]:
    """Names of variables with another value, or that one of both lacks."""
    base = BASE | given.keys()
    names = {
        name
        for name in (ours.environment.keys() | truth.environment.keys()) - base
        if not name.startswith("BASH_FUNC_")  # functions of `export -f`
    }
    return sorted(
        name
        for name in names
        if name not in ours.environment
        or name not in truth.environment
        or not re.fullmatch(expression(ours.environment[name], placeholders), truth.environment[name], re.DOTALL)
    )


@dataclass(frozen=True)
class Comparison:
    """One script: our reading beside bash's."""

    name: str
    reading: ScriptReading
    truth: tuple[Started, ...]
    missing: tuple[Started, ...]
    """Started by bash, and not read by us."""
    extra: tuple[Launch, ...]
    """Read by us, and not started by bash."""
    environment: tuple[str, ...]
    """Variables that differ."""
    errors: str

    @property
    def equal(self) -> bool:
        """All launches with all their words."""
        return not self.missing and not self.extra

    @property
    def outcome(self) -> str:
        """equal; refused (with its line); open (a condition of the machine is named, which may decide); or wrong."""
        if self.equal:
            return "equal"
        conditions = any(part.note and not part.placeholder and part.note != NOT_SET for part in self.reading.open)
        return "refused" if self.reading.refused else "open" if conditions else "wrong"


def compare(script: Path) -> Comparison:
    """Runs the script in the sandbox, reads it, and compares."""
    arguments, environment = settings_of(script)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        copied = folder / "work" / script.name
        copied.parent.mkdir()
        shutil.copy(script, copied)
        if (script.parent / "parts").is_dir():
            shutil.copytree(script.parent / "parts", copied.parent / "parts")
        reading = read_script(copied, arguments, environment)
        truth, errors = run_in_sandbox(folder, copied, arguments, environment)
    placeholders = [part.placeholder for part in reading.open if part.placeholder] + ["{PWD}"]
    left, extra, differs = list(truth), [], []
    for ours in (*reading.launches, *reading.other_programs):
        found = next((one for one in left if same_launch(ours, one, placeholders)), None)
        if found is None:
            extra.append(ours)
            continue
        left.remove(found)
        if not any(wrapper.name in APART for wrapper in ours.wrappers):
            differs += environment_differs(ours, found, placeholders, environment)
    return Comparison(
        script.stem, reading, tuple(truth), tuple(left), tuple(extra), tuple(sorted(set(differs))), errors
    )
