"""Calls of a person's own code from a loop: each in a thread, what it gives to be awaited on the loop, with a limit.

What it raises is a value. A function that never ends keeps its thread; where too many are kept, `OwnCode.full` says so.
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
"""What a tool raises of what it is given. Anything else, such as a refused connection, is no doing of the policy."""


@dataclass(frozen=True)
class Mistake(CallFailure):
    """It refuses what it was given."""

    text: str = ""
    """The reason as the policy reads it, without the line of the code."""


class Refused(ValueError):
    """Its text is all that is to be read."""


@dataclass(frozen=True)
class TimedOut(CallFailure):
    """It took longer than it may."""


class OwnCode:
    """At most `most` calls at the same time; the others wait, and their time begins when they are called."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.free, self.threads = asyncio.Semaphore(most), ThreadPoolExecutor(2 * most)
        self.stuck = set[Any]()
        """Calls that took too long and have not ended."""

    @property
    def full(self) -> bool:
        """Whether so many calls are stuck that others may find no thread."""
        return len(self.stuck) >= self.most

    async def call(self, what: str, timeout_s: float, function: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """What it gives, or a `CallFailure`."""
        async with self.free:
            kept: Any = self.threads.submit(_called, partial(function, *args, **named))
            found = await self._within(what, timeout_s, kept)
            if inspect.isawaitable(found):
                found = await self._within(what, timeout_s, asyncio.ensure_future(_awaited(found)))
            return found

    async def _within(self, what: str, timeout_s: float, kept: Any) -> Any:
        running = asyncio.wrap_future(kept)
        done, _ = await asyncio.wait({running}, timeout=timeout_s)
        if done:
            return running.result()
        self.stuck.add(kept)
        kept.add_done_callback(self.stuck.discard)
        kept.cancel()  # a thread goes on all the same, and a coroutine may
        return TimedOut(f"{what} took longer than {timeout_s:g} s")


def _called(function: Callable[[], Any]) -> Any:
    me = os.getpid()
    return _value(me, caught(function))


async def _awaited(given: Any) -> Any:
    me = os.getpid()
    return _value(me, await caught_awaiting(lambda: given))


def _value(process: int, found: Any) -> Any:
    """What was found, or why nothing was. A child that the code has forked comes back here, too, and ends."""
    if os.getpid() != process:
        os._exit(0)
    return failure_of(found.error) if isinstance(found, Raised) else found


def failure_of(error: BaseException) -> CallFailure:
    """What was raised, with the line of a person's code."""
    if isinstance(error, Refused):
        return CallFailure(shorten(str(error)))
    found = try_call(partial(_again, error))
    assert isinstance(found, CallFailure)
    if not isinstance(error, MISTAKES):
        return found
    text = try_call(lambda: shorten(f"{type(error).__name__}: {' '.join(str(error).split())}"))
    return Mistake(found.reason, found.kind, text if isinstance(text, str) else text.reason)


def _again(error: BaseException) -> None:
    raise error


@cache
def own_code(most: int) -> OwnCode:
    """That of this process."""
    return OwnCode(most)
