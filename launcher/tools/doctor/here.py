"""This machine, one thing after another; what is slow runs in processes of its own while the rest is looked at."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from launcher.core import machine
from launcher.core.check_result import CheckResult
from launcher.core.problems import OnMessage
from launcher.preflight.checks import packages
from launcher.tools.doctor import allreduce, gpus, loading, network, places, system


def examined(root: Path, tell: OnMessage) -> Iterator[CheckResult]:
    """Every line about this machine, as soon as it is known. `root` is the folder that holds runs."""
    started = loading.Loading()
    try:
        tell("looking at this machine")
        yield from local_checks(root)
        tell("loading torch")
        loaded = started.ended()
    finally:
        started.end()
    if isinstance(loaded, CheckResult):
        yield loaded
        return
    yield from loading.check(loaded, machine.query_gpus())
    tell("adding numbers by several processes")
    yield all_reduced(loaded)


def local_checks(root: Path, *, for_ray: bool = False) -> Iterator[CheckResult]:
    """All but torch: what costs less than loading it."""
    yield from packages.check_packages()
    yield from gpus.check()
    yield from system.check(for_ray=for_ray)
    yield from places.check(root)
    yield from network.check()
    yield from system.check_secrets()


def all_reduced(loaded: loading.LoadedLibraries) -> CheckResult:
    """By NCCL on all GPUs where there are several, otherwise by gloo between two processes."""
    on_gpus = len(loaded.gpus) > 1 and loaded.nccl is not None
    if not on_gpus and not loaded.gloo:
        return CheckResult("WARN", allreduce.SUBJECT, "this build of torch has no gloo", "use another build of torch")
    count = len(loaded.gpus) if on_gpus else 2
    ranks = allreduce.Ranks(
        first=0, count=count, world=count, backend="nccl" if on_gpus else "gloo", address=machine.LOOPBACK,
        port=machine.free_ports(1)[0], interface=machine.loopback(),
    )  # fmt: skip
    return allreduce.check_ranks(allreduce.run(ranks), {}, "NCCL between GPUs" if on_gpus else "gloo on this CPU")
