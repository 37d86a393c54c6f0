"""Calls user code from an event loop: functions in threads, coroutines on the loop, each with a time limit.

Exceptions are returned as values. A function that never ends keeps its thread; `OwnCode.full` tells when too many do.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from launcher.core.user_code import CallFailure, Raised, caught, caught_awaiting, shorten, try_call

MISTAKES = (ValueError, LookupError, ArithmeticError, FileNotFoundError, FileExistsError, IsADirectoryError,
            NotADirectoryError, PermissionError)  # fmt: skip
"""Errors of a tool that count as the policy's mistake. Others, such as a refused connection, are faults."""


@dataclass(frozen=True)
class Mistake(CallFailure):
    """The tool rejects its arguments."""

    text: str = ""
    """The reason as the policy reads it, without the place in the code."""


class Refused(ValueError):
    """An error of rlrun about user code: shown without exception type and place in the code."""


@dataclass(frozen=True)
class TimedOut(CallFailure):
    """The call exceeded its time limit."""


class OwnCode:
    """Runs at most `most` calls at a time; the others wait, which does not count towards their time limit."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.free, self.threads = asyncio.Semaphore(most), ThreadPoolExecutor(2 * most)
        self.stuck = set[Any]()
        """Calls that exceeded their limit and still run."""

    @property
    def full(self) -> bool:
        """Whether so many calls are stuck that new ones may get no thread."""
        return len(self.stuck) >= self.most

    async def call(self, what: str, timeout_s: float, function: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """The result of `function`, awaited where needed, or a `CallFailure`; messages call it `what`."""
        async with self.free:
            future: Any = self.threads.submit(_call_in_thread, partial(function, *args, **named))
            result = await self._wait_for(what, timeout_s, future)
            if inspect.isawaitable(result):
                result = await self._wait_for(what, timeout_s, asyncio.ensure_future(_await_value(result)))
            return result

    async def _wait_for(self, what: str, timeout_s: float, future: Any) -> Any:
        running = asyncio.wrap_future(future)
        done, _ = await asyncio.wait({running}, timeout=timeout_s)
        if done:
            return running.result()
        self.stuck.add(future)
        future.add_done_callback(self.stuck.discard)
        future.cancel()  # ends no running thread, and a coroutine may ignore it
        return TimedOut(f"{what} took longer than {timeout_s:g} s")


def _call_in_thread(function: Callable[[], Any]) -> Any:
    me = os.getpid()
    return _result_or_failure(me, caught(function))


async def _await_value(awaitable: Any) -> Any:
    me = os.getpid()
    return _result_or_failure(me, await caught_awaiting(lambda: awaitable))


def _result_or_failure(pid: int, result: Any) -> Any:
    """The result, or the failure. A process that the code has forked returns here, too, and is ended."""
    if os.getpid() != pid:
        os._exit(0)
    return failure_of(result.error) if isinstance(result, Raised) else result


def failure_of(error: BaseException) -> CallFailure:
    """An exception as a failure, with the line of user code that raised it; a `Mistake` for `MISTAKES`."""
    if isinstance(error, Refused):
        return CallFailure(shorten(str(error)))
    failure = try_call(partial(_raise, error))
    assert isinstance(failure, CallFailure)
    if not isinstance(error, MISTAKES):
        return failure
    text = try_call(lambda: shorten(f"{type(error).__name__}: {' '.join(str(error).split())}"))
    return Mistake(failure.reason, failure.kind, text if isinstance(text, str) else text.reason)


def _raise(error: BaseException) -> None:
    raise error


@cache
def own_code(most: int) -> OwnCode:
    """The instance of this process."""
    return OwnCode(most)
