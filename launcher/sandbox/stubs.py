"""The programs that a confined script finds: text tools of this machine, and stubs that record what starts them.

The stub of a program that starts another one (srun, docker, `ray job submit`) runs the other one; that of a program
that tells something about the machine prints the given answer; every other one prints a number.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path

_PROGRAMS = """
tools: awk basename bc cat comm cp cut dirname echo env expr false find fold getopt grep head join jq ls mkdir mv nice
    nl nohup paste printf readlink realpath rev rm rmdir sed seq sort split stdbuf tac tee test tr true
    uniq wc xargs
behind stubs: bash date tail mktemp
recorded: python python3 python3.9 python3.10 python3.11 python3.12 python3.13 torchrun accelerate deepspeed
passed: srun sbatch salloc kubectl mpirun mpiexec orterun sudo doas numactl nsys ncu apptainer singularity docker
    podman nerdctl conda mamba micromamba uv poetry pipenv pixi hatch taskset ray ssh pdsh clush tmux screen script
    unbuffer tini dumb-init chrt ionice py-spy enroot caffeinate gtimeout time timeout setsid
there: apt apt-get chmod chown clear curl free git hf huggingface-cli ip getent hostname id killall lsof lscpu
    nc nproc nvidia-smi openssl pgrep pip pip3 pkill ps rsync scontrol shuf sleep squeue ss sysctl systemctl touch uname
    uuidgen wandb wget which whoami lsb_release nvcc unzip zip tar vi vim parallel
absent: npu-smi rocm-smi rocminfo amd-smi hl-smi xpu-smi mx-smi mthreads-gmi cnmon
"""
_BY_KIND = {name: words.split() for name, words in re.findall(r"^(.*?):((?:.|\n )*)", _PROGRAMS, re.MULTILINE)}
TOOLS, BEHIND_STUBS = _BY_KIND["tools"], _BY_KIND["behind stubs"]
"""Programs of this machine that a script may execute; the latter are called by their stubs."""
RECORDED, PASSED = _BY_KIND["recorded"], _BY_KIND["passed"]
"""Programs that start a training, and those that start what their words name."""
THERE = _BY_KIND["there"]
"""Further programs that a training machine has. Calls of any other are answered, too, but `command -v` finds none."""
ABSENT = _BY_KIND["absent"]
"""Programs of other makers' devices, which are not there: a script finds a machine with GPUs of NVIDIA."""
HERE = Path(__file__).parent


def write_stubs(
    folder: Path, box: Path, machine: Mapping[str, str], answers: Mapping[str, str], absent: Collection[str]
) -> list[str]:
    """Fills `folder` with `bin`, `tools`, `answers` and the prelude of bash; returns what may be executed.

    `machine` has HOST, and SEED, NOW and NUMBER, which are numbers; `answers` are what programs print; `box` is where
    stubs record."""
    programs, tools, answers_dir = folder / "bin", folder / "tools", folder / "answers"
    for subfolder in (programs, tools, answers_dir):
        subfolder.mkdir()
    paths_by_name = dict[str, str]()
    for name in (*TOOLS, *BEHIND_STUBS):
        if program_path := shutil.which(name, path=f"{os.defpath}:/usr/local/bin"):
            paths_by_name[name] = os.path.realpath(program_path)
            (tools / name).symlink_to(paths_by_name[name])
    words = {**machine, "BOX": str(box), "PROGRAMS": str(folder), "TOOLS": str(tools), "BASH": paths_by_name["bash"],
             "PASSED": " ".join(PASSED), "ABSENT": " ".join(absent)}  # fmt: skip
    stub = programs / ".stub"
    _write_template("prelude.sh", folder / "prelude", words)
    _write_template("stub.sh", stub, words, f"#!{paths_by_name['bash']} -p\n")
    stub.chmod(0o755)
    for name, text in answers.items():
        (answers_dir / name).write_text(text)
    for name in {"sh", "zsh", "rlrun", *RECORDED, *PASSED, *THERE, *BEHIND_STUBS, *answers}:
        if name not in absent:
            (programs / name).symlink_to(stub)
    for name, path in paths_by_name.items():
        if not (programs / name).is_symlink():
            (programs / name).symlink_to(path)
    return [*paths_by_name.values(), str(stub)]


def _write_template(name: str, target: Path, words: Mapping[str, str], head: str = "") -> None:
    text = (HERE / name).read_text(encoding="utf-8")
    for word, value in words.items():
        text = text.replace(f"@{word}@", value)
    target.write_text(head + text)
