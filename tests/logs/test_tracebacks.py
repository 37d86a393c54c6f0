"""Python errors in a log: the one that ended the program is told, those that it survived are not."""

from __future__ import annotations

import pytest

from launcher.core.events import Alert
from launcher.logs.endings import known_endings
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


@pytest.mark.parametrize("prefix", ["", "2025-05-01T10:00:00.5Z ", "3: "])
@pytest.mark.parametrize("ending", [ending for _, ending in known_endings()], ids=lambda ending: ending.cause)
def test_an_end_without_a_traceback(ending, prefix):
    for end in ending.examples:
        text = STEP.format(1) + STEP.format(2) + prefix + end + "\n"
        parser = LogParser()
        (found,) = [event for event in [*parser.feed(text.encode()), *parser.finish()] if isinstance(event, Alert)]
        assert (found.step, found.level, found.cause, found.fix) == (2, ending.level, ending.cause, ending.fix)
        assert " ".join(end.split())[:60] in found.text
        assert alerts(text + STEP.format(3)) == []  # it was started again
        spoken = f"{STEP.format(1)}The answer is: {end}\n[prompt] why\n[response] it says\n{end}\n[score] 1\n"
        assert alerts(spoken) == []


def test_which_end_is_told():
    error, cancelled = TRACEBACK + "ValueError: x\n", "slurmstepd: error: *** JOB 1 ON n CANCELLED AT 2025-05-01 ***\n"
    killed = "srun: error: n: tasks 1-3: Killed\n"
    limit = "slurmstepd: error: *** STEP 123.0 ON node1 CANCELLED AT 2025-05-01T10:00:00 DUE TO TIME LIMIT ***\n"
    assert "ValueError" in alerts(STEP.format(1) + error + killed)[0][2]  # the others are killed for it
    assert "TIME LIMIT" in alerts(STEP.format(1) + error + limit)[0][2]  # its signal made the error
    assert alerts(STEP.format(1) + cancelled)[0][1] == "info"
    done = "Training Progress: 100%|##| 1/1 [00:10<00:00, 2.0s/it]\n"
    assert alerts(STEP.format(1) + done + limit)[0][1] == "warn"


@pytest.mark.parametrize("stamps", [("1234567", "123456789", "5"), ("123456789",) * 3])
def test_times_of_kubectl_have_many_lengths(stamps):
    lines = ("Traceback (most recent call last):", '  File "a.py", line 3, in f', "RuntimeError: boom")
    text = "".join(f"2025-05-01T10:00:00.{stamp}Z {line}\n" for stamp, line in zip(stamps, lines, strict=True))
    assert alerts(STEP.format(1) + text) == [(1, "critical", "an error, and no step after it: RuntimeError: boom")]
