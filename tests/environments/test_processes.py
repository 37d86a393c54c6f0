"""Sessions in processes of their own: whatever a person's code does costs its episode alone, and is no score."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.environments import processes
from launcher.environments.processes import Processes
from launcher.environments.python import PythonEnvironment
from launcher.spec.data import Row
from launcher.spec.environment import TRUSTED, Final, Observation, Spoken, ToolCall

WILD = """
import asyncio, ctypes, os, sys, time, urllib.request
from launcher.spec.data import Message
from launcher.spec.environment import Final, Observation

class Lie:
    __str__ = lambda self: 1 / 0
    __class__ = str

CIRCLE = []
CIRCLE.append(CIRCLE)

class Wild:
    closed = 0
    def reset(self, row): exec(row.prompt, globals(), {"self": self})
    def run(self, code: str) -> str:
        exec(code, globals(), there := {"self": self})
        return there.get("given", "done")
    async def wait(self, code: str) -> str:
        exec(code, globals(), there := {"self": self})
        return await there["given"]
    def reward(self, episode): return 0.25
    def close(self): Wild.closed += 1

class Own(Wild):  # whose row says what its step and its reward do
    async def step(self, episode, answer): return await self._step(episode, answer)
    async def _step(self, episode, answer): return Observation(ended="finished")
    def _reward(self, episode): return 0.25
    def reward(self, episode): return self._reward(episode)
"""
LIMITS = {"Wild": (5.0, 60.0), "Own": (2.0, 2.0)}  # seconds of a tool and of a step
ROW = Row("wild:1", "pass")
Start = Callable[..., Processes]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Start]:
    running = list[Processes]()

    def start(text: str = WILD, name: str = "Wild", **settings: Any) -> Processes:
        (tmp_path / "mine.py").write_text(textwrap.dedent(text))
        made = PythonEnvironment(
            path=str(tmp_path / "mine.py"), name=name, **{"workers": 1, "tool_timeout_s": 20.0, **settings}
        )
        running.append(Processes(made))
        return running[-1]

    yield start
    for each in running:
        each.close()


@pytest.fixture(scope="module", params=["Wild"])
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """One for what does not depend on the settings: whatever was done to it before, the next episode goes on."""
    path, tool_s, step_s = tmp_path_factory.mktemp("wild") / "mine.py", *LIMITS[request.param]
    path.write_text(WILD)
    of = PythonEnvironment(
        path=str(path), name=request.param, workers=1, tool_timeout_s=tool_s, timeout_s=step_s, memory_gb=4.0
    )
    made = Processes(of)
    yield made
    made.close()


def spoken(tool: str, **arguments: Any) -> Spoken:
    return Spoken("", "", (ToolCall(tool, arguments, "call00000"),))


def episode(sessions: Processes, *turns: Spoken, row: Row = ROW) -> tuple[list[Observation], Final]:
    """What an episode sees until it ends, and its judgement."""
    number = int(time.monotonic_ns())
    seen = [sessions.begin(number, row).result(60)]
    for turn in turns:
        if seen[-1].ended is None:
            seen.append(sessions.step(number, turn).result(60))
    return seen, sessions.end(number, seen[-1].ended or "turn-limit").result(60)


TOOLS = [  # what a tool does, the tool, how the episode ends (None: it goes on), and what is said of it
    ("pass", "run", None, "done"),
    ("given = {'a': [1, 2]}", "run", None, '{"a": [1, 2]}'),
    ("given = 'x' * 500_000_000", "run", None, "[cut: it has 500,000,000 characters]"),
    ("raise KeyError('soap')", "run", None, "Error: KeyError: 'soap'"),  # of what it was given
    ("open('/none')", "run", None, "Error: FileNotFoundError: [Errno 2]"),
    ("raise RuntimeError('down')", "run", "environment-fault", "RuntimeError: down (mine.py:17: exec("),
    ("urllib.request.urlopen('http://127.0.0.1:9')", "run", "environment-fault", "Connection refused"),
    ("x = 'x' * 10**11", "run", "environment-fault", "MemoryError"),
    ("sys.exit(0)", "run", "environment-fault", "SystemExit: 0"),
    ("time.sleep(600)", "run", "timeout", "tool run took longer than 5 s"),
    ("given = asyncio.sleep(600)", "wait", "timeout", "tool wait took longer than 5 s"),
    ("os._exit(3)", "run", "environment-fault", "the environment's process ended with exit code 3"),
    ("os.kill(os.getpid(), 9)", "run", "environment-fault", "ended with SIGKILL"),
    ("ctypes.string_at(0)", "run", "environment-fault", "ended with SIGSEGV"),
    ("os.closerange(3, 65536)", "run", "environment-fault", "the environment's process"),  # our channel, too
    ("os.fork()", "run", None, "done"),  # both come back; one of them is ours
    ("os.fork(); given = asyncio.sleep(0, 'slept')", "wait", None, "slept"),
    ("given = Lie()", "run", "environment-fault", "its result cannot be written, TypeError"),
    ("given = CIRCLE", "run", "environment-fault", "its result cannot be written, RecursionError"),
    ("given = 10**5000", "run", None, "Error: ValueError: its result cannot be written, ValueError: Exceeds the limit"),
    ("given = {'a': [self]}", "run", "environment-fault", "a Wild has no text of its own; return one, or give it __s"),
    ("given = [time.tzname, {'/a'}]", "run", None, "{'/a'}"),
    ("for _ in range(1000): print('x' * 10**6); os.write(2, b'x' * 10**3)", "run", None, "done"),  # 1 GB
    ("raise asyncio.CancelledError", "run", "environment-fault", "CancelledError (mine.py:17: exec("),
    ("raise asyncio.CancelledError", "wait", "environment-fault", "CancelledError (mine.py:20: exec("),
    ("given = b'raw'", "run", "environment-fault", "its result is bytes; return a text"),
    ("given = chr(0xd83d)", "run", None, "?"),  # half of a character, as in a file's name that is no UTF-8
    ("self.turn_reward = 'much'", "run", "environment-fault", "the reward of the turn gave 'much'; expected a number"),
    ("self.state = 'x' * 10**7", "run", "environment-fault", "bytes at once"),
    ("self.done = 'gave-up'", "run", "gave-up", ""),
    ("self.done = 1", "run", "finished", ""),
    ("self.done = 'the best'", "run", "environment-fault", "done is 'the best'; use True, or one of finished, gave-up"),
]  # fmt: skip


STEPS = [  # what a `step` of one's own gives, how the episode ends, and what is said of it
    ("return Observation((Message('user', 'x' * 10**6),) * 1000)", None, "[cut: it has 1,000,000 characters]"),
    ("return Observation(ended='finished')", "finished", ""),
    ("return Observation()", "environment-fault", "no message, and the episode has not ended"),
    ("return None", "environment-fault", "step gave a NoneType; expected an Observation"),
    ("return Observation(('go on',))", "environment-fault", "AttributeError: 'str' object has no attribute 'content'"),
    ("return Observation(ended='won')", "environment-fault", "ended"),
    ("return Observation(ended='finished', reward=1e30)", "environment-fault", "the reward of the turn gave 1e+30"),
    ("return Observation((Message('user', 'x', {'y': 'x' * 10**8}),))", "environment-fault", "bytes at once"),
    ("raise ValueError('no')", "environment-fault", "ValueError: no"),
    ("await asyncio.sleep(600)", "timeout", "step took longer than 2 s"),
    ("try: await asyncio.sleep(600)\n    finally: await asyncio.sleep(600)", "timeout", "longer than 2 s"),
]


JUDGED = [  # what `reward` gives, the score, and the fault
    ("return 1", 1.0, ""),
    ("return True", 1.0, ""),
    ("return None", None, ""),
    ("return Final(0.5, {'good': 1, 'a b': 2}, {'searches': 3, 'nan': float('nan')})", 0.5, ""),
    ("return 'much'", None, "the reward gave 'much'; expected a number"),
    ("raise ValueError('no')", None, "ValueError: no (mine.py:29: def reward(self, episode): return"),
    ("time.sleep(600)", None, "reward took longer than 2 s"),
    ("os._exit(0)", None, "the environment's process ended with exit code 0"),
]


OWN = {
    "step": "async def step(episode, answer):\n    {}\nself._step = step",
    "reward": "def reward(episode): {}\nself._reward = reward",
}


def scored(ended: str | None) -> float | None:
    return 0.25 if ended is None or TRUSTED[ended] else None


@pytest.mark.parametrize(
    ("shared", "method", "code", "ended", "score", "expected", "faulty"),
    [*(("Wild", tool, code, end, scored(end), expected, not scored(end)) for code, tool, end, expected in TOOLS),
     *(("Own", "step", code, end, scored(end), expected, not scored(end)) for code, end, expected in STEPS),
     *(("Own", "reward", code, "finished", score, fault, bool(fault)) for code, score, fault in JUDGED)],
    indirect=["shared"], ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_whatever_it_does_has_a_type_and_a_reason(
    shared: Processes, method: str, code: str, ended: str | None, score: float | None, expected: str, faulty: bool
) -> None:
    row = Row("wild:1", OWN[method].format(code)) if method in OWN else ROW
    seen, final = episode(shared, spoken("run" if method in OWN else method, code=code), row=row)
    last = seen[-1]
    assert (last.ended, final.reward) == (ended, score), last
    assert expected in " ".join([last.reason, *(message.content for message in last.messages), final.fault])
    assert bool(final.fault) == faulty and len(last.messages) <= 64
    if "Final(" in code:
        assert final.parts == {"good": 1.0} and final.facts == {"searches": 3.0}
    seen, final = episode(shared, spoken("run", code="pass"))
    assert [message.content for message in seen[-1].messages] == ["done"] * (method not in OWN)
    assert final == Final(0.25), "the next episode is as any other"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("class Wild: def", "SyntaxError"),
        ("import nothing_of_this_name", "No module named 'nothing_of_this_name' (mine.py:1: import"),
        ("class Wild:\n    def reset(self, row): raise OSError('full')", "OSError: full (mine.py:2:"),
        ("import os; os._exit(1)", "cannot be loaded: its process ended"),
        ("class Wild:\n    def reset(self, row): import time; time.sleep(600)", "reset took longer than 2 s"),
        ("class Wild:\n    def look(self, at): pass", "tool look: at has no type; use one such as at: str"),
    ],
)
def test_an_episode_that_cannot_begin_is_a_fault(started: Start, text: str, expected: str) -> None:
    (seen,), final = episode(started(text, tool_timeout_s=2.0))
    assert seen.ended == "environment-fault" and expected in seen.reason, seen.reason
    assert final.reward is None and final.fault


def test_any_method_may_be_async_and_close_comes_after_reset(started: Start) -> None:
    text = """
    class Wild:
        async def reset(self, row): self.notes = [row.prompt]
        async def reward(self, episode): return len(self.notes)
        async def close(self): self.notes.clear()
        def note(self, *, model_config: str) -> str:
            async def noted(): return ", ".join(self.notes)
            self.notes.append(model_config)
            return noted()
        @property
        def facts(self): return {"notes": len(self.notes)}
    """
    sessions = started(text)
    for _ in range(2):
        seen, final = episode(sessions, spoken("note", model_config="a"), spoken("note", model_config="b"))
        assert [one.messages[0].content for one in seen[1:]] == ["pass, a", "pass, a, b"]
        assert final == Final(3.0, facts={"notes": 3.0})
    (begun, _), final = episode(started("class Wild:\n    def close(self): self.file.close()\n"), spoken("none"))
    assert begun.ended is None and "'Wild' object has no attribute 'file'" in final.fault


def test_a_process_that_dies_takes_its_episodes_alone_and_is_started_again(started: Start) -> None:
    sessions = started(workers=2)
    for number in range(6):
        assert sessions.begin(number, ROW).result(60).ended is None
    asleep = [sessions.step(number, spoken("wait", code="given = asyncio.sleep(3, 'slept')")) for number in range(2, 6)]
    died = sessions.step(0, spoken("run", code="os._exit(7)"))
    assert died.result(60).ended == "environment-fault"
    found = [each.result(60) for each in asleep]
    assert [each.ended for each in found] == ["environment-fault", None, "environment-fault", None]
    assert {each.reason for each in found if each.ended} == {"the environment's process ended with exit code 7"}
    assert sessions.begin(6, ROW).result(60).ended is None, "in a new process"
    assert sessions.step(2, spoken("run", code="pass")).result(60).ended == "environment-fault", "it is gone"
    ends = [sessions.end(number, "finished").result(60) for number in range(7)]
    assert [end.reward for end in ends] == [None, 0.25] * 3 + [0.25]
    assert not sessions.held and not any(worker.sessions for worker in sessions.workers)


def test_code_that_holds_the_interpreter_is_ended(started: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "SILENT_S", 3.0)
    seen, final = episode(started(), spoken("run", code="ctypes.PyDLL(None).sleep(600)"))
    assert seen[-1].ended == "environment-fault" and "its code holds the interpreter" in seen[-1].reason
    assert final.fault


def test_tools_that_never_end_cost_a_process_once_they_hold_its_threads(started: Start) -> None:
    sessions = started(concurrency=2, tool_timeout_s=1.0)
    ends = [episode(sessions, spoken("run", code="time.sleep(600)"))[0][-1].ended for _ in range(2)]
    assert ends == ["timeout", "timeout"]
    seen, _ = episode(sessions, spoken("run", code="given = os.getpid()"), spoken("run", code="pass"))
    assert [each.ended for each in seen].count("environment-fault") <= 1
    seen, final = episode(sessions, spoken("run", code="pass"))
    assert seen[-1].messages[0].content == "done" and final.reward == 0.25


def test_a_slow_tool_holds_nobody_up_and_waiting_for_a_turn_is_no_time_of_the_tool(started: Start) -> None:
    sessions = started(concurrency=4, tool_timeout_s=4.0)
    for number in range(12):
        assert sessions.begin(number, ROW).result(60).ended is None
    slow = [sessions.step(number, spoken("run", code="time.sleep(1.5)")) for number in range(12)]
    assert [each.result(60).ended for each in slow] == [None] * 12, "4.5 s for the last, of which it has 1.5"
    uses = [use for each in slow for use in each.result().uses]
    assert all(use.seconds >= 1.5 for use in uses)


@pytest.mark.parametrize("episodes", [100, pytest.param(1000, marks=pytest.mark.long)])
def test_many_episodes_leave_nothing(episodes: int, started: Start) -> None:
    sessions = started()
    count = "given = [len(os.listdir('/proc/self/fd')), Wild.closed]"

    def one(number: int) -> str:
        assert sessions.begin(number, ROW).result(60).ended is None
        seen = sessions.step(number, spoken("run", code=count)).result(60)
        sessions.end(number, "finished").result(60)
        return seen.messages[0].content

    before = one(-1)
    for number in range(episodes):
        last = one(number)
    descriptors, closed = (int(each) for each in last.strip("[]").split(","))
    assert descriptors <= int(before.strip("[]").split(",")[0]) + 4
    assert closed == episodes + 1, "and the one that was asked for its tools"
    assert not sessions.held and not sessions.workers[0].waiting


def test_processes_end_with_the_sessions(started: Start, until: Callable[..., None]) -> None:
    sessions = started()
    seen, _ = episode(sessions, spoken("run", code="given = os.fork() or time.sleep(600)"))
    state = Path(f"/proc/{seen[-1].messages[0].content}/stat")
    assert state.exists()
    sessions.close()
    until(lambda: not state.exists() or state.read_text().split()[2] == "Z")  # which its parent does not bury
