"""Calls with a timeout, for what may never return: a dead network disk, a name server."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


def call_with_timeout(seconds: float, call: Callable[[], T]) -> T:
    """What `call` returns. Raises the `OSError` or `ValueError` that it raised, and `TimeoutError` where it takes
    longer; then it goes on in a thread that does not keep this process alive."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except (OSError, ValueError) as error:
            future.set_exception(error)

    Thread(target=run, daemon=True).start()
    try:
        return future.result(seconds)
    except TimeoutError as error:
        if future.done():
            raise  # a network's own timeout
        raise TimeoutError(f"no answer in {seconds:g} s") from error
