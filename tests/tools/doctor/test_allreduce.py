"""An all-reduce by real processes, one that a process never comes to, and whom that is laid to."""

from __future__ import annotations

import psutil
import pytest

from launcher.core import machine
from launcher.core.machine import free_ports
from launcher.tools.doctor import allreduce
from launcher.tools.doctor.allreduce import RankResult, Ranks, Sum, check_ranks, run

RIGHT = (Sum(1 << 16, 0.001, True), Sum(1 << 26, 0.1, True))
WRONG = (Sum(1 << 16, 0.001, True), Sum(1 << 26, 0.1, False))


@pytest.mark.parametrize(
    ("results", "level", "word"),
    [
        # 2 (n-1)/n of 64 MB in 0.1 s
        ([RankResult(0, "done", RIGHT, 0), RankResult(1, "done", RIGHT, 0)], "OK",
         "right at 64 MB; bus 0.67 GB/s"),
        ([RankResult(0, "done", RIGHT, 0), RankResult(1, "done", WRONG, 0)], "FAIL", "rank 1 (b) got a wrong sum"),
        # the other waited, gave up and said so; the silent one is the cause
        ([RankResult(0, "loaded", (), 1, "timed out"), RankResult(1, "", (), None)], "FAIL",
         "rank 1 (b) did not finish by gloo: was still loading torch"),
        ([RankResult(0, "loaded", (), 1, "timed out"), RankResult(1, "", (), 1, "ImportError: x")], "FAIL",
         "rank 1 (b) did not finish by gloo: was still loading torch (ImportError: x)"),
        ([RankResult(0, "joined", RIGHT[:1], 1, "timed out"), RankResult(1, "joined", RIGHT[:1], None)], "FAIL",
         "rank 1 (b) did not finish by gloo: met the others and stopped within a sum"),
        # a wall between them: nobody is more to blame than another
        ([RankResult(0, "loaded", (), None), RankResult(1, "loaded", (), None)], "FAIL",
         "all 2 processes did not finish by gloo: did not meet the others"),
        ([RankResult(0, "done", RIGHT, 0), RankResult(1, "done", RIGHT, -11, "it was ended by signal 11")], "FAIL",
         "rank 1 (b) did not finish by gloo: did not end (it was ended by signal 11)"),
    ],
)  # fmt: skip
def test_whom_it_is_laid_to(results: list[RankResult], level: str, word: str) -> None:
    found = check_ranks(results, {0: "a", 1: "b"}, "gloo")
    assert found.level == level and word in found.message, found


def pair(patience_s: float) -> list[RankResult]:
    return run(Ranks(0, 2, 2, "gloo", machine.LOOPBACK, free_ports(1)[0], machine.loopback()), patience_s)


@pytest.mark.slow
def test_two_processes_add_and_late_ones_are_ended() -> None:
    results = pair(120)
    found = check_ranks(results, {}, "gloo")
    assert found.level == "OK" and "2 processes by gloo, right at 64 MB" in found.message, (found, results)
    found = check_ranks(pair(0.2), {}, "gloo")
    assert found.level == "FAIL" and "all 2 processes did not finish by gloo: was still loading" in found.message
    left = [one for one in psutil.Process().children() if allreduce.MODULE in one.cmdline()]
    assert not left, "a process was left behind"
