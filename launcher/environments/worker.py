"""One process of an environment: `python -m launcher.environments.worker DESCRIPTOR`.

It receives the environment's settings through the socket, reports that it is ready, and then runs many sessions at
once: methods in threads, coroutines on one event loop. It sends a heartbeat every second, so that a hang is noticed.
Its output is discarded. It dies with the process that started it.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import resource
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from itertools import count
from typing import Any

from launcher.core.settings import Chosen, adapter
from launcher.core.user_code import CallFailure, Raised, caught, caught_awaiting
from launcher.environments.calling import Refused, TimedOut, failure_of, own_code
from launcher.environments.tools import fault_of, text_of
from launcher.rewards.worker.frames import receive, send
from launcher.rewards.worker.loop import connect
from launcher.rewards.worker.python import finite_numbers, number_of
from launcher.spec.data import Row
from launcher.spec.environment import TRUSTED, Environment, Final, History, Observation, Session, Spoken

ALIVE_S = 1.0  # between two heartbeats
FULL = 75  # exit code where too many timed out calls still hold their threads
COLLECTED = 100  # sessions between garbage collections: automatic ones are rare where much is loaded
MOST_MESSAGES = 64  # in one observation
MOST_BYTES = 4 * 2**20  # of one response of the environment


def main() -> None:
    channel, node = connect()
    loaded = caught(partial(_load, node))
    if isinstance(loaded, Raised):
        send(channel, {"fault": failure_of(loaded.error).reason})
        return
    environment, schemas = loaded
    memory_bytes = int(environment.memory_gb * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    send(channel, {"tools": schemas})
    asyncio.run(_SessionLoop(channel, environment).serve())


def _load(node: Any) -> tuple[Environment, list[Mapping[str, Any]]]:
    environment: Environment = adapter(Chosen[Environment]).validate_python(node)
    session = environment.session()
    schemas = session.schemas()
    caught(session.close)  # close may free what only reset makes
    return environment, schemas


class _SessionLoop:
    def __init__(self, channel: socket.socket, environment: Environment) -> None:
        self.channel, self.environment = channel, environment
        self.own_code = own_code(environment.concurrency)
        self.running, self.ended = dict[int, tuple[Session, History]](), count(1)

    async def serve(self) -> None:
        loop, tasks = asyncio.get_running_loop(), set[asyncio.Task[None]]()

        def begin(frame: Any) -> None:
            task = asyncio.ensure_future(self._handle_request(frame))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        def read() -> None:
            try:
                while True:
                    loop.call_soon_threadsafe(begin, receive(self.channel))
            except (EOFError, OSError):
                os._exit(0)  # the trainer has ended; threads may never do

        threading.Thread(target=read, daemon=True).start()
        while True:
            send(self.channel, {})
            await asyncio.sleep(ALIVE_S)

    async def _handle_request(self, frame: dict[str, Any]) -> None:
        value = await caught_awaiting(partial(self._response, frame))
        if isinstance(value, Raised):
            reason = failure_of(value.error).reason
            value = asdict(Final(fault=reason) if frame["do"] == "end" else fault_of(CallFailure(reason)))
        send(self.channel, {"id": frame["id"], "value": value})
        if self.own_code.full:
            os._exit(FULL)

    async def _response(self, frame: dict[str, Any]) -> Any:
        """The response to a request, as JSON. Raises `Refused` where it is too large."""
        handlers: dict[str, Callable[..., Any]] = {
            "begin": self._begin, "step": self._step, "end": self._end, "starve": self._starve,
        }  # fmt: skip
        result = await handlers[frame["do"]](frame)
        value = adapter(type(result)).dump_python(adapter(type(result)).validate_python(asdict(result)), mode="json")
        if (size := len(json.dumps(value, default=str))) > MOST_BYTES:
            raise Refused(f"it gave {size:,} bytes at once; at most {MOST_BYTES:,} are taken")
        return value

    async def _call(self, name: str, function: Callable[..., Any], *args: Any) -> Any:
        """The result of a method. Raises `Refused` with the reason where it fails or takes too long."""
        result = await self.own_code.call(name, self.environment.tool_timeout_s, function, *args)
        if isinstance(result, CallFailure):
            raise Refused(result.reason)
        return result

    async def _starve(self, frame: dict[str, Any]) -> Observation:
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        return Observation()

    async def _begin(self, frame: dict[str, Any]) -> Observation:
        row: Row = adapter(Row).validate_python(frame["row"])
        session = await self._call("a new session", self.environment.session)
        self.running[frame["session"]] = session, History(row)
        await self._call("reset", session.reset, row)
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
        reward, problem = number_of(found.reward)
        if problem:
            raise Refused(f"the reward of the turn {problem}")
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
            score = await self._call("reward", session.reward, history) if TRUSTED[outcome] else Final(fault=outcome)
            final = score if isinstance(score, Final) else Final(score, facts=session.facts)
        finally:
            await self._call("close", session.close)
            if next(self.ended) % COLLECTED == 0:
                gc.collect()
        final = replace(final, parts=finite_numbers(final.parts), facts=finite_numbers(final.facts))
        if final.reward is None:
            return final
        reward, problem = number_of(final.reward)
        return replace(final, reward=None, fault=f"the reward {problem}") if problem else replace(final, reward=reward)


if __name__ == "__main__":
    main()
