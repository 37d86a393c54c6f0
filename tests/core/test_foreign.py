"""Code that is not ours: what it raises is a reason, with the line where it was raised."""

from __future__ import annotations

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
    ("call", "reason", "kind"),
    [
        (raises(ValueError("no")), "ValueError: no", "ValueError"),
        (raises(ValueError()), "ValueError", "ValueError"),
        (raises(ValueError("two\n  lines")), "ValueError: two lines", "ValueError"),
        (raises(ValueError("x" * 10_000)), f"ValueError: {'x' * (LONGEST - 15)}...", "ValueError"),  # its place is kept
        (raises(SystemExit(3)), "SystemExit: 3", "SystemExit"),  # a stranger must not end us
        (raises(MemoryError()), "MemoryError", "MemoryError"),
        (raises(Rude()), "Rude", "Rude"),
        (
            lambda: compile("(", "other.py", "exec"),
            "SyntaxError: '(' was never closed (other.py, line 1)",
            "SyntaxError",
        ),
    ],
)
def test_what_is_raised_is_a_reason_with_the_line_of_the_named_file(
    call: Callable[[], object], reason: str, kind: str
) -> None:
    found = try_call(call, file=__file__)
    assert isinstance(found, CallFailure)
    text, _, place = found.reason.rpartition(" (")
    assert (text, found.kind) == (reason, kind)
    assert place.startswith("test_foreign.py:")


def test_a_value_comes_back_and_an_interrupt_goes_on() -> None:
    assert try_call(lambda: 3) == 3
    with pytest.raises(KeyboardInterrupt):
        try_call(raises(KeyboardInterrupt()))
