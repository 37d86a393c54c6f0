"""Python errors in a log: the one that ended the program is told, those that it survived are not."""

from __future__ import annotations

import pytest

from launcher.core.events import Alert
from launcher.logs.parser import LogParser

TRACEBACK = 'Traceback (most recent call last):\n  File "a.py", line 3, in <module>\n    f()\n'
STEP = "step:{} - critic/score/mean:0.5\n"


def alerts(text: str) -> list[tuple[int, str, str]]:
    parser = LogParser()
    found = [*parser.feed(text.encode()), *parser.finish()]
    return [(event.step, event.level, event.text) for event in found if isinstance(event, Alert)]


@pytest.mark.parametrize("prefix", ["", "[rank0]: ", "(TaskRunner pid=1) ", "\x1b[36m(TaskRunner pid=1)\x1b[0m "])
@pytest.mark.parametrize("error", ["torch.OutOfMemoryError: CUDA out of memory", "AssertionError"])
def test_the_error_that_ended_the_program(prefix, error):
    lines = "".join(prefix + line + "\n" for line in (TRACEBACK + error).splitlines())
    text = STEP.format(1) + STEP.format(2) + lines + "(Other pid=2) it waits\n"
    assert alerts(text) == [(2, "critical", f"an error, and no step after it: {error}")]


def test_an_error_of_another_process_is_named_by_what_it_was_there():
    text = (
        TRACEBACK + "ray.exceptions.RayTaskError(ValueError): \x1b[36mray::TaskRunner.run()\x1b[39m (pid=1)\n"
        '  File "b.py", line 7, in run\n    raise ValueError\nValueError: no such loss\n'
    )
    assert alerts(text) == [(0, "critical", "an error, and no step after it: ValueError: no such loss")]


def test_the_first_error_is_named_where_others_follow_from_it():
    text = STEP.format(1) + TRACEBACK + "KeyError: 'prompts'\n" + TRACEBACK + "ConnectionError: closed\n"
    parser = LogParser()
    (alert,) = [event for event in [*parser.feed(text.encode()), *parser.finish()] if isinstance(event, Alert)]
    assert alert.text.endswith("ConnectionError: closed") and alert.cause.endswith("KeyError: 'prompts'")


@pytest.mark.parametrize(
    "text",
    [
        STEP.format(1) + TRACEBACK + "ValueError: in a reward\n" + STEP.format(2),  # the program went on
        STEP.format(1) + "Exception ignored in: <function f>\n" + TRACEBACK + "TypeError: at exit\n",
        STEP.format(1) + TRACEBACK,  # cut
        STEP.format(1) + TRACEBACK + "- what another process printed -\n",
    ],
)
def test_errors_that_ended_nothing(text):
    assert alerts(text) == []


@pytest.mark.parametrize(
    ("line", "error", "level"),
    [
        ("Training Progress: 100%|##| 5/5 [00:10<00:00, 2.0s/it]\n", "OSError: x", "warn"),
        ("", "KeyboardInterrupt", "info"),
    ],
)
def test_an_error_after_the_last_step_and_a_person_who_stops_it_are_not_critical(line, error, level):
    assert [found[1] for found in alerts(STEP.format(5) + line + TRACEBACK + error + "\n")] == [level]
