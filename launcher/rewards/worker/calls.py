"""Remote calls, so that a test never touches an object of the code that it tests.

Only plain data is returned (numbers, texts, lists, dates, ...), rebuilt in this process. Other objects, which may equal
everything or fake their type, stay in the other process, behind a handle that equals nothing.
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
_MUTABLE = list | set | dict | deque | bytearray
_UNSUPPORTED = (UnicodeDecodeError, UnicodeEncodeError, UnicodeTranslateError)  # they need more arguments than a text


def packed(value: Any, keep: Pack) -> Any:
    """`value` as JSON; `keep` returns the handle of what is not plain data. A subclass is sent as its base."""
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
        return ["dict", *([packed(key, keep), packed(item_value, keep)] for key, item_value in dict.items(value))]
    for tag, (kind, parts, _) in _VALUES.items():
        if isinstance(value, kind):
            return [tag, *parts(value)]
    return ["handle", keep(value)]


_NUMPY_TRUTHS = ("numpy.bool", "numpy.bool_")
"""Types of numpy's truth values; names, as NumPy may not be installed."""
_LISTS: dict[str, Any] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset, "deque": deque}
_VALUES: dict[str, tuple[type, Callable[[Any], Sequence[Any]], Callable[..., Any]]] = {
    "bytes": (bytes, lambda value: [bytes.decode(value, "latin-1")], lambda text: text.encode("latin-1")),
    "bytearray": (bytearray, lambda value: [value.decode("latin-1")], lambda text: bytearray(text, "latin-1")),
    "Fraction": (Fraction, lambda value: [value.numerator, value.denominator], Fraction),
    "complex": (numbers.Complex, lambda value: [float(value.real), float(value.imag)], complex),  # also numpy's
    "Decimal": (Decimal, lambda value: [str(value)], Decimal),
    "range": (range, lambda value: [value.start, value.stop, value.step], range),
    "datetime": (datetime, lambda value: [value.isoformat()], datetime.fromisoformat),  # before its base, date
    "date": (date, lambda value: [value.isoformat()], date.fromisoformat),
    "time": (time, lambda value: [value.isoformat()], time.fromisoformat),
    "timedelta": (timedelta, lambda value: [value.days, value.seconds, value.microseconds], timedelta),
}
"""Tag -> class, its values' parts as JSON, and what makes a value of the parts."""


def unpacked(node: Any, resolve: Pack) -> Any:
    """The inverse of `packed`; `resolve` returns the object for a handle."""
    if not isinstance(node, list):
        return node
    tag, *items = node
    if tag in _LISTS:
        return _LISTS[tag](unpacked(item, resolve) for item in items)
    if tag == "dict":
        return {unpacked(key, resolve): unpacked(item_value, resolve) for key, item_value in items}
    return _VALUES[tag][2](*items) if tag in _VALUES else resolve(items[0])


def serve(channel: socket.socket, names: dict[str, Any]) -> None:
    """Handle calls of the objects in `names` until the channel is closed."""
    objects: list[Any] = []

    def keep(value: Any) -> int:
        objects.append(value)
        return len(objects) - 1

    def answer(asked: Any) -> Any:
        target, attribute, arguments = asked
        result = names[target] if isinstance(target, str) else objects[target]
        for name in attribute:
            result = getattr(result, name)
        if arguments is None:
            return [packed(result, keep), []]
        args, kwargs = unpacked(arguments, objects.__getitem__)
        return [packed(result(*args, **kwargs), keep), [packed(arg, keep) for arg in args]]

    while True:
        try:
            call = receive(channel)
        except EOFError:
            return
        result = try_call(partial(answer, call))
        send(channel, {"raised": [result.kind, result.reason]} if isinstance(result, CallFailure) else {"gave": result})


class RemoteObject:
    """A proxy of an object in the other process: calls, attributes, items and iteration are remote."""

    def __init__(self, ask: Ask, target: str | int, attribute: tuple[str, ...] = ()) -> None:
        self._ask, self._target, self._attribute = ask, target, attribute

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        packed_args = packed([args, kwargs], _handle_of)
        result, changed_args = self._ask([self._target, self._attribute, packed_args])
        for arg, changed in zip(args, changed_args, strict=True):  # the function may have changed its arguments
            if isinstance(arg, _MUTABLE) and not isinstance(changed, RemoteObject):
                arg.clear()
                arg.update(changed) if isinstance(arg, set | dict) else arg.extend(changed)
        return result

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
            iterator: Iterator[Any] = self._special("__iter__")
        except AttributeError:  # its class has only __getitem__
            return Sequence.__iter__(self)  # type: ignore[arg-type]
        return iterator

    def __next__(self) -> Any:
        return self._special("__next__")

    def __str__(self) -> str:
        return str(self._special("__str__"))


def _handle_of(value: Any) -> Any:
    """The handle of an argument, which must be an object of the other process. Raises `TypeError`."""
    if isinstance(value, RemoteObject) and isinstance(value._target, int) and not value._attribute:
        return value._target
    raise TypeError(f"a {type(value).__name__} cannot be given to the other process")


def asking(channel: socket.socket) -> Ask:
    """A function that sends a call and returns its result. It raises what the call raised, if that is a built-in."""

    def ask(asked: Any) -> tuple[Any, list[Any]]:
        send(channel, asked)
        reply = receive(channel)
        if "raised" in reply:
            kind, text = reply["raised"]
            exception = vars(builtins).get(kind)
            if isinstance(exception, type) and issubclass(exception, Exception) and exception not in _UNSUPPORTED:
                raise exception(text)
            raise RuntimeError(text)
        result, changed_args = reply["gave"]
        remote: Callable[[Any], Any] = partial(RemoteObject, ask)
        return unpacked(result, remote), [unpacked(arg, remote) for arg in changed_args]

    return ask
