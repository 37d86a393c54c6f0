"""Why an attempt ended: the table of causes, and who of several processes is the culprit."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from launcher.core.events import MARK, CrashCause, Crashed, Step, to_line
from launcher.monitor import failure
from launcher.monitor.failure import Cause, ProcessExit, diagnose, read_exit
from launcher.spec.cluster import Failure, first_failure

GLOO = "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.2]:9"
NCCL = (
    "what():  NCCL error: remote process exited or there was a network error, NCCL version 2.27.5",
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
)
TIMEOUT = (
    "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, OpType=BROADCAST) ran for 1800011 ms"
)
CUDA = "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB"
INVALID: CrashCause = "configuration"
BAD = "step 9: loss is not finite, 5 steps in a row; use a smaller optim.lr"


def crash(*lines: str, cause: CrashCause = "error") -> Crashed:
    return Crashed(at=1.0, lines=lines, cause=cause)


ALONE: list[tuple[str, int, Crashed | None, tuple[str, ...], int, Cause]] = [
    # what, exit code, its last event, its last lines, processes that the kernel killed, the cause
    ("kill -9", -9, None, (), 0, failure.KILLED),
    ("the kernel took it", -9, None, (), 1, failure.MEMORY),
    ("a bus error is no kill of the kernel's", -7, None, (), 1, failure.KILLED),
    ("an abort says why", -6, None, NCCL, 0, failure.CONNECTION),
    ("an abort after a timeout", -6, None, (TIMEOUT,), 0, failure.CONNECTION),
    ("an abort for memory", -6, None, ("terminate called after throwing 'std::bad_alloc'",), 0, failure.MEMORY),
    ("killed, whatever it had said", -9, None, NCCL, 0, failure.KILLED),
    ("a crash that did not end, and was killed", -9, crash(CUDA), (), 0, failure.GPU_MEMORY),
    ("CUDA's memory", 1, crash(CUDA), (), 0, failure.GPU_MEMORY),
    ("cublas", 1, crash("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED"), (), 0, failure.GPU_MEMORY),
    ("Python's memory", 1, crash("MemoryError"), (), 0, failure.MEMORY),
    ("torch's on a CPU", 1, crash("RuntimeError: DefaultCPUAllocator: can't allocate memory"), (), 0, failure.MEMORY),
    ("the disk", 1, crash("OSError: [Errno 28] No space left on device"), (), 0, failure.DISK),
    ("a quota", 1, crash("OSError: [Errno 122] Disk quota exceeded: 'x'"), (), 0, failure.DISK),
    ("a GPU that broke", 1, crash("RuntimeError: CUDA error: uncorrectable ECC error encountered"), (), 0, failure.GPU),
    ("gloo", 1, crash(GLOO), (), 0, failure.CONNECTION),
    ("nobody met", 1, crash("DistStoreError: Timed out after 601 seconds waiting for clients"), (), 0,
     failure.CONNECTION),
    ("bad steps", 2, crash(BAD, cause="numbers"), (), 0, failure.NUMBERS),
    ("invalid configuration", 2, crash("model.path: no such folder; use another", cause=INVALID), (), 0,
     failure.CONFIGURATION),
    ("configuration, whatever it says", 2, crash("disk: No space left on device", cause=INVALID), (), 0,
     failure.CONFIGURATION),
    ("somebody's code", 1, crash("ValueError: x"), (), 0, failure.CODE),
    ("an end without a word", 3, None, (), 0, failure.CODE),
    ("another program refuses its words", 2, None, ("usage: main_ppo",), 0, failure.CONFIGURATION),
    ("the disk, by its last lines", 1, None, ("x", "OSError: No space left on device", "y"), 0, failure.DISK),
]  # fmt: skip
SAID = {
    "kill -9": "rank 0: killed by SIGKILL, often because memory ran out",
    "the kernel took it": "rank 0: killed by SIGKILL, as the machine's memory ran out",
    "an abort says why": f"rank 0: killed by SIGABRT: {NCCL[1]}",
    "the disk, by its last lines": "rank 0: ended with exit code 1: OSError: No space left on device",
}


@pytest.mark.parametrize(("what", "code", "crashed", "last", "kills", "cause"), ALONE, ids=[row[0] for row in ALONE])
def test_the_cause_of_one_process(
    what: str, code: int, crashed: Crashed | None, last: tuple[str, ...], kills: int, cause: Cause
) -> None:
    verdict = diagnose(ProcessExit(0, code, crashed, last), [], "", kills)
    assert verdict.cause is cause and verdict.why == SAID.get(what, verdict.why)
    assert verdict.rank == 0 and verdict.why.startswith("rank 0: ") and not verdict.why.endswith(": ")


LOST = ProcessExit(0, 1, crash(GLOO))
SEVERAL: list[tuple[str, ProcessExit, list[ProcessExit], Cause, int]] = [
    ("its neighbour ran out of memory", LOST, [ProcessExit(1, None, crash(CUDA))], failure.GPU_MEMORY, 1),
    ("its neighbour's code failed", LOST,
     [ProcessExit(1, None, None, (GLOO,)), ProcessExit(2, None, crash("ValueError: x"))], failure.CODE, 2),
    ("its neighbour has", LOST, [ProcessExit(1, None, crash("a: b", cause=INVALID))], failure.CONFIGURATION, 1),
    ("all lost a connection", LOST, [ProcessExit(1, None, crash(GLOO))], failure.CONNECTION, 0),
    ("it failed first itself", ProcessExit(0, 1, crash("ValueError: x")), [ProcessExit(1, None, crash(CUDA))],
     failure.CODE, 0),
    ("it was killed", ProcessExit(1, -9), [LOST], failure.KILLED, 1),
]  # fmt: skip


@pytest.mark.parametrize(
    ("failed", "others", "cause", "rank"), [row[1:] for row in SEVERAL], ids=[r[0] for r in SEVERAL]
)
def test_who_lost_a_connection_is_not_the_culprit(
    failed: ProcessExit, others: list[ProcessExit], cause: Cause, rank: int
) -> None:
    verdict = diagnose(failed, others, "", 0)
    assert (verdict.cause, verdict.rank) == (cause, rank)
    culprit = next(left for left in (failed, *others) if left.rank == rank)
    assert verdict.crash is culprit.crash


def test_a_lost_node_goes_before_what_its_processes_left() -> None:
    verdict = diagnose(LOST, [], "node 10.0.0.2 is gone", 0)
    assert (verdict.cause, verdict.rank, verdict.why) == (failure.NODE, None, "node 10.0.0.2 is gone")
    assert diagnose(None, [], "", 0).cause is failure.NODE
    assert diagnose(None, [], "ray.exceptions.OutOfMemoryError: Task was killed", 0).cause is failure.MEMORY


# ---- what a process left


def test_a_log_is_read_from_its_end(tmp_path: Path) -> None:
    """What is told as an event is no talk: a sample may speak of anything."""
    log = tmp_path / "rank-1.log"
    spoken = MARK + to_line(Step(at=1.0, step=1, metrics={"CUDA out of memory": 1.0}))
    early, late = crash("early"), crash("late")
    lines = ["x" * 2**18, MARK + to_line(early), "talk", spoken, MARK + to_line(late), "Traceback", "ValueError: late"]
    log.write_text("".join(line + "\n" for line in lines))
    left = read_exit(1, -6, log)
    assert left == ProcessExit(1, -6, late, ["talk", "Traceback", "ValueError: late"])
    log.write_text("".join(f"{number}\n" for number in range(500)))
    assert read_exit(1, 0, log).last == [str(number) for number in range(440, 500)]
    odd = crash("ValueError: a\u2028b")
    log.write_text(f"{MARK}{to_line(odd)}\n")
    assert read_exit(1, 1, log) == ProcessExit(1, 1, odd, []), "a text may hold what Python takes for a line's end"
    assert read_exit(2, -9, tmp_path / "none.log") == ProcessExit(2, -9)


# ---- which of several ends is the first


@pytest.mark.parametrize(
    ("found", "rank"),
    [
        ([(0, 1, 5.0), (1, -9, 5.2)], 1),  # the other was looked at first
        ([(0, 1, 5.0), (1, -9, 9.0)], 0),  # ended by us, later
        ([(1, 1, 5.0), (0, 1, 5.0)], 0),
        ([(0, -6, 5.0), (1, -11, 5.3)], 1),  # an abort follows from the other's end
        ([(2, -9, 5.1), (1, -9, 5.0)], 1),
    ],
)
def test_a_kill_outranks_what_follows_from_it(found: list[tuple[int, int, float]], rank: int) -> None:
    first = first_failure([Failure(*each) for each in found])
    assert first and first.rank == rank


def test_nothing_failed() -> None:
    assert first_failure([]) is None
    assert {signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS} <= set(failure.KILLS)
