"""Checks the hardware that a run asks for against this machine or cluster, and the services that it needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from launcher.clusters.ray.listing import head_address, is_node, list_nodes
from launcher.config.descriptions import written
from launcher.core import machine
from launcher.core.check_result import CheckResult, Level, from_problems
from launcher.core.problems import Problems
from launcher.preflight.checks.context import Context
from launcher.preflight.checks.memory import value_of
from launcher.spec.hardware import computes_bfloat16
from launcher.spec.run import RunSpec

CROWDED = 4  # processes of one core, each with its own copy of the model
IDLE = 0.9  # part of its memory that is free on an idle GPU


def check(context: Context) -> Iterator[CheckResult]:
    """The hardware, then what cluster, sampler, environment and reward need and is missing."""
    run = context.run
    if address := run.cluster.remote_address:
        yield from _check_nodes(address, run.taken.nnodes, run.cluster.each_node(run.taken), context.missing_level)
    elif run.taken.is_cpu:
        asked, cores = run.taken, machine.cpu_count()
        message = f"{'one process' if asked.processes == 1 else f'{asked.processes} processes'} on {cores} CPU cores"
        if asked.processes_per_node <= CROWDED * cores:
            yield CheckResult("OK", "hardware", message)
        else:
            fix, message = f"use hardware.nproc_per_node={cores}", f"{message}: they wait for each other"
            yield CheckResult("WARN", "hardware.nproc_per_node", message, fix)
    else:
        yield from _check_gpus(run, context.missing_level)
    if not context.reward_problems:
        missing = [*run.cluster.missing_requirements(run.taken), *run.sampler.missing_requirements()]
        missing += run.environment.missing_requirements()
        missing += [problem for leaf in run.reward.leaves() for problem in leaf.missing_requirements()]
        yield from from_problems(missing, context.missing_level)


def _check_gpus(run: RunSpec, level: Level) -> Iterator[CheckResult]:
    asked, query = run.taken, machine.query_gpus()
    gpus = query.found[: len(machine.visible_gpus())]
    if query.trouble:
        message = f"the GPUs' driver does not answer: {query.trouble}"
        yield CheckResult(
            level, "hardware", message, "run nvidia-smi, and restart this machine after an update of the driver"
        )
    elif not gpus:
        fix = "use a machine with GPUs, or hardware=cpu and no other hardware setting"
        message = f"{asked.device} needs CUDA, and this machine has no GPU"
        yield CheckResult(level, "hardware.device", message, fix)
    elif len(gpus) < asked.n_gpus_per_node:
        yield _too_few(run, len(gpus), level)
    else:
        names = ", ".join(sorted({gpu.name for gpu in gpus}))
        yield CheckResult("OK", "hardware", f"{asked.n_gpus_per_node} of {len(gpus)} GPUs here ({names})")
        emulated = not all(computes_bfloat16(gpu.name) for gpu in gpus)
        for name, value, other in (("model.dtype", "bfloat16", "float32"), ("engine.mixed_precision", True, "false")):
            if emulated and value_of(run, name) == value:
                message = f"{written(value)}, and {names} computes bfloat16 only by emulation, slowly"
                yield CheckResult("WARN", name, message, f"use {name}={other}")
        busy = [gpu for gpu in gpus if gpu.free_bytes < IDLE * gpu.memory_bytes]
        if len(gpus) - len(busy) < asked.n_gpus_per_node:
            free = ", ".join(f"{gpu.index} has {gpu.free_bytes / 2**30:.0f} GiB free" for gpu in busy)
            message = f"other processes use memory of these GPUs: {free}"
            yield CheckResult("WARN", "hardware", message, "set CUDA_VISIBLE_DEVICES to idle ones")


def _too_few(run: RunSpec, n_here: int, level: Level) -> CheckResult:
    got, extra = run.hardware.n_gpus_per_node, run.taken.n_gpus_per_node - run.hardware.n_gpus_per_node
    if not extra:
        message = f"got {got}, and this machine has {n_here} GPUs"
        return CheckResult(level, "hardware.n_gpus_per_node", message, f"use {n_here}")
    message = f"got {got}, {extra} more are sampler.n_gpus, and this machine has {n_here} GPUs"
    fix = f"use {n_here - extra}, or sampler.n_gpus=0" if n_here > extra else "use sampler.n_gpus=0 and fewer GPUs"
    return CheckResult(level, "hardware.n_gpus_per_node", message, fix)


def _check_nodes(address: str, count: int, each: Mapping[str, float], level: Level) -> Iterator[CheckResult]:
    """Check the cluster at `address` for the nodes that a run asks for, whether or not others use them now."""
    try:
        head = head_address(address)
        alive = [node for node in list_nodes(head) if node.alive]
    except Problems as problems:
        yield from from_problems(problems.problems, level)
        return
    if not is_node():
        yield CheckResult(
            level, "cluster", f"{head}: this machine is not a node of it", f"use ray start --address={head}"
        )
        return
    suitable = [node for node in alive if node.cpus >= each.get("CPU", 0) and node.gpus >= each.get("GPU", 0)]
    asked = f"{count} {'node' if count == 1 else 'nodes'} with {_counts(each.get('CPU', 0), each.get('GPU', 0))}"
    if len(suitable) >= count:
        yield CheckResult("OK", "hardware", f"{asked} of {len(alive)} at {head}")
        return
    offered = "; ".join(f"{node.address} has {_counts(node.cpus, node.gpus)}" for node in alive)
    message = f"the run asks for {asked}, and the cluster at {head} has {len(suitable)}: {offered or 'no node'}"
    yield CheckResult("WARN", "hardware", message, "run ray start on more machines; the run waits for them")


def _counts(cpus: float, gpus: float) -> str:
    kinds = ((cpus, "CPU"), (gpus, "GPU"))
    return " and ".join(f"{count:g} {name}{'' if count == 1 else 's'}" for count, name in kinds if count) or "nothing"
