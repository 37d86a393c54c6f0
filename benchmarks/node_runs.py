"""Runs over several nodes of this machine: `python benchmarks/node_runs.py [NODES]`.

Network namespaces, each with a Ray of its own (`nodes`). GRPO over 2 and over all nodes against as many processes of
one machine; a run that asks for GPUs that no node has; SIGSTOP of one process, which must be named; SIGTERM, which must
save and be resumed to the same end. Ends with 1 if a row fails.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median

import psutil
from chaos import BEGIN, DATA, LEARNT, PROJECT, result_of
from node_chaos import launcher_of, on, steps_told
from nodes import RLRUN, Nodes, nodes
from rich.console import Console
from rich.table import Table

from launcher.core.checkpoints import newest_verified
from launcher.core.events import Stalled, Step, events_of

LAST = 24
STEPS = [
    f"trainer.total_training_steps={LAST}", "trainer.save_freq=8", "trainer.test_freq=8", "data.train_batch_size=16",
]  # fmt: skip
RUN = ["algorithm=grpo", "sampler.n=4", "optim.lr=1e-3", *BEGIN, *STEPS, *DATA, *PROJECT]
WAIT_S = 5
Row = tuple[str, str, bool]


def there(count: int) -> list[str]:
    return ["cluster=ray", "cluster.address=auto", f"hardware.nnodes={count}"]


def begin(cluster: Nodes, name: str, *words: str) -> subprocess.Popen[str]:
    with Path(f"{name}.log").open("a") as log:
        typed = ["train", *words] if "--resume" in words else ["train", *words, f"trainer.experiment_name={name}"]
        return cluster.begin(0, [*RLRUN, *typed], stdout=log, stderr=log)


def folder_of(name: str) -> Path:
    return Path("runs/chaos") / name


def losses(folder: Path) -> list[float]:
    told = [event for event in events_of(folder / "events.jsonl") if isinstance(event, Step)]
    return [event.metrics["actor/grad_norm"] for event in told if event.step]


def equal(cluster: Nodes, count: int) -> Row:
    """The same losses, gradients and weights over `count` nodes and over as many processes of one."""
    plain, far = f"plain-{count}", f"nodes-{count}"
    words = [*RLRUN, "train", *RUN, f"hardware.nproc_per_node={count}", f"trainer.experiment_name={plain}"]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    code = begin(cluster, far, *RUN, *there(count)).wait()
    same = code == 0 and result_of(folder_of(plain), LAST) == result_of(folder_of(far), LAST)
    pairs = zip(losses(folder_of(plain)), losses(folder_of(far)), strict=False)
    off = max((abs(a - b) / max(abs(a), 1e-12) for a, b in pairs), default=1.0)
    told = "events and weights equal byte for byte" if same else f"largest relative difference {off:.1e}"
    return f"{count} nodes against {count} processes of one", told, code == 0 and off <= 1e-6


def missing(cluster: Nodes) -> Row:
    """More than the cluster has is told soon after the wait, and what was set aside is given back."""
    words = [*RUN, *there(2), "hardware.device=h100", "hardware.n_gpus_per_node=1", f"cluster.wait_s={WAIT_S}"]
    process = begin(cluster, "missing", *words)
    code, ended = process.wait(), time.time()
    began = min((event.at for event in events_of(folder_of("missing") / "events.jsonl")), default=0.0)  # it waits
    output = Path("missing.log").read_text()
    left = [one for number in range(cluster.count) for one in on(cluster, number, "ray::Rank")]
    waited = "1 GPU asked for" in output and f"after {WAIT_S} s" in output
    good = code == 2 and waited and not left
    late = ended - began - WAIT_S
    told = f"exit {code}, told {late:.1f} s after cluster.wait_s, {len(left)} processes left"
    return "GPUs that no node has", told, good and late <= 10


def _until(ready: Callable[[], bool], process: subprocess.Popen[str], seconds: float = 120) -> None:
    give_up = time.monotonic() + seconds
    while not ready():
        assert process.poll() is None and time.monotonic() < give_up, "it never came to that"
        time.sleep(0.02)


def stopped(cluster: Nodes) -> Row:
    """A stalled process is named."""
    name = "standing"
    long = [word for word in RUN if not word.startswith("trainer.total")]
    process = begin(cluster, name, *long, "trainer.total_training_steps=2000", *there(2))
    _until(lambda: len(steps_told(folder_of(name))) > 12, process)
    at = [at for _, at in steps_told(folder_of(name))]
    pace = median(late - soon for soon, late in pairwise(at[2:]))
    ranks = [one for number in range(cluster.count) for one in on(cluster, number, "-m launcher.engines.torch.worker")]
    [victim] = [one for one in ranks if one.environ()["RANK"] == "1"]  # on whichever node Ray has put it
    victim.suspend()
    since = time.time()
    stalled: list[Stalled] = []
    while not stalled and time.time() - since < 60:
        time.sleep(0.1)
        events = events_of(folder_of(name) / "events.jsonl")
        stalled = [event for event in events if isinstance(event, Stalled) and event.at > since]
    victim.resume()
    launcher_of(process).send_signal(signal.SIGTERM)
    code = process.wait()
    if not stalled:
        return "SIGSTOP of rank 1", "not named in 60 s", False
    took, bound = stalled[0].at - since, 2 * pace + 10
    told = f"rank {stalled[0].rank} named after {took:.1f} s (bound {bound:.1f}), exit {code} when stopped"
    return "SIGSTOP of rank 1", told, stalled[0].rank == 1 and took <= bound


def asked(cluster: Nodes) -> Row:
    """SIGTERM saves, ends with 143, and the run resumed is the run that was never touched."""
    name = "asked"
    process = begin(cluster, name, *RUN, *there(2))
    _until(lambda: len(steps_told(folder_of(name))) > 10, process)
    began = time.monotonic()
    launcher_of(process).send_signal(signal.SIGTERM)
    code, took = process.wait(), time.monotonic() - began
    verified = newest_verified(folder_of(name) / "checkpoints")[0]
    again = begin(cluster, name, "--resume", str(folder_of(name))).wait()
    same = again == 0 and result_of(folder_of(name), LAST) == result_of(folder_of("nodes-2"), LAST)
    kept = f"{verified.name if verified else 'nothing'} verifies"
    told = f"exit {code} in {took:.1f} s, {kept}, resumed run {'equal' if same else 'DIFFERS'}"
    return "SIGTERM", told, code == 143 and took <= 10 and verified is not None and same


def main(count: int) -> int:
    table = Table("what", "seen", "", title=f"runs over {count} nodes")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        single = ["trainer.experiment_name=learnt"]
        subprocess.run([*RLRUN, "train", *LEARNT, *DATA, *PROJECT, *single], check=True, stdout=subprocess.DEVNULL)
        with nodes(count) as cluster:
            rows = [equal(cluster, 2), missing(cluster), stopped(cluster), asked(cluster)]
            rows += [equal(cluster, count)] if count > 2 else []
        os.chdir("/")
    for what, seen, good in rows:
        table.add_row(what, seen, "pass" if good else "[red]fail[/]")
    Console().print(table)
    assert psutil.Process().children() == []
    return 0 if all(good for _, _, good in rows) else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 2))
