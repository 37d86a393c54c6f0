"""Code that is not ours: what it raises is a reason, with the line where it was raised."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from launcher.core.user_code import LONGEST, CallFailure, try_call


def raises(error: BaseException) -> Callable[[], None]:
    def call() -> None:
        raise error

    return call


class Rude(Exception):
    """Fake: its text cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "reason", "kind"),
    [
        (ValueError("no"), "ValueError: no", "ValueError"),
        (ValueError(), "ValueError", "ValueError"),
        (ValueError("two\n  lines"), "ValueError: two lines", "ValueError"),
        (SystemExit(3), "SystemExit: 3", "SystemExit"),  # a stranger must not end us
        (MemoryError(), "MemoryError", "MemoryError"),
        (Rude(), "Rude", "Rude"),
    ],
)
def test_what_is_raised_is_a_reason(error: BaseException, reason: str, kind: str) -> None:
    found = try_call(raises(error))
    assert isinstance(found, CallFailure)
    text, _, place = found.reason.rpartition(" (")
    assert (text, found.kind) == (reason, kind)
    assert place.startswith("test_foreign.py:")


def test_a_long_text_is_cut_and_its_place_is_not() -> None:
    found = try_call(raises(ValueError("x" * 10_000)))
    assert isinstance(found, CallFailure) and len(found.reason) < LONGEST + 40 and "(test_foreign.py:" in found.reason


def test_the_line_of_the_named_file_is_told_where_another_file_raised() -> None:
    found = try_call(lambda: compile("(", "other.py", "exec") and sys.exit, file=__file__)
    assert isinstance(found, CallFailure) and "(test_foreign.py:" in found.reason


def test_a_value_comes_back_and_an_interrupt_goes_on() -> None:
    assert try_call(lambda: 3) == 3
    with pytest.raises(KeyboardInterrupt):
        try_call(raises(KeyboardInterrupt()))
