"""Runs over several nodes of this machine: `python benchmarks/node_runs.py NODES [KILLS SEED]`.

Network namespaces, each with a Ray of its own (`nodes`). GRPO over 2 and over all nodes against as many processes of
one machine; a run that asks for GPUs that no node has.

With KILLS each victim gets SIGKILL so many times at a random moment of a run over two nodes: a training process, the
Ray worker that started it, the process that speaks with Ray, a node's raylet, the head, or `rlrun train` itself (which
is resumed, as a person would). The run must go on to the same final weights and the same metrics; the recovery is the
time from the kill to the next step that is logged. A row that cannot be measured says why. Ends with 1 if a row fails.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import product
from pathlib import Path

import psutil
from chaos import BEGIN, DATA, LEARNT, PROJECT, result_of
from nodes import RLRUN, Nodes, nodes
from rich.console import Console
from rich.table import Table
from rich.text import Text

from launcher.core.events import Event, Restarted, Step, events_of

LAST = 40
STEPS = [
    f"trainer.total_training_steps={LAST}", "trainer.save_freq=4", "trainer.test_freq=8", "data.train_batch_size=16",
]  # fmt: skip
RUN = ["algorithm=grpo", "sampler.n=4", "optim.lr=1e-3", *BEGIN, *STEPS, *DATA, *PROJECT]
WAIT_S, PATIENCE_S = 5, 120.0
RECOVERY_S = 60.0
WORKER = "-m launcher.engines.torch.worker"
MARKS = {"driver": "-m launcher.clusters.ray.driver", "worker": WORKER, "actor": "ray::Rank", "raylet": "raylet/raylet"}
"""What the command lines of victims hold."""
VICTIMS = (*MARKS, "head", "launcher")
Row = tuple[str, str, bool]


class NotReached(Exception):
    """What a row has to wait for did not come."""


def there(count: int) -> list[str]:
    return ["cluster=ray", "cluster.address=auto", f"hardware.nnodes={count}"]


def begin(cluster: Nodes, name: str, *words: str) -> subprocess.Popen[str]:
    with Path(f"{name}.log").open("a") as log:
        typed = ["train", *words] if "--resume" in words else ["train", *words, f"trainer.experiment_name={name}"]
        return cluster.begin(0, [*RLRUN, *typed], stdout=log, stderr=log)


def folder_of(name: str) -> Path:
    return Path("runs/chaos") / name


def events_now(name: str, kind: type[Event]) -> list[Event]:
    return [event for event in events_of(folder_of(name) / "events.jsonl") if isinstance(event, kind)]


def wait_for(ready: Callable[[], object], process: subprocess.Popen[str]) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while not ready():
        if process.poll() is not None:
            raise NotReached(f"the run ended early with exit code {process.returncode}")
        if time.monotonic() > give_up:
            raise NotReached(f"not reached in {PATIENCE_S:g} s")
        time.sleep(0.02)


def find_processes(cluster: Nodes, number: int, mark: str) -> list[psutil.Process]:
    """Processes of a node's network whose command line holds `mark`."""
    found = []
    for process in cluster.processes(number):
        with suppress(psutil.Error):  # it has ended
            if mark in " ".join(process.cmdline()):
                found.append(process)
    return found


def launcher_of(process: subprocess.Popen[str]) -> psutil.Process:
    """`rlrun` below what puts it on its node."""
    top = psutil.Process(process.pid)
    for each in [top, *top.children(recursive=True)]:
        with suppress(psutil.Error):  # it has just ended
            if "launcher" in each.cmdline():
                return each
    return top


def equal(cluster: Nodes, count: int) -> Row:
    """The same losses, gradients and weights over `count` nodes and over as many processes of one."""
    plain, far = f"plain-{count}", f"nodes-{count}"
    words = [*RLRUN, "train", *RUN, f"hardware.nproc_per_node={count}", f"trainer.experiment_name={plain}"]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    code = begin(cluster, far, *RUN, *there(count)).wait()
    same = code == 0 and result_of(folder_of(plain), LAST) == result_of(folder_of(far), LAST)
    what = f"{count} nodes against {count} processes of one"
    return what, f"exit {code}, events and weights {'equal byte for byte' if same else 'DIFFER'}", same


def missing(cluster: Nodes) -> Row:
    """More than the cluster has is refused soon after the wait, and what was set aside is given back."""
    words = [*RUN, *there(2), "hardware.device=h100", "hardware.n_gpus_per_node=1", f"cluster.wait_s={WAIT_S}"]
    process = begin(cluster, "missing", *words)
    code, ended = process.wait(), time.time()
    began = min((event.at for event in events_now("missing", Event)), default=0.0)  # it waits
    output = Path("missing.log").read_text()
    left = [each for number in range(cluster.count) for each in find_processes(cluster, number, "ray::Rank")]
    waited = "1 GPU asked for" in output and f"after {WAIT_S} s" in output
    late = ended - began - WAIT_S
    seen = f"exit {code}, refused {late:.1f} s after cluster.wait_s, {len(left)} processes left"
    return "GPUs that no node has", seen, code == 2 and waited and not left and late <= 10


def kill(cluster: Nodes, victim: str, launcher: psutil.Process, chance: random.Random) -> None:
    """What a restart has not brought back yet is waited for: each kill is to hit something."""
    if victim == "launcher":
        launcher.kill()
    elif victim == "head":
        cluster.kill_head()
    else:
        number, give_up = 0 if victim == "driver" else chance.randrange(2), time.monotonic() + PATIENCE_S
        while not (found := find_processes(cluster, number, MARKS[victim])):
            if time.monotonic() > give_up:
                raise NotReached(f"node {number} runs no {victim}")
            time.sleep(0.05)
        for process in found:
            process.kill()


def killed(cluster: Nodes, victim: str, number: int, chance: random.Random) -> Row:
    """The end of a run of which a part was killed is that of `nodes-2`."""
    cluster.whole(PATIENCE_S)
    name, after = f"{victim}-{number}", chance.randrange(2, LAST - 4)
    process = begin(cluster, name, *RUN, *there(2))
    wait_for(lambda: folder_of(name).is_dir() and len(events_now(name, Step)) > after, process)
    time.sleep(chance.uniform(0, 0.3))
    since = time.time()
    kill(cluster, victim, launcher_of(process), chance)
    code = process.wait()
    if victim == "launcher":
        code = begin(cluster, name, "--resume", str(folder_of(name))).wait()
    same = code == 0 and result_of(folder_of(name), LAST) == result_of(folder_of("nodes-2"), LAST)
    recovery = min((event.at for event in events_now(name, Step) if event.at > since + 1), default=time.time()) - since
    seen = f"after step {after}: {'equal' if same else 'DIFFERS'}, recovery {recovery:.1f} s"
    restarts = len(events_now(name, Restarted))
    return f"SIGKILL of {victim}", f"{seen}, {restarts} restarts", same and recovery <= RECOVERY_S


def row_of(what: str, measure: Callable[[], Row]) -> Row:
    """What `measure` returns; where it cannot be measured, a failed row that says why, and its processes are ended."""
    try:
        return measure()
    except (
        NotReached,
        AssertionError,
        LookupError,
        ValueError,
        OSError,
        subprocess.SubprocessError,
        psutil.Error,
    ) as error:
        left = psutil.Process().children(recursive=True)
        for process in left:
            with suppress(psutil.Error):  # it has ended
                process.kill()
        psutil.wait_procs(left)
        return what, f"not measured: {type(error).__name__} {error}", False


def main(count: int, kills: int, seed: int) -> int:
    chance, rows = random.Random(seed), list[Row]()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        single = ["trainer.experiment_name=learnt"]
        subprocess.run([*RLRUN, "train", *LEARNT, *DATA, *PROJECT, *single], check=True, stdout=subprocess.DEVNULL)
        with nodes(count) as cluster:
            measured: list[tuple[str, Callable[[], Row]]] = [("2 nodes", partial(equal, cluster, 2))]
            if kills:
                for number, victim in product(range(kills), VICTIMS):
                    measured.append((f"SIGKILL of {victim}", partial(killed, cluster, victim, number, chance)))
            else:
                measured.append(("GPUs that no node has", partial(missing, cluster)))
                measured += [(f"{count} nodes", partial(equal, cluster, count))] if count > 2 else []
            rows += [row_of(what, measure) for what, measure in measured]
        os.chdir("/")
    left = len(psutil.Process().children())
    rows.append(("processes that are left", str(left), left == 0))
    table = Table("what", "seen", "", title=f"runs over {count} nodes, seed {seed}")
    for what, seen, good in rows:
        table.add_row(what, Text(seen), "pass" if good else "[red]fail[/]")
    Console().print(table)
    return 0 if all(good for _, _, good in rows) else 1


if __name__ == "__main__":
    count, kills, seed = map(int, [*sys.argv[1:4], *("2", "0", "0")[len(sys.argv[1:4]) :]])
    sys.exit(main(count, kills, seed))
