"""Python errors in a log: the one that ended the program is reported, those that it survived are not."""

from __future__ import annotations

import pytest

from launcher.core.events import Alert, LogProgress
from launcher.logs.endings import known_endings
from launcher.logs.parser import LogParser

TRACEBACK = 'Traceback (most recent call last):\n  File "a.py", line 3, in <module>\n    f()\n'
STEP = "step:{} - critic/score/mean:0.5\n"
ONE = STEP.format(1)
RAY = (
    "ray.exceptions.RayTaskError(ValueError): \x1b[36mray::TaskRunner.run()\x1b[39m (pid=1)\n"
    '  File "b.py", line 7, in run\n    raise ValueError\nValueError: no such loss\n'
)
DONE = "Training Progress: 100%|##| 5/5 [00:10<00:00, 2.0s/it]\n"
VALUE = TRACEBACK + "ValueError: x\n"
KILLED, CANCELLED = "srun: error: n: tasks 1-3: Killed\n", "slurmstepd: error: *** JOB 1 ON n CANCELLED AT 2025-05-01 "
LIMIT = f"{CANCELLED}DUE TO TIME LIMIT ***\n"
SAID = "an error, and no step after it: "


def alerts(text: str) -> list[Alert]:
    parser = LogParser()
    return [event for event in [*parser.feed(text.encode()), *parser.finish()] if isinstance(event, Alert)]


@pytest.mark.parametrize("prefix", ["", "[rank0]: ", "(TaskRunner pid=1) ", "\x1b[36m(TaskRunner pid=1)\x1b[0m "])
@pytest.mark.parametrize("error", ["torch.OutOfMemoryError: CUDA out of memory", "AssertionError"])
def test_the_error_that_ended_the_program(prefix, error):
    lines = "".join(prefix + line + "\n" for line in (TRACEBACK + error).splitlines())
    (alert,) = alerts(ONE + STEP.format(2) + lines + "(Other pid=2) it waits\n")
    assert (alert.step, alert.level, alert.text) == (2, "critical", SAID + error)


ENDS = {
    "an error of another process, by what it was there": (TRACEBACK + RAY, 0, "critical", "ValueError: no such loss"),
    "an error after the last step": (ONE + DONE + TRACEBACK + "OSError: x\n", 1, "warn", "OSError: x"),
    "a person who stops it": (ONE + TRACEBACK + "KeyboardInterrupt\n", 1, "info", "KeyboardInterrupt"),
    "the error for which the others are killed": (ONE + VALUE + KILLED, 1, "critical", "ValueError: x"),
    "the limit whose signal made the error": (ONE + VALUE + LIMIT, 1, "critical", "DUE TO TIME LIMIT ***"),
    "a job that was cancelled": (f"{ONE}{CANCELLED}***\n", 1, "info", "CANCELLED AT 2025-05-01 ***"),
    "an error in a frame": (
        ONE + "│ 5 │ f() │\n╰──╯\nRuntimeError: boom\n",
        1,
        "critical",
        SAID + "RuntimeError: boom",
    ),
    "an error whose traceback marks a line": (
        f"{ONE}{TRACEBACK.replace('  File', '> File', 1)}\nEngineDeadError: x\n",
        1,
        "critical",
        "EngineDeadError: x",
    ),
    "an error alone": (f"{ONE}[rank0]: torch.OutOfMemoryError: x\n", 1, "critical", "torch.OutOfMemoryError: x"),
    "an error of a logger": (f"{ONE}2025-05-01 10:00:00,1 - ERROR - OSError: full\n", 1, "critical", "OSError: full"),
    "an error in JSON": (
        ONE + '{"level": "error", "exc_info": "Traceback (most recent call last):\\n  f()\\nKeyError: 1"}\n',
        1,
        "critical",
        "KeyError: 1",
    ),
    "a frame of another process in between": (
        f'{ONE}{TRACEBACK}(B pid=2) at node:   File "b.py", line 1\nValueError: x\n',
        1,
        "critical",
        ": ValueError: x",
    ),
    "a source line that quotes a frame": (
        f"{ONE}{TRACEBACK}    x = '''   File \"b.py\"'''\nValueError: x\n",
        1,
        "critical",
        ": ValueError: x",
    ),
    "an error after a warning of a full disk": (
        f"{ONE}wandb: WARNING: could not sync: [Errno 28] No space left on device\n{VALUE}",
        1,
        "critical",
        SAID + "ValueError: x",
    ),
    "the memory of the GPU after a full disk": (
        f"{ONE}OSError: [Errno 28] No space left on device\n{TRACEBACK}torch.OutOfMemoryError: x\n",
        1,
        "critical",
        SAID + "torch.OutOfMemoryError: x",
    ),
    "a limit after the last step": (ONE + DONE + LIMIT, 1, "warn", "DUE TO TIME LIMIT ***"),
}


BAR = " 10%|█ | 1/10 [00:10<01:30, 10.0s/it, lr=1e-5]"
ENDS |= {
    f"{end} behind {bar}": (f"{ONE}{bar}{end}\n", 1, "critical", end.split("\n")[-1].removeprefix("[rank0]: "))
    for bar in (BAR, BAR * 2, "Rows: 9 examples [00:10, 10.0 examples/s]")
    for end in (
        f"{TRACEBACK}OSError: x", "[rank0]: " + f"{TRACEBACK}OSError: x".replace("\n", "\n[rank0]: "), "OSError: y",
        "Killed", "Segmentation fault (core dumped)", LIMIT.strip(), f"a label: {TRACEBACK}OSError: x",
    )
}  # fmt: skip


@pytest.mark.parametrize(("text", "step", "level", "end"), ENDS.values(), ids=ENDS)
def test_which_end_is_reported(text, step, level, end):
    (alert,) = alerts(text)
    assert (alert.step, alert.level) == (step, level) and alert.text.endswith(end)


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ("***** train metrics *****\n train_runtime = 0:00:03\n", 5),
        ("training done\n" + STEP.format(6), None),
        ("", None),
    ],
)
def test_a_log_that_tells_its_end_has_done_all_its_steps(text, last):
    parser = LogParser()
    events = [*parser.feed((STEP.format(5) + text).encode()), *parser.finish()]
    found = [(event.step, event.steps) for event in events if isinstance(event, LogProgress)]
    assert found == ([] if last is None else [(last, last)])


@pytest.mark.parametrize("error", ["OSError: [Errno 28] No space left on device", "IOError: x: Disk quota exceeded"])
def test_the_cause_of_an_error_that_its_text_tells(error):
    (alert,) = alerts(f"{ONE}{TRACEBACK}{error}\n{TRACEBACK}RuntimeError: [enforce fail at a] unexpected pos 6 vs 0\n")
    assert alert.text == SAID + error and alert.cause.startswith("the disk") and "save_total_limit" in alert.fix


def test_the_first_error_is_named_where_others_follow_from_it():
    (alert,) = alerts(ONE + TRACEBACK + "KeyError: 'prompts'\n" + TRACEBACK + "ConnectionError: closed\n")
    assert alert.text.endswith("ConnectionError: closed") and alert.cause.endswith("KeyError: 'prompts'")


@pytest.mark.parametrize(
    "text",
    [
        ONE + VALUE + STEP.format(2),  # the program went on
        ONE + "Exception ignored in: <function f>\n" + TRACEBACK + "TypeError: at exit\n",
        ONE + TRACEBACK,  # cut
        ONE + "RuntimeError: x\n" + STEP.format(2),
        ONE + "MeanSquaredError: 0.5\nRelativeError\tis small\nan OSError: x\n",
        ONE + "WARNING:root:ValueError: no answer\n",
        ONE + "run.sh: line 9:  4727 Terminated              vllm serve Qwen/Qwen3-4B\n",
        ONE + "wandb: WARNING: could not sync: [Errno 28] No space left on device\n",
        ONE + "[10:00:01, sandbox 3] Killed\n",
        ONE + TRACEBACK + "- what another process printed -\n",
    ],
)
def test_errors_that_ended_nothing(text):
    assert alerts(text) == []


@pytest.mark.parametrize("prefix", ["", "2025-05-01T10:00:00.5Z ", "3: "])
@pytest.mark.parametrize("ending", [ending for _, ending in known_endings()], ids=lambda ending: ending.cause)
def test_an_end_without_a_traceback(ending, prefix):
    for end in ending.examples:
        text = ONE + STEP.format(2) + prefix + end + "\n"
        (found,) = alerts(text)
        assert (found.step, found.level, found.cause, found.fix) == (2, ending.level, ending.cause, ending.fix)
        assert " ".join(end.split())[:60] in found.text
        assert alerts(text + STEP.format(3)) == []  # it was started again
        spoken = f"{ONE}The answer is: {end}\n[prompt] why\n[response] it says\n{end}\n[score] 1\n"
        assert alerts(spoken) == []


@pytest.mark.parametrize("stamps", [("1234567", "123456789", "5"), ("123456789",) * 3])
def test_times_of_kubectl_have_many_lengths(stamps):
    lines = ("Traceback (most recent call last):", '  File "a.py", line 3, in f', "RuntimeError: boom")
    text = "".join(f"2025-05-01T10:00:00.{stamp}Z {line}\n" for stamp, line in zip(stamps, lines, strict=True))
    assert [alert.text for alert in alerts(ONE + text)] == [f"{SAID}RuntimeError: boom"]
