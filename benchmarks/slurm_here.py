"""A Slurm of one node on this machine, in a folder of its own: munged, slurmctld and slurmd of Debian's packages.

Needs root, as slurmd does. Every daemon is this process's own and ends with it; nothing in /etc is read or written.

    with slurm() as here:
        subprocess.run(["sbatch", "job.sh"], env=here.env)
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from launcher.machine import free_ports

UP_S = 30.0
NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "scancel")
CONF = """
ClusterName=rlrun
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ctld}
SlurmdPort={slurmd}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
KillWait=30
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=low Nodes={host} Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime={grace} State=UP
PartitionName=high Nodes={host} PriorityTier=10 PreemptMode=OFF State=UP
"""


@dataclass(frozen=True)
class Here:
    folder: Path
    env: dict[str, str]
    cpus: int

    def __call__(self, *words: str) -> str:
        """What a command of Slurm says. Raises `AssertionError` where it fails."""
        ran = subprocess.run(words, env=self.env, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, f"{words}: {ran.stdout}{ran.stderr}"
        return ran.stdout.strip()


def missing() -> list[str]:
    """Programs of `slurmctld slurmd slurm-client munge` that are not here."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    return [name for name in NEEDED if not shutil.which(name, path=path)]


@contextmanager
def slurm(grace_s: int = 0) -> Iterator[Here]:
    """Partition `high` preempts `low`, whose jobs then wait again; `grace_s` after they have been told."""
    folder = Path(tempfile.mkdtemp(prefix="rlrun-slurm-"))
    folder.chmod(0o755)
    ctld, slurmd = free_ports(2)
    host, cpus = socket.gethostname().partition(".")[0], os.cpu_count() or 1
    for name in ("state", "spool"):
        (folder / name).mkdir()
    conf = CONF.format(folder=folder, host=host, ctld=ctld, slurmd=slurmd, cpus=cpus, grace=grace_s)
    (folder / "slurm.conf").write_text(conf)
    (folder / "munge.key").write_bytes(secrets.token_bytes(128))
    (folder / "munge.key").chmod(0o400)
    sbin = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    env = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf"), "PATH": sbin}
    here, daemons = Here(folder, env, cpus), list[subprocess.Popen[bytes]]()
    munge = [f"--{name}={folder}/munge.{kind}" for name, kind in (
        ("key-file", "key"), ("socket", "socket"), ("pid-file", "pid"), ("log-file", "log"), ("seed-file", "seed"),
    )]  # fmt: skip
    try:
        daemons.append(_daemon(["munged", "--foreground", "--force", *munge], env, folder))
        _until(lambda: (folder / "munge.socket").exists(), "munged")
        daemons.append(_daemon(["slurmctld", "-D"], env, folder))
        daemons.append(_daemon(["slurmd", "-D", "-N", host], env, folder))
        _until(lambda: "idle" in _said(["sinfo", "-h", "-o", "%T"], env), f"slurm ({folder}/*.log)")
        yield here
    finally:
        _said(["scancel", "--signal=KILL", "--full", "--user=root"], env)
        _said(["scancel", "--user=root"], env)
        time.sleep(1)
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in daemons:
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
        shutil.rmtree(folder, ignore_errors=True)


def _daemon(argv: Sequence[str], env: dict[str, str], folder: Path) -> subprocess.Popen[bytes]:
    program = shutil.which(argv[0], path=env["PATH"]) or argv[0]
    with (folder / "daemons.log").open("ab") as log:
        return subprocess.Popen([program, *argv[1:]], env=env, stdout=log, stderr=log, start_new_session=True)


def _said(words: Sequence[str], env: dict[str, str]) -> str:
    return subprocess.run(words, env=env, capture_output=True, text=True, check=False).stdout


def _until(ready, what: str) -> None:  # type: ignore[no-untyped-def]
    give_up = time.monotonic() + UP_S
    while not ready():
        assert time.monotonic() < give_up, f"{what} is not up after {UP_S:g} s"
        time.sleep(0.2)
