"""An all-reduce by real processes: whether the sums are right, how fast it is, and who did not arrive."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from pydantic.dataclasses import dataclass

from launcher.core.check_result import CheckResult
from launcher.tools.doctor.loading import last_words

MODULE = "launcher.engines.torch.allreduce"
PATIENCE_S, OTHERS_S = 30.0, 20.0
"""Seconds: how long all of it may take, and how long a process waits for the others before it reports that itself."""
STEPS = ("", "loaded", "joined", "done")
STUCK = {
    "": "was still loading torch",
    "loaded": "did not meet the others",
    "joined": "met the others and stopped within a sum",
    "done": "did not end",
}
SUBJECT = "all-reduce"


@dataclass(frozen=True)
class Ranks:
    """The processes that one machine starts of an all-reduce."""

    first: int
    count: int
    world: int
    backend: str
    address: str
    port: int
    """Where rank 0 listens."""
    interface: str
    """Which network they meet by; empty: the one that the backend takes."""


@dataclass(frozen=True)
class Sum:
    """One size that was added."""

    bytes: int
    seconds: float
    right: bool


@dataclass(frozen=True)
class RankResult:
    """What one process said until it ended, or was ended."""

    rank: int
    at: str = ""
    """The last of `STEPS` that it reached."""
    sums: tuple[Sum, ...] = ()
    code: int | None = None
    """None: it did not end by itself."""
    why: str = ""


def run(ranks: Ranks, patience_s: float = PATIENCE_S) -> list[RankResult]:
    """Start them, wait at most `patience_s`, and leave none behind."""
    words = [sys.executable, "-m", MODULE, ranks.backend, str(min(OTHERS_S, patience_s))]

    def run_rank(local: int) -> RankResult:
        env = _environment(ranks, local)
        try:
            ran = subprocess.run(words, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=patience_s)
        except subprocess.TimeoutExpired as late:
            return _rank_result(ranks.first + local, None, late.stdout or b"", b"")
        return _rank_result(ranks.first + local, ran.returncode, ran.stdout, ran.stderr)

    with ThreadPoolExecutor(ranks.count) as pool:
        return list(pool.map(run_rank, range(ranks.count)))


def _environment(ranks: Ranks, local: int) -> dict[str, str]:
    networks = {name: ranks.interface for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if ranks.interface}
    return {"OMP_NUM_THREADS": "1", **networks, **os.environ, "MASTER_ADDR": ranks.address,
            "MASTER_PORT": str(ranks.port), "RANK": str(ranks.first + local), "WORLD_SIZE": str(ranks.world),
            "LOCAL_RANK": str(local)}  # fmt: skip


def _rank_result(rank: int, code: int | None, out: bytes, err: bytes) -> RankResult:
    at, sums = "", list[Sum]()
    for line in out.decode("utf-8", "replace").splitlines():
        try:
            node = json.loads(line) if line.startswith('{"') else {}
        except ValueError:  # cut off, or a library's
            continue
        at = node.get("at", at)
        if "bytes" in node:
            sums.append(Sum(**node))
    return RankResult(rank, at, tuple(sums), code, last_words(err.decode("utf-8", "replace"), code) if code else "")


def check_ranks(results: Sequence[RankResult], whose: Mapping[int, str], over: str) -> CheckResult:
    """One line of all ranks; `whose` says where each runs, `over` what they met by."""
    names = {one.rank: f"rank {one.rank}" + (f" ({whose[one.rank]})" if one.rank in whose else "") for one in results}
    wrong = [names[one.rank] for one in results if not all(sum_.right for sum_ in one.sums)]
    if wrong:
        message = f"{', '.join(wrong)} got a wrong sum by {over}"
        return CheckResult("FAIL", SUBJECT, message, "try another card or cable, or NCCL_P2P_DISABLE=1")
    unfinished = [one for one in results if one.at != "done" or one.code]
    if not unfinished:
        count, last = len(results), [one.sums[-1] for one in results]
        bus = 2 * (count - 1) / count * last[0].bytes / max(sum_.seconds for sum_ in last) / 1e9
        message = f"{count} processes by {over}, right at {last[0].bytes >> 20} MB; bus {bus:.2f} GB/s"
        return CheckResult("OK", SUBJECT, message)
    return _name_the_late(results, unfinished, names, over)


def _name_the_late(
    results: Sequence[RankResult], unfinished: Sequence[RankResult], names: Mapping[int, str], over: str
) -> CheckResult:
    def progress(one: RankResult) -> tuple[int, int, bool]:
        """The others only waited for those that got least far. Of equals, one that never spoke again waited for nobody,
        and one that ended with an error did."""
        return STEPS.index(one.at), len(one.sums), one.code is not None

    late = [one for one in unfinished if progress(one) == min(map(progress, unfinished))]
    who = ", ".join(names[one.rank] for one in late)
    if len(late) == len(results) > 1:
        who = f"all {len(results)} processes"
    why = next((f" ({one.why})" for one in late if one.why), "")
    fix = "set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to the network between them, and open its ports"
    if not late[0].at:
        fix = "look at that process's torch, and at the load there"
    return CheckResult("FAIL", SUBJECT, f"{who} did not finish by {over}: {STUCK[late[0].at]}{why}", fix)
