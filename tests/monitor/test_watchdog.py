"""When silence is worth a word, and whom it names. No clock and no process: times and stacks are given."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.core.events import Alert, Event, Loaded, Phase, Restarted, Saved, Started, Step
from launcher.core.state import RunState, fold
from launcher.monitor import stall
from launcher.monitor.stall import UNKNOWN_S, StallDetector, stalled
from launcher.spec.cluster import Stack

BEGUN: list[Event] = [
    Started(at=0.0, run="p/a", algorithm="GRPO", processes=2),
    Phase(at=0.0, name="loading"),
    Loaded(at=20.0, rows=8, refused=0, val_rows=0, val_refused=0, steps_per_epoch=4, steps=99),
    Phase(at=20.0, name="rollout"),
]


def steps(last: int, took: float, begin: float = 20.0) -> list[Event]:
    """`last` steps of `took` seconds each."""
    return [Step(at=begin + took * number, step=number, metrics={}) for number in range(1, last + 1)]


def watch(before: list[Event]) -> tuple[StallDetector, RunState]:
    """A first attempt that has told `before`, on a clock of its own that then stands at 1000."""
    made = StallDetector(2.0, 8.0, [], before[0].at if before else 1000.0)
    for event in before:
        made.hear([event], event.at)
    if before:
        made.hear([Alert(at=1000.0, step=0, text="")], 1000.0)
    return made, fold(before)


def silent(made: StallDetector, state: RunState, begin: float, seconds: float) -> list[tuple[float, str]]:
    """Looks every half second; when something was said, and what."""
    looks = [begin + 0.5 * number for number in range(1, int(2 * seconds) + 1)]
    return [(now - begin, why) for now in looks if (why := made.stalls(state, now))]


TRAINED = [*BEGUN, *steps(5, 3.0)]
SAVED: list[Event] = [Phase(at=35.0, name="saving"), Saved(at=65.0, step=5, path="c")]
LIMITS: list[tuple[str, list[Event], float]] = [
    # what has been told, seconds of silence before a word
    ("steps of 3 s", TRAINED, 2 * 3.0 + 8.0),
    ("steps of 3 s, one of them validated", [*TRAINED, Phase(at=35.0, name="validating"), *steps(1, 9.0, 35.0)], 14.0),
    ("loading, never seen", [], UNKNOWN_S),
    ("the first step", BEGUN, UNKNOWN_S),
    ("the first checkpoint", [*TRAINED, SAVED[0]], UNKNOWN_S),
    ("the second checkpoint, after one of 30 s", [*TRAINED, *SAVED, Phase(at=70.0, name="saving")], 2 * 30.0 + 8.0),
    ("the first validation", [*TRAINED, Phase(at=35.0, name="validating")], UNKNOWN_S),
    ("a pause between two attempts is no step", [*TRAINED, *steps(9, 3.0, 5000.0)], 14.0),
]  # fmt: skip


@pytest.mark.parametrize(("told", "limit"), [row[1:] for row in LIMITS], ids=[row[0] for row in LIMITS])
def test_how_long_it_may_be_silent(told: list[Event], limit: float) -> None:
    made, state = watch(told)
    ((at, why),) = silent(made, state, 1000.0, limit + 700.0)  # once, however long it lasts
    assert limit < at <= limit + 1.0
    assert f"nothing for {at:.0f} s in phase " in why


@pytest.mark.parametrize(
    ("told", "stopped_at", "named_at"),
    [
        ([*TRAINED, Phase(at=35.0, name="validating")], 0.0, 8.5),  # the first validation
        ([], 0.0, 8.5),  # loading
        (BEGUN, 20.0, 25.5),  # the first step
        (BEGUN, 100.0, 127.5),  # less than twice as late, and the grace
        (TRAINED, 0.0, 14.5),  # whose steps are known: no process is asked before
    ],
)
def test_a_stopped_process_is_named_where_no_duration_is_known(
    told: list[Event], stopped_at: float, named_at: float
) -> None:
    (made, state), asked = watch(told), []

    def stopped(at: float) -> bool:
        asked.append(at)
        return at >= stopped_at

    looks = [0.5 * number for number in range(1, 400)]
    named = [at for at in looks if made.stalls(state, 1000.0 + at, lambda at=at: stopped(at))]
    assert named == [named_at] and len(asked) <= 4


def test_an_attempt_knows_what_those_before_it_took() -> None:
    before = [*TRAINED, *SAVED, Restarted(at=900.0, step=5, attempt=2, cause="killed", why="")]
    made, state = StallDetector(2.0, 8.0, before, 1000.0), fold(before)
    ((at, why),) = silent(made, state, 1000.0, 100.0)
    assert 48.0 < at <= 49.0 and why == "nothing for 48 s in phase loading, which took 20 s before"
    made = StallDetector(2.0, 8.0, before, 1000.0)
    made.hear([Phase(at=0.0, name="saving")], 1001.0)
    assert [at for at, _ in silent(made, state, 1001.0, 100.0)] == [68.5]
    made.hear([Step(at=0.0, step=6, metrics={})], 1110.0)
    assert [at for at, _ in silent(made, state, 1110.0, 100.0)] == [14.5]


def test_anything_that_is_told_ends_the_silence() -> None:
    made, state = watch(TRAINED)
    assert silent(made, state, 1000.0, 14.0) == []
    assert made.hear([Alert(at=0.0, step=5, text="")], 1014.4) is None, "it was never said to stand still"
    assert len(silent(made, state, 1014.4, 40.0)) == 1
    assert made.hear([Alert(at=0.0, step=5, text="")], 1054.9) == pytest.approx(40.5), "seconds of the stall"
    assert made.hear([Alert(at=0.0, step=5, text="")], 1055.0) is None, "once"
    assert len(silent(made, state, 1055.0, 15.0)) == 1, "and the next time is said again"


def test_what_held_us_up_is_not_held_against_others() -> None:
    """A launcher that was stopped itself, or a machine that slept."""
    made, state = watch(TRAINED)
    assert made.stalls(state, 5000.0) == ""
    assert [at for at, _ in silent(made, state, 5000.0, 20.0)] == [13.5]


# ---- who

RUNS, WAITS = "rewards/math.py", "torch/distributed/distributed_c10d.py"


def stack(rank: int, state: str = "S", at: str = WAITS, answers: bool = True) -> Stack:
    """As faulthandler writes it: the innermost frame first, the main thread last."""
    frames = [f'  File "/lib/{at}", line 7 in f', '  File "/lib/engines/torch/loop.py", line 9 in go']
    other = ["Thread 0x1 (most recent call first):", '  File "/lib/threading.py", line 1 in run', ""]
    main = ["Current thread 0x2 (most recent call first):", *frames, '  File "<frozen runpy>", line 88 in _run_code']
    return Stack(rank, "here", 100 + rank, state, "\n".join([*other, *main, ""]) if answers else "")


def silent_one(rank: int, state: str) -> Stack:
    return stack(rank, state, answers=False)


WHO: list[tuple[str, list[Stack], int | None, str]] = [
    ("stopped", [stack(0), silent_one(1, "T")], 1, "rank 1 (process 101 on here): was stopped, as by SIGSTOP"),
    ("ended", [stack(0), silent_one(1, "X")], 1, "has ended"),
    ("the disk", [stack(0), silent_one(1, "D")], 1, "waits for a disk or a network drive"),
    ("the disk, but it answers", [stack(0), stack(1, "D", RUNS)], 1, ': at math.py:7'),
    ("no answer", [stack(0), silent_one(1, "R")], 1, "rank 1 (process 101 on here): does not answer"),
    ("none answers", [silent_one(0, ""), silent_one(1, "")], None, "no process answers"),
    ("its own code", [stack(0), stack(1, "R", RUNS), stack(2)], 1,
     'rank 1 (process 101 on here): at math.py:7, and the others wait for it'),
    ("the engine's own waiting", [stack(0, at="engines/torch/parallel/world.py"), stack(1, "R", RUNS)], 1, "rank 1 "),
    ("the trainer waits for a sampler", [stack(0, at="engines/torch/rollout/vllm/link.py"), stack(1, "R", RUNS)], 1,
     "rank 1 "),
    ("alone and busy", [stack(0, "R", RUNS)], 0, 'rank 0 (process 100 on here): at math.py:7'),
    ("all wait", [stack(0), stack(1)], None, "every process is busy; rank 0 is at"),
    ("the cluster cannot tell", [], None, "nothing for 20 s"),
]  # fmt: skip


@pytest.mark.parametrize(("stacks", "rank", "output"), [row[1:] for row in WHO], ids=[row[0] for row in WHO])
def test_who_is_named(stacks: list[Stack], rank: int | None, output: str) -> None:
    told = stalled("nothing for 20 s", stacks, RunState(step=7))
    assert (told.step, told.rank) == (7, rank)
    assert output in told.why and told.why.startswith("nothing for 20 s")


def test_its_stack_is_told_with_the_main_thread_first() -> None:
    told = stalled("", [stack(0), stack(1, "R", RUNS)], RunState())
    first, second = told.stack.split("\n\n")
    assert first.splitlines()[:2] == [
        "Current thread 0x2 (most recent call first):",
        '  File "/lib/rewards/math.py", line 7 in f',
    ]
    assert second.startswith("Thread 0x1")
    assert stalled("", [stack(0), silent_one(1, "T")], RunState()).stack == "", "never another's"
    assert len(stalled("", [stack(0, "R", "x" * 10**5)], RunState()).stack) == 8000


@pytest.mark.parametrize("name", ["engines/torch/parallel/world.py", "engines/torch/rollout/vllm/link.py"])
def test_the_files_in_which_processes_wait_are_there(name: str) -> None:
    assert stall.WAITS.search(name) and (Path(stall.__file__).parents[1] / name).is_file()
