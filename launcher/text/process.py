"""A model's tokenizer and chat template, used in a subprocess, as both are code of the model's publisher.

Answers are cached on disk, so that the next plan of the same rows starts no process. The process is started at the
first question: forked, which is quicker, or spawned where this program has threads, whose locks a fork would keep. It
is killed if a template computes endlessly, and its memory is bounded; the caller then gets a problem that says so.
What the process imports is not loaded here.
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
from launcher.core.problems import Problem, Problems, path_repr
from launcher.core.remembered import recall, remember
from launcher.core.user_code import CallFailure, try_call
from launcher.models.pretrained import Pretrained, tokenizer_folder, weights_of
from launcher.spec.algorithm import Kind
from launcher.spec.data import Dataset, Row
from launcher.spec.model import Model
from launcher.text.bounds import RENDER_S, TOKENIZER, Count

LOAD_S, LOAD_S_PER_BYTE = 3.0, 1 / 2**23
"""CPU seconds to load a tokenizer: fixed, and per byte of tokenizer.json; the largest need a quarter of these."""
WHOLE_S = 300
"""CPU seconds that the process may take for one question."""
WALL_S = 600.0
"""Seconds after which the process is taken for hung."""
CACHE_NAME = "text"
"""Name under which answers are cached."""
FILES = ("*.json", "*.jinja", "*.model", "*.txt", "additional_chat_templates/*.jinja")
"""Files of a model's folder that its tokenizer and chat template may depend on."""
PACKAGES = ("transformers", "tokenizers", "jinja2", "regex")


class TextProcess:
    """Counts tokens, and checks tokenizer and chat template. Each method raises `Problems` where these fail."""

    def __init__(self, model: Model, data: Dataset) -> None:
        """The model must have a tokenizer.json, or be made of settings."""
        self.model, self.data = model, data
        self._channel: Connection[Any, Any] | None = None
        self._process: BaseProcess | None = None
        self._loaded = False
        self._salt = _fingerprint(model, data)

    def lengths(self, rows: Sequence[Row], kind: Kind) -> list[Count]:
        """Tokens of each row, as `measure.count_tokens` counts them."""
        counts = self._ask("lengths", list(rows), kind)
        return [count if isinstance(count, str) else (count[0], count[1], count[2]) for count in counts]

    def pieces(self, rows: Sequence[Row], kind: Kind) -> list[list[tuple[str, bool]]]:
        """For each sequence of the rows, each token's text and whether it has a loss. A row that cannot be written has
        no sequence; a prompt to sample from has no loss."""
        return [[(str(text), bool(loss)) for text, loss in pieces] for pieces in self._ask("pieces", list(rows), kind)]

    def tokens(self, text: str) -> int:
        """Number of tokens of a text, without special tokens."""
        return int(self._ask("tokens", text))

    def templated(self) -> bool:
        """Whether rows are written with a chat template."""
        return bool(self._ask("templated"))

    def first_split_difference(self, rows: Sequence[Row]) -> str:
        """The first text of the rows that AutoTokenizer splits differently from tokenizer.json; empty where there is
        none. It loads torch."""
        return str(self._ask("first_split_difference", list(rows)))

    def facts(self, rows: Sequence[Row]) -> list[CheckResult]:
        """Results of all checks of the tokenizer, and of the chat template on these rows."""
        return [CheckResult(*fields) for fields in self._ask("facts", list(rows))]

    def _ask(self, *question: Any) -> Any:
        """The answer, as JSON holds it. An answer with errors is not cached: it may differ next time."""
        key = hashlib.sha256(self._salt + repr(question).encode("utf-8", "replace")).hexdigest() if self._salt else ""
        answer = recall(CACHE_NAME, key) if key else None
        if answer is None:
            if self._channel is None:
                self._start()
            answer = self._receive_answer(question)
            if key and not (isinstance(answer, list) and any(isinstance(item, str) for item in answer)):
                remember(CACHE_NAME, key, answer)
        return answer

    def _receive_answer(self, question: tuple[Any, ...]) -> Any:
        """Send a question and wait for the answer. Raises `Problems` where there is none."""
        assert self._channel
        try:
            self._channel.send(question)
            if not self._channel.poll(WALL_S):
                raise Problems(self._problem(f"gives no answer for {WALL_S:g} s", "tokenizer", "run it again"))
            answer, problems = self._channel.recv()
        except (EOFError, OSError) as error:
            raise Problems(self._exit_problem()) from error
        if isinstance(answer, CallFailure):
            problems = [self._problem(f"cannot be used: {answer.reason}", "tokenizer")]
        if problems:
            raise Problems(problems)
        return answer

    def _start(self) -> None:
        context = get_context("fork") if threading.active_count() == 1 else get_context("spawn")
        self._channel, child_channel = Pipe()
        arguments = (child_channel, self.model, self.data)
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        child_channel.close()
        self._receive_answer(("templated",))  # short, so that the pipe takes it even if the process is stuck
        self._loaded = True

    def _exit_problem(self) -> Problem:
        """The problem that names why the process has ended, from its exit code."""
        assert self._process
        self._process.join()
        number = -(self._process.exitcode or 0)
        load_fix = "use one with fewer added tokens in tokenizer_config.json and tokenizer.json, or another model"
        too_long = (f"computes for more than {WHOLE_S} s", "tokenizer")
        reasons: dict[int, tuple[str, ...]] = {
            signal.SIGPROF: (f"computes for more than {RENDER_S:g} s on the first rows", "chat template"),
            signal.SIGVTALRM: (f"computes for more than {RENDER_S:g} s on one word", "tokenizer"),
            signal.SIGXCPU: too_long if self._loaded else ("takes too long to load", "tokenizer", load_fix),
        }
        how = f"by {signal.Signals(number).name}" if number > 0 else f"with {-number}"
        return self._problem(*reasons.get(number, (f"ended its process {how}", "tokenizer")))

    def _problem(self, got: str, what: str, fix: str = "") -> Problem:
        path = self.model.path if isinstance(self.model, Pretrained) else self.model.label
        files = "chat_template.jinja or tokenizer_config.json" if what == "chat template" else "tokenizer.json"
        return Problem(
            "model.path", f"the {what} of {path_repr(path)} {got}", fix or f"fix {files}, or use another model"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        if self._channel:
            self._channel.close()
        if self._process:
            self._process.kill()  # it may be busy, and has no state to save
            self._process.join()


def several_sequences(rows: int, of: int) -> str:
    """The message on `rows` of `of` rows that become several sequences each."""
    return (
        f"{rows:,} of {of:,} rows become several sequences: the chat template writes answers otherwise once turns"
        " follow, and each is learned behind the tokens that it would be sampled after; data.loss_on=last learns the"
        " last alone"
    )


def _fingerprint(model: Model, data: Dataset) -> bytes:
    """SHA-256 of all that answers depend on but the question; empty where a file of the model cannot be read."""
    packages = [package_version(name) for name in PACKAGES]
    hasher = hashlib.sha256(repr([model, data.chat_template, data.template_args, data.loss_on, packages]).encode())
    folder = tokenizer_folder(Path(weights_of(model.path))).absolute() if isinstance(model, Pretrained) else None
    files = [file for pattern in FILES for file in sorted(folder.glob(pattern))] if folder else []
    try:
        for file in [*files, *sorted(Path(__file__).parent.glob("*.py"))]:
            with open_file(file) as opened:
                content = hashlib.file_digest(opened, "sha256").digest()
            hasher.update(f"{file}\0".encode("utf-8", "replace") + content)
    except OSError:
        return b""
    return hasher.digest()


def _serve(channel: Connection[Any, Any], model: Model, data: Dataset) -> None:
    """The main function of the process: answer questions until the channel is closed."""
    devnull = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(devnull, descriptor)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPROF, signal.SIGVTALRM, signal.SIGXCPU):
        signal.signal(number, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if "tokenizers" in sys.modules:  # a fork has none of its threads, and would wait for them forever
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
    loaded = list[Any]()

    def make_measure() -> Any:
        gc.disable()  # importing and loading make no garbage, and collecting would take a quarter of the time
        try:
            from launcher.text.measure import Measure  # noqa: PLC0415  late: it loads transformers, here only

            _limit_cpu(_load_s(model))
            return Measure(model, data)
        finally:
            _limit_cpu(WHOLE_S)
            gc.freeze()
            gc.enable()

    def answer(name: str, *arguments: Any) -> tuple[Any, list[Problem]]:
        try:
            if not loaded:
                loaded.append(make_measure())
            answer = getattr(loaded[0], name)(*arguments)
            return [astuple(result) for result in answer] if name == "facts" else answer, []
        except Problems as error:
            return None, error.problems

    with suppress(EOFError):
        while True:
            question = channel.recv()
            _limit_cpu(WHOLE_S)
            reply = try_call(partial(answer, *question))
            channel.send((reply, []) if isinstance(reply, CallFailure) else reply)


def _load_s(model: Model) -> int:
    file = tokenizer_folder(Path(weights_of(model.path))) / TOKENIZER if isinstance(model, Pretrained) else None
    return math.ceil(LOAD_S + LOAD_S_PER_BYTE * (file.stat().st_size if file and file.is_file() else 0))


def _limit_cpu(seconds: int) -> None:
    """Let SIGXCPU end this process after that many further CPU seconds."""
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    limit = int(time.process_time()) + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (limit if hard < 0 else min(limit, hard), hard))
