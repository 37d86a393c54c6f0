"""Where a run would be: its folder, this machine's GPUs and memory, ports, servers, and installed versions."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path

from launcher.clusters.nodes.reach import reach
from launcher.core import machine
from launcher.core.check_result import CheckResult, Level, from_problems
from launcher.core.problems import Problems, error_message, short_repr
from launcher.preflight.checks import packages
from launcher.runs.folder import Folder
from launcher.spec.hardware import Hardware
from launcher.spec.run import RunSpec, Trainer
from launcher.tools.doctor.bridge import Bridge

IDLE = 0.9  # of its memory is free on a GPU that nobody uses
UNSEEN = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")  # control, right-to-left and the like, halves of a letter


def folder(run: RunSpec) -> list[CheckResult]:
    """Whether the run's folder can be made."""
    try:
        lines = _folder(run.trainer)
    except (OSError, ValueError, RuntimeError) as error:  # too long, a NUL, or the home of nobody
        lines = [
            f"trainer.run_root: got {short_repr(run.trainer.run_root)}, {error_message(error)}; another folder would do"
        ]
    if lines:
        return from_problems(lines)
    return [CheckResult("OK", "folder", str(folder_of(run)))]


def folder_of(run: RunSpec) -> Path:
    """Where the run would be; a name that is yet to be made ends with N."""
    trainer = run.trainer
    return root_of(run) / trainer.project_name / (trainer.experiment_name or f"{run.label}-N")


def root_of(run: RunSpec) -> Path:
    """Where the run's folder stands; as it was written where that is in the home of nobody."""
    root = Path(run.trainer.run_root)
    with suppress(RuntimeError):
        root = root.expanduser()
    return root


def _folder(trainer: Trainer) -> list[str]:
    if unseen := [letter for letter in trainer.run_root if unicodedata.category(letter) in UNSEEN]:
        return [f"trainer.run_root: holds {unseen[0]!a}, which cannot be seen; letters, digits and signs would do"]
    root = Path(trainer.run_root).expanduser().absolute()
    folder = root / trainer.project_name / (trainer.experiment_name or "")
    with suppress(FileNotFoundError, NotADirectoryError):
        folder.stat()  # raises where the name itself is impossible, which exists() does not
    if led := Folder(folder).led_away():
        return [led]
    standing = next(path for path in (folder, *folder.parents) if path.exists())
    if not standing.is_dir():
        return [f"trainer.run_root: {str(standing)!r} is a file; a folder would do"]
    if not os.access(standing, os.W_OK | os.X_OK):
        return [f"trainer.run_root: cannot write to {str(standing)!r}; another folder would do"]
    if trainer.experiment_name and Folder(folder).began():
        named = Path(trainer.run_root) / trainer.project_name / trainer.experiment_name
        again = f"{trainer.experiment_name}-2, or rlrun train --resume {named},"
        return [f"trainer.experiment_name: {named} is there already; {again} would do"]
    return []


def hardware(run: RunSpec, here: bool) -> Iterator[CheckResult]:
    """This machine against what the run asks for: it must fit where the run is to start `here`."""
    asked, found, level = run.taken, machine.query_gpus(), level_of(here)
    if address := run.cluster.elsewhere:
        yield from nodes(address, asked.nnodes, run.cluster.each_node(asked), level)
        return
    if asked.is_cpu:
        yield CheckResult("OK", "hardware", f"{_processes(asked)} on {machine.cpu_count()} CPU cores")
        return
    gpus = found.found[: len(machine.visible_gpus())]
    if found.trouble:
        yield CheckResult(
            level, "hardware", f"the GPUs' driver does not answer: {found.trouble}", "rlrun doctor tells more"
        )
    elif not gpus:
        yield CheckResult(
            level, "hardware.device", f"{asked.device} needs CUDA, and this machine has no GPU",
            "a machine with GPUs, or hardware=cpu and no other word of hardware, would do",
        )  # fmt: skip
    elif len(gpus) < asked.n_gpus_per_node:
        yield _too_few(run, len(gpus), level)
    else:
        names = ", ".join(sorted({gpu.name for gpu in gpus}))
        yield CheckResult("OK", "hardware", f"{asked.n_gpus_per_node} of {len(gpus)} GPUs here ({names})")
        busy = [gpu for gpu in gpus if gpu.free_bytes < IDLE * gpu.memory_bytes]
        if len(gpus) - len(busy) < asked.n_gpus_per_node:
            told = ", ".join(f"{gpu.index} has {gpu.free_bytes / 2**30:.0f} GiB free" for gpu in busy)
            yield CheckResult(
                "WARN", "hardware", f"others hold memory of GPUs: {told}", "CUDA_VISIBLE_DEVICES of idle ones"
            )


def _too_few(run: RunSpec, there: int, level: Level) -> CheckResult:
    got, own = run.hardware.n_gpus_per_node, run.taken.n_gpus_per_node - run.hardware.n_gpus_per_node
    if not own:
        message = f"got {got}, and this machine has {there} GPUs"
        return CheckResult(level, "hardware.n_gpus_per_node", message, f"{there} would do")
    message = f"got {got}, {own} more are sampler.n_gpus, and this machine has {there} GPUs"
    would_do = f"{there - own}, or sampler.n_gpus=0," if there > own else "sampler.n_gpus=0 and fewer"
    return CheckResult(level, "hardware.n_gpus_per_node", message, f"{would_do} would do")


def nodes(address: str, count: int, each: Mapping[str, float], level: Level) -> Iterator[CheckResult]:
    """The cluster at `address` against the nodes that a run asks for. What others hold of it is waited for."""
    try:
        found = reach(address)
        with closing(Bridge(found.address, found.env)) as bridge:
            there = [node for node in bridge.nodes if node.alive]
    except Problems as problems:
        yield from from_problems(problems.problems, level)
        return
    able = [node for node in there if node.cpus >= each.get("CPU", 0) and node.gpus >= each.get("GPU", 0)]
    asked = f"{count} {'node' if count == 1 else 'nodes'} with {_counts(each.get('CPU', 0), each.get('GPU', 0))}"
    if len(able) >= count:
        yield CheckResult("OK", "hardware", f"{asked} of {len(there)} at {address}")
        return
    offers = "; ".join(f"{node.address} has {_counts(node.cpus, node.gpus)}" for node in there)
    message = f"{asked} asked for, and the cluster at {address} has {len(able)}: {offers or 'no node'}"
    yield CheckResult(
        "WARN", "hardware", message, "rlrun cluster join on more machines while the run waits for them would do"
    )


def _counts(cpus: float, gpus: float) -> str:
    told = [f"{count:g} {name}{'' if count == 1 else 's'}" for count, name in ((cpus, "CPU"), (gpus, "GPU")) if count]
    return " and ".join(told) or "nothing"


def _processes(asked: Hardware) -> str:
    return "one process" if asked.processes == 1 else f"{asked.processes} processes"


def level_of(here: bool) -> Level:
    """How bad it is that something is not on this machine now: bad where the run is to start here."""
    return "FAIL" if here else "WARN"


def around(run: RunSpec, here: bool) -> list[CheckResult]:
    """Ports, servers and programs that the run would meet."""
    of_rewards = (line for leaf in run.reward.leaves() for line in leaf.missing_requirements())
    lines = [*run.cluster.missing_requirements(run.taken), *run.sampler.missing_requirements(), *of_rewards]
    return from_problems(lines, level_of(here))


def versions() -> Iterator[CheckResult]:
    """Python and the installed packages against what rlrun needs; where all is well, one line."""
    found = packages.check()
    yield from (result for result in found if result.level != "OK" or result.subject == "packages")
