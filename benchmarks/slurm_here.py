"""A Slurm on this machine, in a folder of its own: munged, slurmctld and slurmd of Debian's packages.

Needs root, as slurmd does. Every daemon is this process's own and ends with it; nothing in /etc/slurm is read or
written. It has one node, this machine, or several: network namespaces of `nodes`, without their Ray.

    with slurm() as here:
        subprocess.run(here.inside(["sbatch", "job.sh"]), env=here.env)
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from nodes import Nodes

from launcher.core.machine import free_ports

UP_S = 30.0
NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "scancel")
CONF = """
ClusterName=rlrun
SlurmctldHost={host}({address})
SlurmctldPort={ctld}
SlurmdPort={slurmd}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
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
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 PreemptMode=REQUEUE State=UP
PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF State=UP
"""
NODE = "NodeName={host} NodeAddr={address} CPUs={cpus} State=UNKNOWN\n"


@dataclass(frozen=True)
class Machine:
    host: str
    address: str
    inside: Callable[[Sequence[str]], list[str]]
    """The words that run others there."""


@dataclass(frozen=True)
class Here:
    folder: Path
    env: dict[str, str]
    cpus: int
    inside: Callable[[Sequence[str]], list[str]]
    """The words that run others on the first node."""

    def __call__(self, *words: str) -> str:
        """Output of a Slurm command. Raises `AssertionError` where it fails."""
        ran = subprocess.run(self.inside(words), env=self.env, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, f"{words}: {ran.stdout}{ran.stderr}"
        return ran.stdout.strip()


def missing() -> list[str]:
    """Programs of `slurmctld slurmd slurm-client munge` that are not here."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    return [name for name in NEEDED if not shutil.which(name, path=path)]


def this_machine() -> Machine:
    return Machine(socket.gethostname().partition(".")[0], "127.0.0.1", list)


@contextmanager
def several(count: int) -> Iterator[list[Machine]]:
    """As many network namespaces, each a machine with a name."""
    folder = Path(tempfile.mkdtemp(prefix="rlrun-nodes-"))
    made = Nodes(count, folder, ())
    try:
        made.wire()
        yield [Machine(made.host(each), made.ip(each), partial(_inside, made, each)) for each in range(count)]
    finally:
        made.clear()
        shutil.rmtree(folder, ignore_errors=True)


def _inside(made: Nodes, number: int, argv: Sequence[str]) -> list[str]:
    """As `Nodes.inside`, but with the cgroups of this machine, which slurmd looks at and `ip netns exec` hides."""
    space, host = made.space(number), made.host(number)
    become = f'mount --bind /etc/netns/{space}/hosts /etc/hosts && hostname {host} && exec "$@"'
    return ["nsenter", f"--net=/run/netns/{space}", "unshare", "--uts", "--mount", "sh", "-c", become, "sh", *argv]


@contextmanager
def slurm(machines: Sequence[Machine] = ()) -> Iterator[Here]:
    """Partition `high` preempts `low`, whose jobs then wait again."""
    folder = Path(tempfile.mkdtemp(prefix="rlrun-slurm-"))
    folder.chmod(0o755)
    first, *_ = machines = machines or [this_machine()]
    env = {
        **os.environ,
        "SLURM_CONF": str(folder / "slurm.conf"),
        "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin",
    }
    here, daemons = Here(folder, env, os.cpu_count() or 1, first.inside), list[subprocess.Popen[bytes]]()
    _configure(here, machines)
    munge = [f"--{name}={folder}/munge.{kind}" for name, kind in (
        ("key-file", "key"), ("socket", "socket"), ("pid-file", "pid"), ("log-file", "log"), ("seed-file", "seed"),
    )]  # fmt: skip
    try:
        daemons.append(_daemon(["munged", "--foreground", "--force", *munge], first, here))
        _until(lambda: (folder / "munge.socket").exists(), "munged")
        daemons.append(_daemon(["slurmctld", "-D"], first, here))
        daemons += [_daemon(["slurmd", "-D", "-N", machine.host], machine, here) for machine in machines]
        states = ["sinfo", "-h", "-N", "-p", "low", "-o", "%T"]
        _until(lambda: _output_of(states, here).split() == ["idle"] * len(machines), f"slurm ({folder}/*.log)")
        yield here
    finally:
        _output_of(["scancel", "--signal=KILL", "--full", "--user=root"], here)
        _output_of(["scancel", "--user=root"], here)
        time.sleep(1)
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in daemons:
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
        shutil.rmtree(folder, ignore_errors=True)


def _configure(here: Here, machines: Sequence[Machine]) -> None:
    folder, (ctld, slurmd) = here.folder, free_ports(2)
    (folder / "state").mkdir()
    for machine in machines:
        (folder / f"spool-{machine.host}").mkdir()
    first = machines[0]
    nodes = [NODE.format(host=machine.host, address=machine.address, cpus=here.cpus) for machine in machines]
    conf = CONF.format(
        folder=folder, host=first.host, address=first.address, ctld=ctld, slurmd=slurmd
    )  # fmt: skip
    whole, partitions, rest = conf.partition("PartitionName=")
    (folder / "slurm.conf").write_text("".join([whole, *nodes, partitions, rest]))
    (folder / "munge.key").write_bytes(secrets.token_bytes(128))
    (folder / "munge.key").chmod(0o400)


def _daemon(argv: Sequence[str], machine: Machine, here: Here) -> subprocess.Popen[bytes]:
    program = shutil.which(argv[0], path=here.env["PATH"]) or argv[0]
    words = machine.inside([program, *argv[1:]])
    with (here.folder / "daemons.log").open("ab") as log:
        return subprocess.Popen(words, env=here.env, stdout=log, stderr=log, start_new_session=True)


def _output_of(words: Sequence[str], here: Here) -> str:
    return subprocess.run(here.inside(words), env=here.env, capture_output=True, text=True, check=False).stdout


def _until(ready, what: str) -> None:  # type: ignore[no-untyped-def]
    give_up = time.monotonic() + UP_S
    while not ready():
        assert time.monotonic() < give_up, f"{what} is not up after {UP_S:g} s"
        time.sleep(0.2)
