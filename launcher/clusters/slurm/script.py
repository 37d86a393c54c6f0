"""The script of a batch job of Slurm: plain shell, for people to read and change."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

HEAD = """\
#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
{options}#SBATCH --output={log}
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@{save_s}

echo "$(date +%T) start $((SLURM_RESTART_COUNT + 1)) on $SLURM_JOB_NODELIST"
export RLRUN_SLURM=1 PYTHONUNBUFFERED=1
umask 077
{setup}cd {cwd}
mkdir -p {slurm}
"""
RAY = """
# one Ray cluster of all nodes, the head on this one; on each node Ray is started again when it dies
home() {{ echo {slurm}/"$SLURM_JOB_ID-$1"; }}
export -f home
export RLRUN_CLUSTER=$(home "$SLURMD_NODENAME")
{rlrun} cluster up{args} || exit 1
trap '{rlrun} cluster down' EXIT
export RLRUN_HEAD=$RLRUN_CLUSTER
join() {{ RLRUN_CLUSTER=$(home "$SLURMD_NODENAME") exec {rlrun} cluster join "$RLRUN_HEAD" --block{args}; }}
export -f join
more=$((SLURM_JOB_NUM_NODES - 1))
srun --overlap --relative=1 --nodes=$more --ntasks=$more --ntasks-per-node=1 --cpu-bind=none --mem=0 bash -c join &
"""
TRAIN = """
# USR1: the time limit is near, or rlrun stop was typed. TERM, which Slurm sends, reaches the run, too
trap 'kill -TERM "$run" 2>/dev/null' USR1
trap : TERM
{begin} >/dev/null &  # its console.log has every line
run=$!
while wait "$run"; code=$?; kill -0 "$run" 2>/dev/null; do :; done

echo "$(date +%T) ended with $code"
if [ "$code" = 143 ] && [ ! -e {slurm}/stop ]; then
  echo "$(date +%T) saved, and waits for nodes again"
  scontrol requeue "$SLURM_JOB_ID" || true  # where nodes are taken away, Slurm has done so itself
fi
exit "$code"
"""


def batch_script(
    name: str, folder: str, log: str, nodes: int, *, options: Sequence[str], gpus: int, save_s: int,
    setup: Sequence[str], cwd: str, begin: str, rlrun: str,
) -> str:  # fmt: skip
    """The script of the run `name` (project/experiment) in `folder`, which all nodes see. `begin` is the shell command
    that trains, `rlrun` that of the command line; `log` is where Slurm writes the script's output."""
    slurm = f"{shlex.quote(folder)}/slurm"
    head = HEAD.format(
        name=f"rlrun:{name.replace('/', ':')}", nodes=nodes, log=shlex.quote(log), cwd=cwd, slurm=slurm, save_s=save_s,
        options="".join(f"#SBATCH {option}\n" for option in options), setup="".join(f"{line}\n" for line in setup),
    )  # fmt: skip
    ray = RAY.format(slurm=slurm, rlrun=rlrun, args=f" -- --num-gpus={gpus}" if gpus else "") if nodes > 1 else ""
    return head + ray + TRAIN.format(begin=begin, slurm=slurm)
