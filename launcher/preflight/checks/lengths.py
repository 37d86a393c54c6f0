"""Lengths of prompts and responses against their limits: short texts fit by their bytes and are not tokenized."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from launcher.core.check_result import CheckResult, Level, from_problems
from launcher.core.problems import Problems
from launcher.models.pretrained import Pretrained
from launcher.spec.data import Row, Split
from launcher.spec.run import RunSpec
from launcher.text.chat_template import longest_around

if TYPE_CHECKING:
    from launcher.text.lengths import Lengths

COUNTED = 2_000_000  # bytes of a split whose tokens are counted: the longest rows
FIRST = 100  # rows that are counted in any case: they may be of a form that cannot be written


@dataclass(frozen=True)
class LengthReport:
    """Check results on lengths, and how many training rows data.truncation=filter leaves out."""

    results: list[CheckResult]
    filtered: int = 0


def measure_lengths(run: RunSpec, train: Sequence[Row], val: Sequence[Row]) -> LengthReport:
    """Compare prompts and responses with their limits: by bytes where that is enough, otherwise by tokens."""
    limits = run.data.max_prompt_length, run.data.max_response_length
    longest = [max(of) for of in zip(*(sizes(row) for row in [*train, *val]), strict=True)]
    around = longest_around(run.model)
    fits = all(most + (around or 0) <= limit for most, limit in zip(longest, limits, strict=True))
    if around is not None and fits and all(map(_single, [*train, *val])):
        output = f"all fit, as the longest prompt has {longest[0]} bytes"
        return LengthReport([*_without_template(train), CheckResult("OK", "lengths", output)])
    try:
        encoder = _encoder(run)
    except Problems as problems:
        return LengthReport(from_problems(problems.problems))
    if encoder is None:
        output = "no tokens are counted, as the model's tokenizer is not here yet"
        fix = f"run rlrun model download {run.model.path}" if isinstance(run.model, Pretrained) else ""
        return LengthReport([CheckResult("WARN", "lengths", output, fix)])
    from launcher.text.lengths import Lengths  # noqa: PLC0415  late: see `_encoder`

    lengths = Lengths(encoder)
    of_train, of_val = _check_tokens(run, lengths, "train", train), _check_tokens(run, lengths, "val", val)
    return LengthReport([*of_train.results, *of_val.results], of_train.filtered)


def _single(row: Row) -> bool:
    """One question, and at most its answer: others need a chat template."""
    return isinstance(row.prompt, str) or [turn.role for turn in row.prompt] in (["user"], ["user", "assistant"])


def _without_template(rows: Sequence[Row]) -> Iterator[CheckResult]:
    """Of a model without a chat template: turns that it reads as one text."""
    turns = sum(not isinstance(row.prompt, str) for row in rows)
    if turns:
        message = f"has no chat template, so {turns:,} conversations are written as plain text"
        yield CheckResult("WARN", "model", message, "use an instruct model, or rows of prompt and response")


def _encoder(run: RunSpec) -> Any:
    """None where the model's tokenizer is not on this machine."""
    if isinstance(run.model, Pretrained) and (run.model.on_hub or run.model.trust_remote_code):
        return None
    from launcher.text.encoder import Encoder  # noqa: PLC0415  late: it costs a second
    from launcher.text.tokenizer import load_fast_tokenizer  # noqa: PLC0415  late, as above

    tokenizer = load_fast_tokenizer(run.model)
    if tokenizer is None:
        return None
    return Encoder(tokenizer, replace(run.data, max_prompt_length=2**40, max_response_length=2**40))


def sizes(row: Row) -> tuple[int, int]:
    """Bytes of a row's prompt and of its answer: no tokenizer makes more tokens, apart from those around turns. A
    conversation that holds its answers is counted as both."""
    if isinstance(row.prompt, str):
        return _bytes(row.prompt), max(_bytes(row.response or ""), _bytes(row.rejected or ""))
    whole = sum(_bytes(turn.content) for turn in row.prompt)
    answers = _bytes(row.response or ""), _bytes(row.rejected or "")
    return whole, max(whole, *answers) if row.response is None else max(answers)


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def _longest(rows: Sequence[Row]) -> list[Row]:
    """The rows whose tokens are counted, in their order."""
    by_size = sorted(range(len(rows)), key=lambda place: -sum(sizes(rows[place])))
    chosen, text = set(range(min(FIRST, len(rows)))), 0
    for place in by_size:
        text += sum(sizes(rows[place]))
        if text > COUNTED:
            break
        chosen.add(place)
    return [rows[place] for place in sorted(chosen)]


def _check_tokens(run: RunSpec, lengths: Lengths, split: Split, every: Sequence[Row]) -> LengthReport:
    """Counts the tokens of a split's longest rows; no results where there are none."""
    data, rows = run.data, _longest(every)
    if not rows:
        return LengthReport([])
    asked = split == "val" and run.algorithm.sampled
    counts = lengths.of(rows, "prompts" if asked else run.algorithm.data)
    unwritable = [(row, count) for row, count in zip(rows, counts, strict=True) if isinstance(count, str)]
    if unwritable:
        row, why = unwritable[0]
        level: Level = "WARN" if data.on_bad_row == "skip" and len(unwritable) < len(rows) else "FAIL"
        many = f"{len(unwritable):,} rows cannot be written with the model's chat template"
        return LengthReport([CheckResult(level, row.where, f"{many}, the first: {why}")])
    of = f"{len(rows):,}" if len(rows) == len(every) else f"the {len(rows):,} longest"
    results, over, summary = list[CheckResult](), set[int](), list[str]()
    for place, (what, limit) in enumerate((("prompt", data.max_prompt_length), ("response", data.max_response_length))):
        tokens = [count[place] for count in counts if not isinstance(count, str)]
        long = [number for number, length in enumerate(tokens) if length > limit]
        over.update(long)
        if long:
            results.append(_too_long(run, f"{of} {split}", rows[long[0]], what, limit, tokens, len(long)))
        if max(tokens):
            summary.append(f"{what}s of at most {max(tokens)}")
    filtered = len(over) if split == "train" and data.truncation == "filter" else 0
    return LengthReport(results or [CheckResult("OK", f"lengths {split}", f"{' and '.join(summary)} tokens")], filtered)


def _too_long(run: RunSpec, of: str, first: Row, what: str, limit: int, tokens: list[int], over: int) -> CheckResult:
    setting, truncation = f"data.max_{what}_length", run.data.truncation
    message = f"{over:,} of {of} {what}s are longer than {limit} tokens ({first.where} is the first)"
    if truncation == "error":
        return CheckResult("FAIL", setting, message, f"use {max(tokens)} or data.truncation=filter")
    action = "left out" if truncation == "filter" else f"cut on the {truncation}"
    level: Level = "FAIL" if truncation == "filter" and over == len(tokens) else "WARN"
    return CheckResult(level, setting, f"{message}, and {action}", f"use {max(tokens)} to keep all")
