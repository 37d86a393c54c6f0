"""Nodes of Slurm: a run is submitted as a batch job, which starts it and, after a requeue, resumes it.

The job's script does `rlrun train --resume` in the allocation, also the first time, so it is the same at every start.
There this class starts the processes: on the one node, or on a Ray cluster that the script has started. Slurm ends a
job with SIGTERM to all its processes, and before the time limit sends SIGUSR1 to the script alone.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field

from launcher.clusters.local import Local
from launcher.clusters.ray import Ray
from launcher.core.bounded_parse import parse_json
from launcher.core.files import read_file, write_atomic
from launcher.core.problems import Problem, Problems, error_message
from launcher.core.settings import AtLeastOne, Names, settings
from launcher.spec.cluster import Cluster, Job
from launcher.spec.engine import Plan
from launcher.spec.hardware import Hardware

INSIDE = "RLRUN_SLURM"  # set by the script: this process runs in the allocation
COMMANDS = ("sbatch", "squeue", "scancel", "scontrol")
SUBMIT_HOST = "use a machine where jobs are submitted"
COMMAND_S = 60.0  # for a controller that is busy

# the script of a batch job, for people to read and change
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
of_machine() {{ {python} -c "from launcher.core.machine import free_ports, own_address; print($1)"; }}
ip=$(of_machine 'own_address()')
port=$(of_machine 'free_ports(1)[0]')
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN=$({python} -c 'import secrets; print(secrets.token_hex(32))')
export RAY_TMPDIR=/tmp/rlrun-$SLURM_JOB_ID RAY_gcs_rpc_server_reconnect_timeout_s=10
export RAY_health_check_initial_delay_ms=5000 RAY_health_check_period_ms=1000 RAY_health_check_timeout_ms=5000
keep() {{
  umask 077
  mkdir -p "$RAY_TMPDIR" && [ -O "$RAY_TMPDIR" ] || exit 1  # it must be this user's own
  trap 'kill "$ray"; wait "$ray"; rm -rf "$RAY_TMPDIR"; exit' TERM
  while true; do
    {python} -m ray.scripts.scripts start --block --disable-usage-stats{args} "$@" &
    ray=$!
    wait "$ray"; sleep 1
  done
}}
export -f keep
keep --head --node-ip-address="$ip" --port="$port" --include-dashboard=false >> {slurm}/ray-head.log 2>&1 &
more=$((SLURM_JOB_NUM_NODES - 1))
srun --overlap --relative=1 --nodes=$more --ntasks=$more --ntasks-per-node=1 --cpu-bind=none --mem=0 \\
  bash -c "keep --address=$ip:$port" >> {slurm}/ray.log 2>&1 &
export RAY_ADDRESS=$ip:$port
# Ray ends within seconds
trap 'kill $(jobs -p); for _ in 1 2 3 4 5 6 7 8 9 10; do [ -z "$(jobs -rp)" ] || sleep 1; done' EXIT
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


def _number_as_text(value: object) -> object:
    """cluster.time=120 and cluster.mem=0 are typed as numbers."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Word = Annotated[str, BeforeValidator(_number_as_text), Field(pattern=r"^[^\s'\"\\]+$")]


@settings
class Slurm(Cluster):
    """A batch job of Slurm, which waits for its nodes, saves when they are taken away, and resumes on others."""

    partition: Word | None = None
    """Partition of the job; by default Slurm's own default."""
    account: Word | None = None
    """Account that the nodes are charged to."""
    qos: Word | None = None
    """Quality of service, where the site has several."""
    time: Word | None = None
    """Time limit in minutes, or as 1-00:00:00; by default the partition's. A run that reaches it saves, and is queued
    again."""
    cpus_per_node: AtLeastOne | None = None
    """CPU cores taken on each node; by default what Slurm gives to one task, often a single one."""
    mem: Word | None = None
    """Memory taken on each node, such as 900G; 0 is all of it."""
    save_s: AtLeastOne = 120
    """Seconds before the time limit at which the run is asked to save; less than a checkpoint takes loses steps."""
    options: Names = ()
    """Further options of sbatch, each as in a script: [--constraint=h100,--exclusive]."""
    setup: Names = ()
    """Shell commands that run first on the first node: [module load cuda]."""

    @property
    def queues(self) -> bool:
        return INSIDE not in os.environ

    def missing_requirements(self, hardware: Hardware) -> list[Problem]:
        missing = [name for name in COMMANDS if self.queues and not shutil.which(name)]
        if not missing:
            return []
        return [Problem("cluster", f"slurm's {', '.join(missing)} not found here", SUBMIT_HOST, "not-installed")]

    def start(self, plan: Plan, logs: Path, lock: int) -> Job:
        """Start the processes in the allocation; for several nodes the script has started a Ray cluster."""
        if int(os.environ.get("SLURM_JOB_NUM_NODES", "1")) == 1:
            return Local(usage_s=self.usage_s).start(plan, logs, lock)
        return Ray(address="auto", usage_s=self.usage_s).start(plan, logs, lock)

    def submit(self, name: str, folder: Path, hardware: Hardware) -> str:
        """Raises `Problems` where Slurm refuses."""
        (folder / "slurm").mkdir(mode=0o700, exist_ok=True)
        (folder / "slurm" / "stop").unlink(missing_ok=True)
        write_atomic(folder / "slurm" / "job.sh", self.script(name, str(folder.absolute()), hardware))
        job = _run_command(["sbatch", "--parsable", str(folder / "slurm" / "job.sh")]).partition(";")[0]
        write_atomic(folder / "slurm" / "job.json", json.dumps({"id": job}))
        return SlurmJob(job, folder).name

    def script(self, name: str, folder: str, hardware: Hardware) -> str:
        """The script of the batch job for the run `name` (project/experiment) in `folder`, which all nodes see."""
        options = {
            "partition": self.partition, "account": self.account, "qos": self.qos, "time": self.time,
            "cpus-per-task": self.cpus_per_node, "mem": self.mem,
        }  # fmt: skip
        job_options = [f"--{option}={value}" for option, value in options.items() if value is not None]
        gpus = hardware.n_gpus_per_node
        if gpus:
            job_options.append(f"--gpus-per-node={gpus}")
        slurm, python = f"{shlex.quote(folder)}/slurm", shlex.quote(sys.executable)
        log = f"{folder}/slurm/job.log".replace("%", "%%")  # % begins a pattern of Slurm
        head = HEAD.format(
            name=f"rlrun:{name.replace('/', ':')}", nodes=hardware.nnodes, log=shlex.quote(log), slurm=slurm,
            cwd=shlex.quote(os.getcwd()), save_s=self.save_s, setup="".join(f"{line}\n" for line in self.setup),
            options="".join(f"#SBATCH {option}\n" for option in (*job_options, *self.options)),
        )  # fmt: skip
        args = f" --num-gpus={gpus}" if gpus else ""
        ray = RAY.format(slurm=slurm, python=python, args=args) if hardware.nnodes > 1 else ""
        begin = f"{python} -m launcher train --resume {shlex.quote(folder)}"
        return head + ray + TRAIN.format(begin=begin, slurm=slurm)


@dataclass(frozen=True)
class SlurmJob:
    """A run in Slurm's queue or in its allocation."""

    id: str
    folder: Path

    @property
    def name(self) -> str:
        return f"slurm job {self.id}"

    @property
    def log(self) -> Path:
        return self.folder / "slurm" / "job.log"

    def queue_status(self) -> str:
        """`pending (Resources)`, `running on node-[1-2]`; empty once it has left the queue. Raises `Problems`."""
        try:
            answer = _run_command(["squeue", "--noheader", f"--jobs={self.id}", "--format=%T|%r|%N"])
        except Problems as problems:
            if "invalid job id" in problems.lines[0].lower():
                return ""  # Slurm forgets a job minutes after its end
            raise
        state, _, rest = answer.partition("|")
        why, _, where = rest.partition("|")
        return f"{state.lower()} on {where}" if where else f"{state.lower()} ({why})" if state else ""

    @property
    def stopped(self) -> bool:
        return self._stop_file.exists()

    @property
    def _stop_file(self) -> Path:
        return self.folder / "slurm" / "stop"

    def stop(self, now: bool) -> None:
        """Ask it to save and end, without a requeue; `now`: not to save. One that is pending leaves the queue."""
        write_atomic(self._stop_file, "")  # the script looks for it
        running = self.queue_status().startswith("running")
        _run_command(["scancel", *(["--signal=USR1", "--batch"] if running and not now else []), self.id])


def job_of(folder: Path) -> SlurmJob | None:
    """The job as which a run was last submitted; None where it never was, or this machine has no Slurm."""
    try:
        job = str(parse_json(read_file(folder / "slurm" / "job.json"))["id"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return SlurmJob(job, folder) if job.isdigit() and shutil.which("squeue") else None


def _run_command(words: Sequence[str]) -> str:
    """What a command of Slurm prints. Raises `Problems` where it fails."""
    try:
        ran = subprocess.run(words, capture_output=True, text=True, timeout=COMMAND_S, check=False)
    except OSError as error:
        raise Problems(Problem(words[0], error_message(error), SUBMIT_HOST, "not-installed")) from error
    except subprocess.TimeoutExpired as error:
        why = f"did not answer in {COMMAND_S:g} s"
        raise Problems(Problem(words[0], why, "see whether slurm's controller is up", "not-reachable")) from error
    if ran.returncode:
        lines = [line.removeprefix(f"{words[0]}: ").removeprefix("error: ") for line in ran.stderr.splitlines() if line]
        why = lines[-1] if lines else f"ended with {ran.returncode}"
        raise Problems(Problem(words[0], why, "use settings of cluster.* that slurm takes"))
    return ran.stdout.strip()
