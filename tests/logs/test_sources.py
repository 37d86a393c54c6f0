"""Files as they are found: growing, cut, replaced, damaged, compressed, large."""

from __future__ import annotations

import gzip
import os
import random
import shlex
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from launcher.core.events import Alert, LogProgress, Step
from launcher.core.problems import Problems
from launcher.logs.forms.reading import MANY_NAMES, MOST_NAMES
from launcher.logs.parser import LogParser
from launcher.logs.sources import BLOCK, LONGEST_LINE, GrowingLog, open_log
from launcher.views.read import find


def line(step: int, end: str = "\n") -> str:
    return f"(TaskRunner pid=1) step:{step} - critic/score/mean:{step / 4} - timing_s/step:{40.5 + step}{end}"


def numbers(events) -> list[int]:
    return [event.step for event in events if isinstance(event, Step)]


def log_at(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "verl.log"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def growing(path: Path) -> GrowingLog:
    return GrowingLog(path, lambda: 5.0)


def test_a_growing_log_is_read_line_by_line_as_lines_are_whole(tmp_path):
    path = log_at(tmp_path, "")
    log, text, found = growing(path), line(1) + line(2) + line(3), []
    with path.open("a") as file:
        for piece in (text[i : i + 7] for i in range(0, len(text), 7)):
            file.write(piece)
            file.flush()
            found += numbers(log.new())
    assert found == [1, 2, 3] and not numbers(log.new())
    assert {event.at for event in growing(path).new()} == {5.0}


BAR = "\rTraining Progress:  20%|██        | {}/10 [00:10<00:40, 5.00s/it]"


@pytest.mark.parametrize(("anew", "looks"), [
    (0, [(None, []), (line(1), [1])]),  # not there yet
    (2, [(line(1) + line(2), [1, 2]), (line(7), [7]), ("".join(map(line, range(10, 20))), [*range(10, 20)])]),
    (1, [("{'loss': 0.5}\n{'loss': 0.25}\n", [1, 2]), ("{'loss': 0.75}\n", [1])]),  # counts begin anew, too
    (0, [("{'loss': 0.5}\n{'loss'", [1]), (None, []), ("{'loss': 0.125}\n", [2])]),  # rotated, its end cut
    (0, [(line(1) + BAR.format(1), [1, 1]), (line(1) + BAR.format(1) + BAR.format(2), [2])]),  # has no end
])  # fmt: skip
def test_a_log_that_is_written_anew_or_rotated(tmp_path, anew, looks):
    path = tmp_path / "a.log"
    log = growing(path)
    for text, found in looks:
        if text is not None:
            path.write_text(text)
        elif path.exists():
            path.rename(tmp_path / "old")
        assert [event.step for event in log.new() if isinstance(event, Step | LogProgress)] == found
        assert not list(log.new()), "twice"
    assert log.readings == anew


VERL_FILE = b'{"step":1,"data":{"a":1}}\n{"step":2,"data":{"a":1}}\n'
COUNT = 3 * BLOCK // len(line(1))
TEXTS = {
    "Windows' line ends": (line(1, "\r\n").encode() + line(2, "\r\n").encode(), [1, 2]),
    "bytes that are no UTF-8": (line(1).encode() + "café: 1\n".encode("latin-1") + b"step:3 - sc\xf6re:1\n", [1, 3]),
    "a zero byte": (b"step:3 - b/\x00c:1\n", [3]),
    "no byte order mark": (VERL_FILE, [1, 2]),
    "a byte order mark": (b"\xef\xbb\xbf" + VERL_FILE, [1, 2]),
    "blocks end anywhere": ("".join(map(line, range(COUNT))).encode(), [*range(COUNT)]),
}


@pytest.mark.parametrize(("text", "found"), TEXTS.values(), ids=TEXTS)
def test_bytes_as_they_are_found_lose_no_step(tmp_path, text, found):
    path = log_at(tmp_path, text)
    assert numbers(open_log(path).events()) == numbers(growing(path).new()) == found
    assert all(event.metrics for event in open_log(path).events() if isinstance(event, Step))


def test_a_byte_order_mark_hides_no_document(tmp_path):
    log = open_log(log_at(tmp_path, b'\xef\xbb\xbf{"log_history": [{"loss": 0.5, "step": 5}]}'))
    assert log.kind == "trainer_state" and numbers(log.events()) == [5]
    with pytest.raises(Problems, match="cannot be followed"):
        log.check_text()


def test_last_steps_join_the_lines_of_one_step(tmp_path):
    log = open_log(log_at(tmp_path, line(1) + line(2) + "step:2 - val/test_score/gsm8k:0.5\n"))
    assert [sorted(step.metrics) for step in log.last_steps(1)] == [
        ["critic/score/mean", "timing_s/step", "val/test_score/gsm8k"]
    ]


def test_memory_is_bounded_also_by_a_line_without_end(tmp_path):
    path = log_at(tmp_path, line(1))
    with path.open("ab") as file:
        for _ in range(3):
            file.write(b"x" * LONGEST_LINE)
        file.write(b"\n" + line(2).encode())
    tracemalloc.start()
    try:
        found = numbers(open_log(path).events())
        assert found == [1, 2] and tracemalloc.get_traced_memory()[1] < 6 * LONGEST_LINE
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("magic", "command"), [(gzip.compress(b"step:1 - a:1\n", mtime=0), "zcat"), (b"\x28\xb5\x2f\xfd..", "zstdcat")]
)
def test_compressed_logs_name_the_command_that_helps(tmp_path, magic, command):
    path = tmp_path / "my run.log"
    path.write_bytes(magic)
    with pytest.raises(Problems, match="is compressed") as refused:
        open_log(path)
    assert f"use {command} '{path}' | rlrun metrics -" in str(refused.value)
    with pytest.raises(Problems, match=rf"^standard input: .*use {command} \| rlrun metrics -"):
        open_log(path, piped=True)


def test_text_of_powershell_names_the_command_that_helps(tmp_path):
    """The command is run: what it makes is read."""
    path = log_at(tmp_path, line(1).encode("utf-16"))
    with pytest.raises(Problems, match="is UTF-16 text; use iconv") as refused:
        open_log(path)
    command = str(refused.value).partition("; use ")[2].partition(" | ")[0]
    path.write_bytes(subprocess.run(shlex.split(command), check=True, capture_output=True).stdout)
    assert numbers(open_log(path).events()) == [1]


@pytest.mark.parametrize(("end", "lr"), [("1e-0", None), ("1e-", None), ("1e", None), ("1e-06", 1e-6), ("0.5", 0.5)])
def test_a_number_that_was_cut_in_its_exponent_is_none(tmp_path, end, lr):
    path = log_at(tmp_path, "step:1 - a:1 - actor/lr:1e-06\nstep:2 - a:1 - actor/lr:" + end)
    log = growing(path)
    for events in (open_log(path).events(), [*log.new(), *log.finish()]):
        assert [event.metrics.get("actor/lr") for event in events if isinstance(event, Step)] == [1e-6, lr]


def test_what_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name in ("missing", ".", "pipe"):
        with pytest.raises(Problems, match="use the path of a log file, or the name of a run"):
            open_log(tmp_path / name)
    for name in ("pipe", "/dev/zero", "/proc/self/environ", "/proc/self/pagemap"):
        with pytest.raises(Problems, match=r"is a pipe, not|is a device, not|is made by the system"):
            find(str(tmp_path / name), tmp_path)


def test_holes_of_a_sparse_log_are_not_read(tmp_path):
    path = log_at(tmp_path, line(1))
    with path.open("r+b") as file:
        file.truncate(2**42)  # hours, were it read
        file.seek(0, os.SEEK_END)
        file.write(b"\n" + line(2).encode())
    assert numbers(open_log(path).events()) == numbers(growing(path).new()) == [1, 2]


@pytest.mark.parametrize(
    ("form", "pair", "between"),
    [("step:{} - {}\n", "n{}:1.0", " - "), ("{{'loss': 0.5, 'step': {}, {}}}\n", "'n{}': 1.0", ", ")],
)
def test_a_log_of_too_many_names_keeps_the_first(tmp_path, form, pair, between):
    steps = [between.join(pair.format(f"{step}_{place}") for place in range(5_000)) for step in range(6)]
    path = log_at(tmp_path, "".join(form.format(step, pairs) for step, pairs in enumerate(steps)))
    events = list(open_log(path).events())
    names = {name for event in events if isinstance(event, Step) for name in event.metrics}
    assert len(names) == MOST_NAMES and [event.rule for event in events if isinstance(event, Alert)] == [MANY_NAMES]


PIECES = [
    "step:5 - a:", "a:1 - ", "%|", "50%|x| 1/2 [", "1/2 [0:1<0:2, 1s/it, a=1]", "{'a': 1, ", "{", "}", "[prompt] x",
    "[score] 1", "1", "nan", "Step 1 | loss: ", "loss: 1", " ", "**", "np.float64(", "(TaskRunner pid=1) ", "\x1b[",
    "\x1b[1m", "\r", "[repeated 1x across cluster]", "é", "\\", '"', "'", "Initial validation metrics: {", "# **a** ",
    "\udcff", "1e999", '{"step":1,"data":{"a":', "epoch 1/2 ", " -", "\n",
]  # fmt: skip


def test_no_mutated_line_raises():
    rng, parser = random.Random(0), LogParser()
    for _ in range(3_000):
        text = "".join(rng.choice(PIECES) * rng.choice((1, 1, 1, 2, 40)) for _ in range(rng.randint(1, 12)))
        for event in parser.feed(text.encode("utf-8", "surrogateescape") + b"\n"):
            assert not isinstance(event, Step) or all(isinstance(x, int | float) for x in event.metrics.values())
    list(parser.finish())


@pytest.mark.parametrize("piece", [piece for piece in PIECES if piece not in "\r\n"])
def test_time_is_linear_in_a_line(piece):
    """A line of 400,000 characters: one that took the square of that would not end within a test's time."""
    for begin in ("", "step:1 - ", "{'loss': 1, ", "Step 1 | "):
        raw = (begin + piece * (100_000 // len(piece)) + "}\n").encode("utf-8", "surrogateescape")
        parser = LogParser()
        list(parser.feed(raw))
        list(parser.finish())


def test_an_event_file_of_tensorboard_needs_its_package(tmp_path, monkeypatch):
    path = log_at(tmp_path, b'\x18\0\0\0\0\0\0\0\xa3\x7fK"\t\0\0\xc0*T\xd6\xdaA\x1a\rbrain.Event:2')
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    assert open_log(path).kind == "tensorboard"
    with pytest.raises(Problems, match="use pip install tensorboard"):
        list(open_log(path).events())
