"""Launch scripts in many shell styles: what `rlrun import` finds, beside plain bash in a folder of stubs.

    python benchmarks/import_scripts.py

Each script is put together from pieces. Plain bash runs it unconfined, with a stub for each program that is
not of this system. Ends with a table: scripts with equal words, launches, and processor time of a script.
"""

from __future__ import annotations

import os
import random
import resource
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from launcher.sandbox.reading import read_script
from launcher.tools.importing.launches import launch_of

RECORD = '#!/bin/bash\n{ printf "%s\\0" "${0##*/}" "$@"; printf "\\n"; } >> WORDS\n'
PASS = '#!/bin/bash\nwhile [ $# -gt 0 ]; do case ${1##*/} in python*|bash|torchrun) exec "$@";; esac; shift; done\n'
STUBS = {**dict.fromkeys(("python", "python3", "torchrun"), RECORD),
         **dict.fromkeys(("srun", "sudo", "conda", "numactl"), PASS),
         **dict.fromkeys(("sleep", "pip", "wandb", "ray", "module"), "#!/bin/bash\nexit 0\n")}  # fmt: skip
SCRIPTS = 60
TRAIN = "python3 -m verl.trainer.main_ppo"
SETUP = [
    "set -e", "set -euo pipefail", "set -x", "shopt -s nullglob", "export NCCL_DEBUG=INFO VLLM_USE_V1=1",
    "ulimit -n 4096 || true", "pip install -q verl || echo no", "module load cuda 2>/dev/null || :", "exec 3>&1",
    'cd "$(dirname "${BASH_SOURCE[0]}")"', "trap 'echo ended' EXIT", "umask 022", "source ./settings.env",
]  # fmt: skip
VALUES = [
    "A=@", "A=${A:-@}", 'A="x y @"', "A=$(echo @ | sed 's/1/one/')", "A=$((@ * 3 % 7 + 1))", "A=$(seq -s, 1 @)",
    "A=$(printf '%03d' @)", "B=ab@cd.tar.gz; A=${B%%.*}", "B=a/b/m@; A=${B##*/}", "B=Model@; A=${B,,}; A=${A^}",
    "L=(a b c d@); A=${L[-1]}", "L=(1 2 3 @); A=$(IFS=,; echo \"${L[*]}\")", "declare -A M=([k]=v@); A=${M[k]}",
    "IFS=: read -r _ A <<< 'p:q@'", "read -r A < <(echo r@)", "mapfile -t L <<< $'u\\nw@'; A=${L[1]}",
    "V=A; printf -v \"$V\" 'z%s' @", "N=W; W=i@; A=${!N}", "A=$(expr @ + 40)", "A=$(awk 'BEGIN{print @ * 2}')",
    "A=$(cut -d- -f2 <<< n-@-m)", "A=$(tr a-z A-Z <<< abc@)", "A=$(cat <<EOF\ndoc @\nEOF\n)",
    "case @ in 1*) A=one;; *[02468]) A=even;; *) A=odd;; esac", "A=; for i in {1..@}; do A+=$i; done; A=${A: -3}",
    "[[ m@b =~ ([0-9]+) ]] && A=${BASH_REMATCH[1]}", "f() { local x=$1; echo \"f$x\"; }; A=$(f @)",
    "A=$( (( @ > 4 )) && echo big || echo small )", "let A=@+1", "A=$'t\\x41@'", "A='it'\\''s@'",
    "A=$(basename /d/@.py .py)",
    "A=$(echo \"c b a@\" | xargs -n1 | sort | paste -sd+)", "A=0; while [ $A -lt @ ]; do A=$((A + 2)); done",
    "g() { printf -v \"$1\" '%s' h@; }; g A", "A=\"$(echo '{\"k\": @}')\"", "A=$(wc -w <<< 'a b @')",
    "echo n@ > f.txt; A=$(< f.txt)", "A=$(head -n1 options.txt)@", "A=$(grep -c . options.txt)@",
]  # fmt: skip
STARTS = [
    "RUN a=\"$A\"", "RUN \\\n  a=\"$A\" \\\n  b=1  # why", "ARGS=(a=\"$A\" b='x y'); RUN \"${ARGS[@]}\"",
    "RUN a=$A $EXTRA",
    "CMD=\"RUN a=q\"; $CMD \"b=$A\"", "eval \"RUN a='$A'\"", "for lr in 1e-6 5e-7; do RUN lr=$lr a=\"$A\"; done",
    "if [ -n \"$A\" ]; then RUN a=\"$A\"; else RUN none=1; fi", "run() { RUN \"$@\" c=3; }; run a=\"$A\"",
    "srun -N 1 RUN a=\"$A\"", "nohup RUN a=\"$A\" > log.txt 2>&1", "env K=v RUN a=\"$A\"",
    "K=v RUN a=\"$A\" | tee out.txt",
    "timeout 10 RUN a=\"$A\" || true", "(cd sub && RUN a=\"$A\" d=\"$PWD\")", "bash -c \"RUN a='$A'\"",
    "bash <<EOF\nRUN a=\"$A\"\nEOF", "torchrun --nproc_per_node=2 -m verl.trainer.sft_trainer a=\"$A\"",
    "! false && RUN a=\"$A\"", "echo \"$A\" | while read -r w; do RUN a=\"$w\"; done", "conda run -n e RUN a=\"$A\"",
    "for i in 1 2; do [ $i = 2 ] && continue; RUN i=$i a=\"$A\"; done", "printf 'x\\ny\\n' | xargs -I{} RUN a={} b=1",
    "while getopts 'm:' o <<< ''; do :; done; RUN a=\"$A\" n=$#", "exec RUN a=\"$A\"",
]  # fmt: skip


def script(chance: random.Random) -> str:
    """One script: two settings, three values and starts."""
    lines = ["#!/bin/bash", *chance.sample(SETUP, 2), "EXTRA='e=1 f=2'"]
    starts = [*chance.sample(STARTS[:-1], 2), chance.choice(STARTS)]
    for start in starts:
        lines += [chance.choice(VALUES).replace("@", str(chance.randrange(1, 12))), start.replace("RUN", TRAIN)]
    return "\n".join([*lines, ""])


def by_bash(text: str, folder: Path) -> list[list[str]]:
    """What plain bash hands over."""
    stubs, words = folder.parent / "stubs", folder.parent / "words"
    stubs.mkdir()
    for name, content in STUBS.items():
        (stubs / name).write_text(content.replace("WORDS", str(words)))
        (stubs / name).chmod(0o755)
    words.touch()
    environment = {"PATH": f"{stubs}:{os.defpath}", "HOME": str(folder)}
    subprocess.run(["bash", "run.sh"], cwd=folder, env=environment, capture_output=True, check=False, timeout=30)
    records = words.read_bytes().decode().split("\0\n")[:-1]
    found = []
    for record in records:
        _, *rest = record.split("\0")
        at = rest.index("-m") + 1
        found.append([rest[at], *rest[at + 1 :]])
    return found


def cpu_seconds() -> float:
    """Of this process and of those that it has waited for."""
    return sum(sum(resource.getrusage(whose)[:2]) for whose in (resource.RUSAGE_CHILDREN, resource.RUSAGE_SELF))


def main() -> None:
    chance, equal, launches, before = random.Random(0), 0, 0, cpu_seconds()
    for number in range(SCRIPTS):
        text = script(chance)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name).resolve() / "work"
            (folder / "sub").mkdir(parents=True)
            (folder / "run.sh").write_text(text)
            (folder / "settings.env").write_text("export SET=1\n")
            (folder / "options.txt").write_text("one\ntwo\n")
            os.chdir(folder)
            reading = read_script(Path("run.sh"))
            found = [launch_of(one, reading.written) for one in reading.started]
            ours = [[one.program, *one.words] for one in found if one]
            theirs = by_bash(text, folder)
            os.chdir("/")
        launches += len(theirs)
        equal += sorted(ours) == sorted(theirs)
        if sorted(ours) != sorted(theirs):
            print(f"--- {number}\n{text}\nours  {shlex.join(map(str, ours))}\nbash  {shlex.join(map(str, theirs))}")
            print(*reading.open, *reading.refused, sep="\n")
    print("| scripts | words equal | launches | CPU s a script |\n|--:|--:|--:|--:|")
    print(f"| {SCRIPTS} | {equal} | {launches} | {(cpu_seconds() - before) / SCRIPTS:.2f} |")
    sys.exit(equal < SCRIPTS)


if __name__ == "__main__":
    main()
