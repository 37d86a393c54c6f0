"""One process of an environment: `python -m launcher.environments.worker DESCRIPTOR`.

It receives the environment's settings through the socket, says that it is ready, and then runs many sessions at once:
methods that wait on a loop, others in threads. A line of life is sent every second, so that one that hangs is known.
What is printed is discarded. It dies with the process that started it.
"""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from launcher.core.classes import CODE_DIR, add_code_dir
from launcher.core.settings import Chosen, adapter
from launcher.core.user_code import CallFailure, try_call
from launcher.environments.tools import ABANDONED, run_off_loop, text_of
from launcher.rewards.worker.frames import receive, send
from launcher.rewards.worker.loop import die_with_parent
from launcher.spec.data import Row
from launcher.spec.environment import Environment, Final, History, Observation, Session, Spoken
from launcher.spec.reward import to_score

ALIVE_S = 1.0  # between two lines of life
TIRED = 75  # exit code where half of its threads wait for tools that took too long
MOST_MESSAGES = 64  # of one observation


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.set_inheritable(False)
    die_with_parent()
    add_code_dir(os.environ.get(CODE_DIR))
    node = receive(channel)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    made = try_call(partial(_load, node))
    if isinstance(made, CallFailure):
        send(channel, {"fault": made.reason})
        return
    environment, schemas = made
    size = int(environment.memory_gb * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
    send(channel, {"tools": schemas})
    asyncio.run(_SessionLoop(channel, environment).serve())


def _load(node: Any) -> tuple[Environment, list[Mapping[str, Any]]]:
    environment: Environment = adapter(Chosen[Environment]).validate_python(node)
    return environment, environment.session().schemas()


class _SessionLoop:
    def __init__(self, channel: socket.socket, environment: Environment) -> None:
        self.channel, self.environment = channel, environment
        self.running = dict[int, tuple[Session, History]]()
        self.lock = threading.Lock()

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(self.environment.concurrency))
        tasks, ended = set[asyncio.Task[None]](), asyncio.Event()

        def begin(frame: Any) -> None:
            task = asyncio.ensure_future(self._answer(frame))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        def read() -> None:
            try:
                while True:
                    loop.call_soon_threadsafe(begin, receive(self.channel))
            except (EOFError, OSError):
                os._exit(0)  # whoever asks is gone; threads may never end

        threading.Thread(target=read, daemon=True).start()
        while not ended.is_set():
            self._send({})
            await asyncio.sleep(ALIVE_S)

    def _send(self, frame: dict[str, Any]) -> None:
        with self.lock:
            send(self.channel, frame)

    async def _answer(self, frame: dict[str, Any]) -> None:
        do: dict[str, Callable[..., Any]] = {"begin": self._begin, "step": self._step, "end": self._end}
        try:
            found = await do[frame["do"]](frame)
        except Exception as error:  # noqa: BLE001  a person's own code may raise anything
            found = self._fault(frame, _reason(error))
        self._send({"id": frame["id"], "value": asdict(found)})
        if len(ABANDONED) > self.environment.concurrency // 2:
            os._exit(TIRED)

    def _fault(self, frame: dict[str, Any], why: str) -> Observation | Final:
        return Final(fault=why) if frame["do"] == "end" else Observation(ended="environment-fault", reason=why)

    async def _within(self, what: str, function: Callable[..., Any], *args: Any) -> Any:
        """What a method gives. Raises `RuntimeError` with the reason where it fails or takes too long."""
        most = self.environment.tool_timeout_s
        try:
            found = await asyncio.wait_for(run_off_loop(function, *args), most)
        except TimeoutError:
            raise RuntimeError(f"{what} took longer than {most:g} s") from None
        if isinstance(found, CallFailure):
            raise RuntimeError(found.reason)
        return found

    async def _begin(self, frame: dict[str, Any]) -> Observation:
        row: Row = adapter(Row).validate_python(frame["row"])
        session = await self._within("a session", self.environment.session)
        self.running[frame["session"]] = session, History(row)
        await self._within("reset", session.reset, row)
        return Observation(state=session.state)

    async def _step(self, frame: dict[str, Any]) -> Observation:
        session, history = self.running[frame["session"]]
        spoken: Spoken = adapter(Spoken).validate_python(frame["spoken"])
        found = await asyncio.wait_for(session.step(history, spoken), self.environment.timeout_s)
        if not isinstance(found, Observation):
            raise TypeError(f"step gave a {type(found).__name__}; expected an Observation")
        reward, wrong = to_score(found.reward)
        if wrong:
            raise ValueError(f"the reward of the turn {wrong}")
        most = self.environment.max_result_characters
        messages = tuple(replace(each, content=text_of(each.content, most)) for each in found.messages[:MOST_MESSAGES])
        if not messages and not found.ended:
            raise ValueError("step gave no message, and the episode has not ended; use Observation(ended='finished')")
        found = replace(found, messages=messages, reward=reward)
        history.turns.append((spoken, found))
        return found

    async def _end(self, frame: dict[str, Any]) -> Final:
        session, history = self.running.pop(frame["session"])
        history.outcome = frame["outcome"]
        try:
            found = await self._within("reward", session.reward, history)
        finally:
            await self._within("close", session.close)
        final = found if isinstance(found, Final) else Final(found)
        if final.reward is None:
            return final
        reward, wrong = to_score(final.reward)
        return replace(final, reward=None, fault=f"the reward {wrong}") if wrong else replace(final, reward=reward)


def _reason(error: Exception) -> str:
    found = try_call(partial(_raise, error))
    return found.reason.removeprefix("RuntimeError: ") if isinstance(found, CallFailure) else ""


def _raise(error: Exception) -> None:
    raise error


if __name__ == "__main__":
    main()
