"""One process of an environment: `python -m launcher.environments.worker DESCRIPTOR`.

It receives the environment's settings through the socket, says that it is ready, and then runs many sessions at once:
methods in threads, and what waits on a loop. A line of life is sent every second, so that one that hangs is known.
What is printed is discarded. It dies with the process that started it.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import resource
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from itertools import count
from typing import Any

from launcher.core.classes import CODE_DIR, add_code_dir
from launcher.core.settings import Chosen, adapter
from launcher.core.user_code import CallFailure, Raised, caught, caught_awaiting
from launcher.environments.calling import Refused, TimedOut, failure_of, own_code
from launcher.environments.tools import fault_of, text_of
from launcher.rewards.worker.frames import receive, send
from launcher.rewards.worker.loop import die_with_parent
from launcher.rewards.worker.python import finite_numbers, number_of
from launcher.spec.data import Row
from launcher.spec.environment import TRUSTED, Environment, Final, History, Observation, Session, Spoken

ALIVE_S = 1.0  # between two lines of life
FULL = 75  # exit code where too many tools that took too long have not ended
COLLECTED = 100  # sessions, after which their garbage is collected: by itself that comes late where much is loaded
MOST_MESSAGES = 64  # of one observation
MOST_BYTES = 4 * 2**20  # of all that an environment says at once


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.set_inheritable(False)
    die_with_parent()
    add_code_dir(os.environ.get(CODE_DIR))
    node = receive(channel)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    made = caught(partial(_load, node))
    if isinstance(made, Raised):
        send(channel, {"fault": failure_of(made.error).reason})
        return
    environment, schemas = made
    size = int(environment.memory_gb * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
    send(channel, {"tools": schemas})
    asyncio.run(_SessionLoop(channel, environment).serve())


def _load(node: Any) -> tuple[Environment, list[Mapping[str, Any]]]:
    environment: Environment = adapter(Chosen[Environment]).validate_python(node)
    session = environment.session()
    schemas = session.schemas()
    caught(session.close)  # what it frees may be there from reset on
    return environment, schemas


class _SessionLoop:
    def __init__(self, channel: socket.socket, environment: Environment) -> None:
        self.channel, self.environment = channel, environment
        self.own_code = own_code(environment.concurrency)
        self.running, self.ended = dict[int, tuple[Session, History]](), count(1)

    async def serve(self) -> None:
        loop, tasks = asyncio.get_running_loop(), set[asyncio.Task[None]]()

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
        while True:
            send(self.channel, {})
            await asyncio.sleep(ALIVE_S)

    async def _answer(self, frame: dict[str, Any]) -> None:
        found = await caught_awaiting(partial(self._response, frame))
        if isinstance(found, Raised):
            why = failure_of(found.error).reason
            found = asdict(Final(fault=why) if frame["do"] == "end" else fault_of(CallFailure(why)))
        send(self.channel, {"id": frame["id"], "value": found})
        if self.own_code.full:
            os._exit(FULL)

    async def _response(self, frame: dict[str, Any]) -> Any:
        """The answer as JSON."""
        do: dict[str, Callable[..., Any]] = {
            "begin": self._begin, "step": self._step, "end": self._end, "starve": self._starve,
        }  # fmt: skip
        found = await do[frame["do"]](frame)
        value = adapter(type(found)).dump_python(adapter(type(found)).validate_python(asdict(found)), mode="json")
        if (size := len(json.dumps(value, default=str))) > MOST_BYTES:
            raise Refused(f"it gave {size:,} bytes at once; at most {MOST_BYTES:,} are taken")
        return value

    async def _within(self, what: str, function: Callable[..., Any], *args: Any) -> Any:
        """What a method gives. Raises `Refused` with the reason where it fails or takes too long."""
        found = await self.own_code.call(what, self.environment.tool_timeout_s, function, *args)
        if isinstance(found, CallFailure):
            raise Refused(found.reason)
        return found

    async def _starve(self, frame: dict[str, Any]) -> Observation:
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        return Observation()

    async def _begin(self, frame: dict[str, Any]) -> Observation:
        row: Row = adapter(Row).validate_python(frame["row"])
        session = await self._within("a new session", self.environment.session)
        self.running[frame["session"]] = session, History(row)
        await self._within("reset", session.reset, row)
        return Observation(state=session.state)

    async def _step(self, frame: dict[str, Any]) -> Observation:
        session, history = self.running[frame["session"]]
        spoken: Spoken = adapter(Spoken).validate_python(frame["spoken"])
        try:
            found = await asyncio.wait_for(session.step(history, spoken), self.environment.timeout_s)
        except TimeoutError:
            return fault_of(TimedOut(f"step took longer than {self.environment.timeout_s:g} s"))
        if not isinstance(found, Observation):
            raise Refused(f"step gave a {type(found).__name__}; expected an Observation")
        reward, wrong = number_of(found.reward)
        if wrong:
            raise Refused(f"the reward of the turn {wrong}")
        most = self.environment.max_result_characters
        messages = tuple(replace(each, content=text_of(each.content, most)) for each in found.messages[:MOST_MESSAGES])
        if not messages and not found.ended:
            raise Refused("step gave no message, and the episode has not ended; use Observation(ended='finished')")
        found = replace(found, messages=messages, reward=reward)
        history.turns.append((spoken, found))
        return found

    async def _end(self, frame: dict[str, Any]) -> Final:
        session, history = self.running.pop(frame["session"])
        history.outcome = outcome = frame["outcome"]
        try:
            found = await self._within("reward", session.reward, history) if TRUSTED[outcome] else Final(fault=outcome)
            final = found if isinstance(found, Final) else Final(found, facts=session.facts)
        finally:
            await self._within("close", session.close)
            if next(self.ended) % COLLECTED == 0:
                gc.collect()
        final = replace(final, parts=finite_numbers(final.parts), facts=finite_numbers(final.facts))
        if final.reward is None:
            return final
        reward, wrong = number_of(final.reward)
        return replace(final, reward=None, fault=f"the reward {wrong}") if wrong else replace(final, reward=reward)


if __name__ == "__main__":
    main()
