"""Calling functions of another process, so that a test never touches an object of the code that it tests.

Only plain data comes back (numbers, texts, lists, dates, ...), rebuilt here: what equals everything, or lies about
itself, stays where it is, as a handle that equals nothing.
"""

from __future__ import annotations

import builtins
import numbers
import socket
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any

from launcher.core.user_code import CallFailure, try_call
from launcher.rewards.worker.frames import receive, send

Pack = Callable[[Any], Any]
Ask = Callable[[Any], tuple[Any, list[Any]]]
_CHANGED = list | set | dict | deque | bytearray
_PICKY = (UnicodeDecodeError, UnicodeEncodeError, UnicodeTranslateError)  # they want more than a text


def packed(value: Any, keep: Pack) -> Any:
    """`value` as JSON; what is no plain data becomes what `keep` makes of it. Subclasses count as what they extend."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if f"{type(value).__module__}.{type(value).__name__}" in _NUMPY_TRUTHS:
        return bool(value)
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real) and not isinstance(value, numbers.Rational):
        return float(value)
    for tag, kind in _LISTS.items():
        if isinstance(value, kind):
            return [tag, *(packed(item, keep) for item in kind.__iter__(value))]
    if isinstance(value, dict):
        return ["dict", *([packed(key, keep), packed(of, keep)] for key, of in dict.items(value))]
    for tag, (kind, parts, _) in _VALUES.items():
        if isinstance(value, kind):
            return [tag, *parts(value)]
    return ["handle", keep(value)]


_NUMPY_TRUTHS = ("numpy.bool", "numpy.bool_")
"""What comparisons give there; by name, as NumPy may not be installed."""
_LISTS: dict[str, Any] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset, "deque": deque}
_VALUES: dict[str, tuple[type, Callable[[Any], Sequence[Any]], Callable[..., Any]]] = {
    "bytes": (bytes, lambda value: [bytes.decode(value, "latin-1")], lambda text: text.encode("latin-1")),
    "bytearray": (bytearray, lambda value: [value.decode("latin-1")], lambda text: bytearray(text, "latin-1")),
    "Fraction": (Fraction, lambda value: [value.numerator, value.denominator], Fraction),
    "complex": (numbers.Complex, lambda value: [float(value.real), float(value.imag)], complex),  # also numpy's
    "Decimal": (Decimal, lambda value: [str(value)], Decimal),
    "range": (range, lambda value: [value.start, value.stop, value.step], range),
    "datetime": (datetime, lambda value: [value.isoformat()], datetime.fromisoformat),  # before what it extends
    "date": (date, lambda value: [value.isoformat()], date.fromisoformat),
    "time": (time, lambda value: [value.isoformat()], time.fromisoformat),
    "timedelta": (timedelta, lambda value: [value.days, value.seconds, value.microseconds], timedelta),
}
"""Name -> class, the parts of a value of it as JSON, and what makes one of them."""


def unpacked(node: Any, resolve: Pack) -> Any:
    """The inverse, with what `resolve` returns for a handle."""
    if not isinstance(node, list):
        return node
    tag, *items = node
    if tag in _LISTS:
        return _LISTS[tag](unpacked(item, resolve) for item in items)
    if tag == "dict":
        return {unpacked(key, resolve): unpacked(of, resolve) for key, of in items}
    return _VALUES[tag][2](*items) if tag in _VALUES else resolve(items[0])


def serve(channel: socket.socket, names: dict[str, Any]) -> None:
    """Answer calls until the other side is gone."""
    objects: list[Any] = []

    def keep(value: Any) -> int:
        objects.append(value)
        return len(objects) - 1

    def answer(asked: Any) -> Any:
        target, attribute, given = asked
        found = names[target] if isinstance(target, str) else objects[target]
        for name in attribute:
            found = getattr(found, name)
        if given is None:
            return [packed(found, keep), []]
        args, kwargs = unpacked(given, objects.__getitem__)
        return [packed(found(*args, **kwargs), keep), [packed(arg, keep) for arg in args]]

    while True:
        try:
            asked = receive(channel)
        except EOFError:
            return
        found = try_call(partial(answer, asked))
        send(channel, {"raised": [found.kind, found.reason]} if isinstance(found, CallFailure) else {"gave": found})


class RemoteObject:
    """Something that stays in the other process: it can be called and looked into."""

    def __init__(self, ask: Ask, target: str | int, attribute: tuple[str, ...] = ()) -> None:
        self._ask, self._target, self._attribute = ask, target, attribute

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = packed([args, kwargs], _held)
        found, after = self._ask([self._target, self._attribute, given])
        for arg, now in zip(args, after, strict=True):  # a function may change a list that it is given
            if isinstance(arg, _CHANGED) and not isinstance(now, RemoteObject):
                arg.clear()
                arg.update(now) if isinstance(arg, set | dict) else arg.extend(now)
        return found

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._ask([self._target, (*self._attribute, name), None])[0]

    def _special(self, name: str, *args: Any) -> Any:
        return RemoteObject(self._ask, self._target, (*self._attribute, name))(*args)

    def __len__(self) -> int:
        try:
            return int(self._special("__len__"))
        except AttributeError as error:
            raise TypeError(str(error)) from error

    def __bool__(self) -> bool:
        for name in ("__bool__", "__len__"):
            with suppress(AttributeError):
                return bool(self._special(name))
        return True

    def __getitem__(self, key: Any) -> Any:
        return self._special("__getitem__", key)

    def __iter__(self) -> Iterator[Any]:
        try:
            found: Iterator[Any] = self._special("__iter__")
        except AttributeError:  # of a class that has only __getitem__
            return Sequence.__iter__(self)  # type: ignore[arg-type]
        return found

    def __next__(self) -> Any:
        return self._special("__next__")

    def __str__(self) -> str:
        return str(self._special("__str__"))


def _held(value: Any) -> Any:
    """What is sent back must have come from there."""
    if isinstance(value, RemoteObject) and isinstance(value._target, int) and not value._attribute:
        return value._target
    raise TypeError(f"a {type(value).__name__} cannot be given to the other process")


def asking(channel: socket.socket) -> Ask:
    """How the other side is asked; what it raises is raised here, where it is an error that Python knows."""

    def ask(asked: Any) -> tuple[Any, list[Any]]:
        send(channel, asked)
        answer = receive(channel)
        if "raised" in answer:
            kind, text = answer["raised"]
            known = vars(builtins).get(kind)
            if isinstance(known, type) and issubclass(known, Exception) and known not in _PICKY:
                raise known(text)
            raise RuntimeError(text)
        found, after = answer["gave"]
        remote: Callable[[Any], Any] = partial(RemoteObject, ask)
        return unpacked(found, remote), [unpacked(arg, remote) for arg in after]

    return ask
