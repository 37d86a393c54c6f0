"""Calls of a person's own code from a loop: `async` functions on it, all others in threads, each with a time limit.

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
    """It refuses what it was given; the reason names no place in its code."""


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
            if inspect.iscoroutinefunction(function):
                running: asyncio.Future[Any] = asyncio.ensure_future(_awaited(partial(function, *args, **named)))
                kept: Any = running
            else:
                kept = self.threads.submit(_called, partial(function, *args, **named))
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


async def _awaited(function: Callable[[], Any]) -> Any:
    me = os.getpid()
    return _value(me, await caught_awaiting(function))


def _value(process: int, found: Any) -> Any:
    """What was found, or why nothing was. A child that the code has forked comes back here, too, and ends."""
    if os.getpid() != process:
        os._exit(0)
    return failure_of(found.error) if isinstance(found, Raised) else found


def failure_of(error: Exception | SystemExit) -> CallFailure:
    """What was raised, with the line of a person's code; a mistake without it, as the policy reads it."""
    if isinstance(error, MISTAKES):
        text = try_call(lambda: f"{type(error).__name__}: {' '.join(str(error).split())}")
        return Mistake(text.reason if isinstance(text, CallFailure) else shorten(text), type(error).__name__)
    found = try_call(partial(_again, error))
    assert isinstance(found, CallFailure)
    return found


def _again(error: BaseException) -> None:
    raise error


@cache
def own_code(most: int) -> OwnCode:
    """That of this process."""
    return OwnCode(most)
