"""`rlrun generate | chat MODEL`: what a run's checkpoint, a folder or a model of a hub answers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from launcher.cli.arguments import Root
from launcher.cli.output import AsJson, err, say, say_problems, tell, write_json
from launcher.cli.progress import show_download
from launcher.core.problems import Problem, Problems
from launcher.core.redaction import printable
from launcher.spec.data import Message, Row, Text, prompt_node
from launcher.tools import generate as asking

if TYPE_CHECKING:
    from launcher.engines.torch.answer import Answerer, Reply

TOGETHER = 64
"""Prompts that are answered in one batch."""

KEYS = "/help, /reset: a new conversation, /exit; Ctrl-C ends an answer, twice the chat"
ENDS = ("/exit", "/quit", "exit", "quit")
REPEATED = 240
"""Characters: an answer in `chat` is cut where its last so many are one text repeated."""

ModelName = Annotated[str, typer.Argument(metavar="MODEL", help="Run, model folder, or hub id.")]


@dataclass(frozen=True)
class AnswerOptions:
    """Which weights answer, what they are asked with, and how they sample."""

    step: Annotated[int | None, "The run's checkpoint of this step; default: its newest."] = None
    best: Annotated[bool, "The run's best checkpoint."] = False
    system: Annotated[str | None, "Text of a system turn before each prompt."] = None
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens of an answer; default: those of the run, else 512.")
    ] = None
    temperature: Annotated[float, typer.Option(min=0, help="0 takes the likeliest token each time.")] = 0.0
    top_p: Annotated[float, typer.Option(min=1e-6, max=1, help="Sample from this share of probability.")] = 1.0
    top_k: Annotated[int, typer.Option(min=-1, help="Sample from this many likeliest tokens; -1: from all.")] = -1
    seed: Annotated[int, "Equal seeds give equal answers."] = 0
    trust: Annotated[bool, typer.Option("--trust-remote-code", help="Run Python code that comes with the model.")] = (
        False
    )
    template_args: Annotated[
        str | None, typer.Option(metavar="JSON", help="Arguments of the chat template, before those of the run.")
    ] = None
    root: Root = Path("runs")


def generate(
    name: ModelName,
    prompts: Annotated[list[str] | None, typer.Argument(metavar="PROMPT...", help="What it is asked.")] = None,
    file: Annotated[
        str | None, typer.Option(metavar="FILE", help="Rows with a prompt: jsonl, json, csv, tsv, parquet.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write rows of prompt and response to this jsonl file.")
    ] = None,
    n: Annotated[int, typer.Option("-n", min=1, help="Answers to each prompt.")] = 1,
    *,
    options: AnswerOptions,
    as_json: AsJson = False,
) -> None:
    """Answers are written, sampled and ended as in training.

    rlrun generate ada "Who are you?"
    rlrun generate ada --file questions.csv --out answers.jsonl
    """
    questions = _read_prompts(prompts or [], file, options.system)
    if n > 1 and not options.temperature:
        raise Problems(Problem("-n", f"got {n}, and at temperature 0 all answers are alike", "add --temperature 1"))
    rows = asking.open_rows(out) if out else None
    answerer = _load(name, options, n)
    answerer.check(questions)
    if rows:
        with rows:
            for row, replies in _answers(answerer, questions):
                rows.writelines(asking.as_line(row, reply.text) for reply in replies)
                rows.flush()
        say(f"{out}  {len(questions) * n} answers")
    elif as_json:
        write_json([_node(row.prompt, each) for row, replies in _answers(answerer, questions) for each in replies])
    elif len(questions) == n == 1:
        answerer.stream(questions[0], 0, _show)
        typer.echo()
    else:
        for row, replies in _answers(answerer, questions):
            say(f"> {row.prompt if isinstance(row.prompt, str) else row.prompt[-1].content}", "dim")
            for reply in replies:
                _show(reply.text + "\n")


def chat(name: ModelName, options: AnswerOptions) -> None:
    """/help lists the keys, /reset or an empty line begins a new conversation, /exit or Ctrl-D ends. Ctrl-C ends the
    answer that is being written, and twice the chat."""
    answerer = _load(name, options)
    templated = answerer.encoder.templated
    tell(KEYS if templated else f"{KEYS}; trained without a chat template: each line is answered by itself")
    start: tuple[Message, ...] = (Message("system", options.system),) if options.system else ()
    turns, number, interrupts = start, -1, 0
    while interrupts < 2:
        try:
            line = _read_line()
        except KeyboardInterrupt:
            interrupts += 1
            tell("" if interrupts > 1 else "\nCtrl-C again ends the chat")
            continue
        number, interrupts, word = number + 1, 0, line.strip() if line is not None else "/exit"
        if word in ENDS:
            return
        if word in ("", "/reset"):
            turns = start
        elif word.startswith("/") and word[1:].isalpha():
            tell({"/help": KEYS}.get(word, f"there is no {word}; {KEYS}"))
        else:
            try:
                turns = _reply(answerer, (*(turns if templated else start), Message("user", line or "")), number)
            except KeyboardInterrupt:  # ends the answer, not the conversation
                interrupts = 1
                tell("\n(stopped; Ctrl-C again ends the chat)")
            except Problems as full:
                say_problems([*full.problems, "a new conversation begins"])
                turns = start


class _RepeatedText(Exception):
    """The end of the answer repeats one text."""


def _reply(answerer: Answerer, turns: tuple[Message, ...], number: int) -> tuple[Message, ...]:
    """Answer the last turn, printed as it is written; returns the turns with the answer. Raises `Problems`."""
    text = ""

    def show(piece: str) -> None:
        nonlocal text
        _show(piece)
        text += piece
        tail = text[-REPEATED:]
        if len(tail) == REPEATED and any(tail[size:] == tail[:-size] for size in range(1, REPEATED // 5)):
            raise _RepeatedText

    try:
        reply = answerer.stream(Row("prompt", turns if len(turns) > 1 else turns[0].content), number, show)
        text, note = reply.text, f"(cut after {reply.tokens} tokens)" if reply.truncated else ""
    except _RepeatedText:
        note = "(cut: it repeats itself)"
    typer.echo()
    if note:
        tell(note)
    return (*turns, Message("assistant", text))


def _read_prompts(texts: list[str], file: str | None, system: str | None) -> list[Row]:
    rows = [Row(f"prompt {number}", text) for number, text in enumerate(texts, 1)]
    rows += asking.read_prompts(file) if file else []
    if not rows:
        raise Problems(Problem("PROMPT", "is missing", "use a text, or --file FILE; rlrun chat MODEL for a talk"))
    return [asking.with_system(row, system) for row in rows]


def _load(name: str, of: AnswerOptions, n: int = 1) -> Answerer:
    if not of.top_k:
        raise Problems(Problem("--top-k", "0 leaves no token to sample", "use -1 for all"))
    args = asking.read_args(of.template_args)
    with show_download() as watch:
        chosen = asking.choose(name, of.root, of.step, of.best, watch, trust=of.trust, template_args=args)
    with err.status(f"loading {printable(chosen.label)}"):
        from launcher.engines.torch.answer import Answerer, Sampling  # noqa: PLC0415  # late: it loads torch

        sampling = Sampling(n, of.temperature, of.top_p, of.top_k, of.max_tokens, chosen.usual_tokens, of.seed)
        return Answerer(chosen.folder, chosen.data, sampling, trust_remote_code=chosen.trust_remote_code)


def _answers(answerer: Answerer, prompts: list[Row]) -> Iterator[tuple[Row, list[Reply]]]:
    for first in range(0, len(prompts), TOGETHER):
        batch = prompts[first : first + TOGETHER]
        yield from zip(batch, answerer.answers(batch, first), strict=True)


def _node(prompt: Text, reply: Reply) -> dict[str, object]:
    answer = {"response": reply.text, "tokens": reply.tokens, "truncated": reply.truncated}
    return {"prompt": prompt_node(prompt), **answer}


def _read_line() -> str | None:
    """The next line that is typed, with a prompt on a terminal; None at the end."""
    if not sys.stdin.isatty():
        return line.rstrip("\n") if (line := sys.stdin.readline()) else None
    import readline  # noqa: F401, PLC0415  # its import gives `input` editing and history

    try:
        return input("> ")
    except EOFError:
        return None


def _show(piece: str) -> None:
    typer.echo(printable(piece, "\n\t"), nl=False)
    sys.stdout.flush()
