"""A model's tokenizer and chat template, used in a process of their own: both are code of whoever made the model.

What it answered is remembered on disk, so that the next plan of the same rows starts none. The process is started when
it is first asked: forked, which is quicker, or spawned where the program has threads, whose locks a fork would keep. It
ends where a template computes without end, and its memory is bounded; whoever asks then gets a problem that says so.
What it imports is not loaded here.
"""

from __future__ import annotations

import gc
import hashlib
import math
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import astuple
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection, Pipe
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Self

from launcher.core.check_result import CheckResult
from launcher.core.files import open_file
from launcher.core.machine import package_version
from launcher.core.problems import Problem, Problems, short_repr
from launcher.core.remembered import recall, remember
from launcher.core.user_code import CallFailure, try_call
from launcher.models.pretrained import Pretrained, tokenizer_folder, weights_of
from launcher.spec.algorithm import Kind
from launcher.spec.data import Dataset, Row
from launcher.spec.model import Model
from launcher.text.bounds import RENDER_S, TOKENIZER, Count

LOAD_S, LOAD_S_PER_BYTE = 3.0, 1 / 2**23
"""CPU seconds that a tokenizer may take to load, and for each byte of tokenizer.json; the largest take a quarter."""
WHOLE_S = 300
"""CPU seconds of one question after which a tokenizer is given up on."""
IDLE_S = 120.0
"""Seconds without any computation after which the process is given up on."""
STUCK = "run it again"
KEPT = "text"
"""Under which name answers are remembered."""
FILES = ("*.json", "*.jinja", "*.model", "*.txt", "additional_chat_templates/*.jinja")
"""All of a model's folder that tokenizer and template may depend on."""
PACKAGES = ("transformers", "tokenizers", "jinja2", "regex")


class TextProcess:
    """Counts tokens and looks at tokenizer and chat template. Each method raises `Problems` where these fail."""

    def __init__(self, model: Model, data: Dataset, exact: bool = False) -> None:
        """`exact` is of any model, whose tokenizer may load torch; otherwise there is a tokenizer.json."""
        self.model, self.data, self.exact = model, data, exact
        self._channel: Connection[Any, Any] | None = None
        self._process: BaseProcess | None = None
        self._spent = ""
        self._loaded = False
        self._of = b"" if exact else _fingerprint(model, data)

    def lengths(self, rows: Sequence[Row], kind: Kind) -> list[Count]:
        """Tokens of each row, as `lengths.count_tokens` counts them."""
        found = self._ask("lengths", list(rows), kind)
        return [count if isinstance(count, str) else (count[0], count[1], count[2]) for count in found]

    def pieces(self, rows: Sequence[Row], kind: Kind) -> list[list[tuple[str, bool]]]:
        """Text of each token, and whether it has a loss, of each sequence that the rows become; none of what cannot
        be written. A prompt that will be answered has no loss."""
        return [[(str(text), bool(loss)) for text, loss in each] for each in self._ask("pieces", list(rows), kind)]

    def tokens(self, text: str) -> int:
        """Of a text alone, without special tokens."""
        return int(self._ask("tokens", text))

    def templated(self) -> bool:
        """Whether rows are written with a chat template."""
        return bool(self._ask("templated"))

    def differs_by_turn(self, rows: Sequence[Row]) -> str:
        """Where the first conversation stands whose turns, written one by one, are not what the chat template writes
        of it as a whole; empty where there is none."""
        return str(self._ask("differs_by_turn", list(rows)))

    def split_otherwise(self, rows: Sequence[Row]) -> str:
        """The first text of the rows that AutoTokenizer splits otherwise than tokenizer.json; empty where none is. It
        loads torch."""
        return str(self._ask("split_otherwise", list(rows)))

    def facts(self, rows: Sequence[Row]) -> list[CheckResult]:
        """What is wrong with the tokenizer, or with the chat template as far as these rows show."""
        return [CheckResult(*fields) for fields in self._ask("facts", list(rows))]

    def _ask(self, *question: Any) -> Any:
        """The answer as JSON holds it. One that says that something failed may be another one next time."""
        key = hashlib.sha256(self._of + repr(question).encode("utf-8", "replace")).hexdigest() if self._of else ""
        answer = recall(KEPT, key) if key else None
        if answer is None:
            if self._channel is None:
                self._start()
            answer = self._asked(question)
            if key and not (isinstance(answer, list) and any(isinstance(one, str) for one in answer)):
                remember(KEPT, key, answer)
        return answer

    def _asked(self, question: tuple[Any, ...]) -> Any:
        """The answer of the process. Raises `Problems` where there is none."""
        assert self._channel and self._process
        try:
            self._channel.send(question)
            while not self._channel.poll(IDLE_S):
                spent, self._spent = self._spent, _cpu_ticks(self._process.pid or 0)
                if spent == self._spent:
                    raise Problems(self._problem(f"has waited for {IDLE_S:g} s without computing", "tokenizer", STUCK))
            answer, problems = self._channel.recv()
        except (EOFError, OSError) as error:
            raise Problems(self._death()) from error
        if isinstance(answer, CallFailure):
            problems = [self._problem(f"cannot be used: {answer.reason}", "tokenizer")]
        if problems:
            raise Problems(problems)
        return answer

    def _start(self) -> None:
        context = get_context("fork") if threading.active_count() == 1 else get_context("spawn")
        self._channel, other = Pipe()
        of = (other, self.model, self.data, self.exact)
        self._process = context.Process(target=_serve, args=of, daemon=True)
        self._process.start()
        other.close()
        self._asked(("templated",))  # short enough for a pipe that nobody reads: the process may be stuck
        self._loaded = True

    def _death(self) -> Problem:
        """Why the process has ended."""
        assert self._process
        self._process.join()
        ended = -(self._process.exitcode or 0)
        if ended == signal.SIGPROF:
            return self._problem(f"computes for more than {RENDER_S:g} s on the first rows", "chat template")
        if ended == signal.SIGVTALRM:
            return self._problem(f"computes for more than {RENDER_S:g} s on one word", "tokenizer")
        if ended == signal.SIGXCPU and not self._loaded:
            fix = "use one with fewer added tokens in tokenizer_config.json and tokenizer.json, or another model"
            return self._problem("takes too long to load", "tokenizer", fix)
        if ended == signal.SIGXCPU:
            return self._problem(f"computes for more than {WHOLE_S} s", "tokenizer")
        how = f"by {signal.Signals(ended).name}" if ended > 0 else f"with {-ended}"
        return self._problem(f"ended its process {how}", "tokenizer")

    def _problem(self, got: str, what: str, fix: str = "") -> Problem:
        path = self.model.path if isinstance(self.model, Pretrained) else self.model.label
        files = "chat_template.jinja or tokenizer_config.json" if what == "chat template" else "tokenizer.json"
        return Problem(
            "model.path", f"the {what} of {short_repr(path)} {got}", fix or f"fix {files}, or use another model"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        if self._channel:
            self._channel.close()
        if self._process:
            self._process.kill()  # it may be busy, and keeps nothing
            self._process.join()


def several_sequences(rows: int, of: int) -> str:
    """What to say of rows that become several sequences."""
    return (
        f"{rows:,} of {of:,} rows become several sequences: the chat template writes answers otherwise once turns"
        " follow, and each is learned behind the tokens that it would be sampled after; data.loss_on=last learns the"
        " last alone"
    )


def _fingerprint(model: Model, data: Dataset) -> bytes:
    """Of all that answers depend on, apart from the question; empty where a file of the model cannot be read."""
    packages = [package_version(name) for name in PACKAGES]
    found = hashlib.sha256(repr([model, data.chat_template, data.template_args, data.loss_on, packages]).encode())
    folder = tokenizer_folder(Path(weights_of(model.path))).absolute() if isinstance(model, Pretrained) else None
    files = [file for form in FILES for file in sorted(folder.glob(form))] if folder else []
    try:
        for file in [*files, *sorted(Path(__file__).parent.glob("*.py"))]:
            with open_file(file) as opened:
                content = hashlib.file_digest(opened, "sha256").digest()
            found.update(f"{file}\0".encode("utf-8", "replace") + content)
    except OSError:
        return b""
    return found.digest()


def _cpu_ticks(pid: int) -> str:
    """CPU time of a process, as the system counts it; empty where the system does not say."""
    try:
        return " ".join(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13])
    except OSError:
        return ""


def _serve(channel: Connection[Any, Any], model: Model, data: Dataset, exact: bool) -> None:
    """In the process: answer questions until nobody can ask any more."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nowhere, descriptor)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPROF, signal.SIGVTALRM, signal.SIGXCPU):
        signal.signal(number, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if "tokenizers" in sys.modules:  # its threads are not forked, and without them it would wait for ever
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
    made = list[Any]()

    def make() -> Any:
        gc.disable()  # neither importing nor loading makes garbage, and looking for it would take a quarter of the time
        try:
            from launcher.text.measure import Measure  # noqa: PLC0415  late: it loads transformers, here only

            if not exact:  # which loads torch
                _allow(_load_s(model))
            return Measure(model, data)
        finally:
            _allow(WHOLE_S)
            gc.freeze()
            gc.enable()

    def answer(name: str, *of: Any) -> tuple[Any, list[Problem]]:
        try:
            if not made:
                made.append(make())
            answer = getattr(made[0], name)(*of)
            return [astuple(one) for one in answer] if name == "facts" else answer, []
        except Problems as error:
            return None, error.problems

    with suppress(EOFError):
        while True:
            question = channel.recv()
            _allow(WHOLE_S)
            reply = try_call(partial(answer, *question))
            channel.send((reply, []) if isinstance(reply, CallFailure) else reply)


def _load_s(model: Model) -> int:
    file = tokenizer_folder(Path(weights_of(model.path))) / TOKENIZER if isinstance(model, Pretrained) else None
    return math.ceil(LOAD_S + LOAD_S_PER_BYTE * (file.stat().st_size if file and file.is_file() else 0))


def _allow(seconds: int) -> None:
    """SIGXCPU ends this process after so many further CPU seconds."""
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    limit = int(time.process_time()) + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (limit if most < 0 else min(limit, most), most))
