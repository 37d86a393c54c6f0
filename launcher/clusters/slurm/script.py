"""The script of a batch job of Slurm: plain shell, for people to read and change."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

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
# one Ray cluster of all nodes, the head on this one; each node comes back by itself when its Ray dies
home() {{ echo {slurm}/"$SLURM_JOB_ID-$1"; }}
export -f home
export RLRUN_CLUSTER=$(home "$SLURMD_NODENAME")
{rlrun} cluster up{words} || exit 1
trap '{rlrun} cluster down' EXIT
export RLRUN_HEAD=$RLRUN_CLUSTER
join() {{ RLRUN_CLUSTER=$(home "$SLURMD_NODENAME") exec {rlrun} cluster join "$RLRUN_HEAD" --block{words}; }}
export -f join
more=$((SLURM_JOB_NUM_NODES - 1))
srun --overlap --relative=1 --nodes=$more --ntasks=$more --ntasks-per-node=1 --cpu-bind=none --mem=0 bash -c join &
"""
TRAIN = """
# USR1: the time is nearly up, or somebody asks it to end. What Slurm itself sends (TERM) reaches the run, too
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


@dataclass(frozen=True)
class Script:
    name: str
    """Of the run: project/experiment."""
    folder: str
    """The run's, which all nodes see."""
    log: str
    """Where Slurm puts what the script says."""
    nodes: int
    gpus: int
    save_s: int
    options: tuple[str, ...]
    setup: tuple[str, ...]
    cwd: str
    begin: str
    """Shell that becomes the process which trains."""
    rlrun: str
    """The command `rlrun` itself."""

    @property
    def text(self) -> str:
        slurm = f"{shlex.quote(self.folder)}/slurm"
        words = f" -- --num-gpus={self.gpus}" if self.gpus else ""
        head = HEAD.format(
            name=f"rlrun:{self.name.replace('/', ':')}", nodes=self.nodes, log=shlex.quote(self.log),
            options="".join(f"#SBATCH {option}\n" for option in self.options), save_s=self.save_s,
            setup="".join(f"{line}\n" for line in self.setup), cwd=self.cwd, slurm=slurm,
        )  # fmt: skip
        ray = RAY.format(slurm=slurm, rlrun=self.rlrun, words=words) if self.nodes > 1 else ""
        return head + ray + TRAIN.format(begin=self.begin, slurm=slurm)
