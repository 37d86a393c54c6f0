"""Lengths of prompts and responses against their limits, and text that the tokenizer does not know."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from launcher.core.check_result import CheckResult, Level, from_problems
from launcher.core.problems import Problems, short_repr
from launcher.data.formats import template_fields
from launcher.models import config
from launcher.models.pretrained import LAYOUTS, Pretrained, base_folder, tokenizer_folder, weights_of
from launcher.models.scratch import Scratch
from launcher.spec.algorithm import Kind
from launcher.spec.data import Row, Split
from launcher.spec.run import RunSpec
from launcher.text.bounds import EQUAL, MOSTLY, SOME, TOKENIZER, Count
from launcher.text.process import TextProcess, several_sequences

COUNTED = 2_000_000  # bytes of a split whose tokens are counted: the longest rows
FIRST = 100  # rows that are counted in any case: they may be of a form that cannot be written
PART = 1000  # rows that are counted at a time
SHOWN, SHOWN_TOKENS = 3, 400  # rows that are shown, and of each sequence at most so many tokens
ENDS = 2  # tokens that a tokenizer of characters puts around a text


@dataclass(frozen=True)
class LengthReport:
    """Check results on lengths, and how many training rows data.truncation=filter leaves out."""

    results: list[CheckResult]
    filtered: int = 0
    text: list[CheckResult] = field(default_factory=list)
    """On the tokenizer and the chat template."""
    differs_by_turn: str | None = None
    """Where the first conversation stands that is another one if it is written turn by turn; None is not known."""


def measure_lengths(run: RunSpec, train: Sequence[Row], val: Sequence[Row]) -> LengthReport:
    """Compare prompts and responses with their limits: by bytes where that is enough, otherwise by tokens."""
    every = [*train, *val]
    if isinstance(run.model, Scratch):
        if not run.model.chat and (fits := _by_bytes(run, run.model, every)):
            return fits
    elif why := _not_here(run):
        return LengthReport([why] if every else [])
    try:
        model = replace(run.model, path=weights_of(run.model.path)) if isinstance(run.model, Pretrained) else run.model
    except Problems:  # no checkpoint verifies; the check of the model says so
        return LengthReport([])
    with TextProcess(model, run.data) as text:
        try:
            facts = text.facts([*train[:FIRST], *val[:FIRST]])
            if not text.templated():
                facts += _without_template(run, every)
            facts += _other_class(run, text, [*train[:FIRST], *val[:FIRST]])
            by_turn = run.engine.writes_by_turn and run.algorithm.data == "answers" and text.templated()
            differs_by_turn = text.differs_by_turn([*train[:FIRST], *val[:FIRST]]) if by_turn else None
        except Problems as problems:
            return LengthReport([], text=from_problems(problems.problems))
        try:
            of_train, of_val = _check_tokens(run, text, "train", train), _check_tokens(run, text, "val", val)
        except Problems as problems:
            return LengthReport(from_problems(problems.problems), text=facts, differs_by_turn=differs_by_turn)
    return LengthReport([*of_train.results, *of_val.results], of_train.filtered, facts, differs_by_turn)


def as_tokens(run: RunSpec, rows: Sequence[Row]) -> list[list[dict[str, Any]]]:
    """The sequences of tokens that rows become, and which tokens have a loss; of a long one its begin and its end. An
    engine that writes demonstrations in its own way has none here."""
    if run.engine.writes_by_turn and run.algorithm.data == "answers":
        return []
    try:
        with TextProcess(run.model.here, run.data) as text:
            found = text.pieces(rows, run.algorithm.data)[: 2 * SHOWN]
    except Problems:  # the results of the checks say so
        return []
    half = SHOWN_TOKENS // 2
    for place, each in enumerate(found):
        if (gap := len(each) - SHOWN_TOKENS) > 0:
            found[place] = [*each[:half], (f" [... {gap} tokens ...] ", False), *each[-half:]]
    return [[{"text": text, "loss": loss} for text, loss in each] for each in found]


def _other_class(run: RunSpec, text: TextProcess, rows: Sequence[Row]) -> Iterator[CheckResult]:
    """Of an engine that takes a tokenizer by its class: whether that splits as tokenizer.json does."""
    if run.engine.picks_tokenizer and (other := text.split_otherwise(rows)):
        message = f"its tokenizer_config.json names a class that splits {short_repr(other, 40)} otherwise than"
        fix = "use a folder whose tokenizer_class fits its tokenizer.json, such as PreTrainedTokenizerFast"
        yield CheckResult("WARN", "model.path", f"{message} {TOKENIZER}; this engine takes it", fix)


def _by_bytes(run: RunSpec, model: Scratch, rows: Sequence[Row]) -> LengthReport | None:
    """Of a tokenizer of characters: nothing needs to be counted where each row has fewer bytes than tokens fit."""
    every, limits = [sizes(row) for row in rows], _limits(run)
    longest = [max(of, default=0) for of in zip(*every, strict=True)] or [0, 0]
    fits = all(limit.of(size) + ENDS <= limit.tokens for size in every for limit in limits)
    if not (fits and all(map(_single, rows))):
        return None
    output = f"all fit, as the longest prompt has {longest[0]} bytes"
    found = [*_without_template(run, rows), CheckResult("OK", "lengths", output)] if rows else []
    return LengthReport(found, text=list(_unknown(model, rows[:FIRST])))


def _unknown(model: Scratch, rows: Sequence[Row]) -> Iterator[CheckResult]:
    """Whether characters of the rows are not in the model's alphabet."""
    turns = ([row.prompt] if isinstance(row.prompt, str) else [turn.content for turn in row.prompt] for row in rows)
    asked = "".join(text for texts in turns for text in texts)
    answered = "".join(text for row in rows for text in (row.response, row.rejected) if text)
    for what, text in (("prompts", asked), ("answers", answered)):
        missing = sum(letter not in model.alphabet for letter in text)
        if missing > SOME * len(text):
            share = f"{missing / len(text):.0%} of the characters of the {what} are not in model.alphabet"
            level: Level = "FAIL" if missing > MOSTLY * len(text) else "WARN"
            yield CheckResult(level, "model.alphabet", f"{share} and become <unk>", _wider({*asked, *answered}, model))
            return


def _wider(letters: set[str], model: Scratch) -> str:
    whole = model.alphabet + "".join(sorted(letters - {*model.alphabet}))
    typed = whole.isprintable() and len(whole) < 300 and not {*whole} & {*"\"\\$'"}
    word = f'model.alphabet="{whole}"'
    return f"{f'use {shlex.quote(word)}' if typed else 'add them to model.alphabet'}, or another model"


def _without_template(run: RunSpec, rows: Sequence[Row]) -> Iterator[CheckResult]:
    """Of a model without a chat template: turns that it reads as one text, or that the engine cannot write."""
    if beside := [row for row in rows if template_fields(row)]:
        message = f"no chat template is used, so tools, calls and reasoning of {len(beside):,} rows are lost"
        fix = "use an instruct model, or write them into the texts"
        yield CheckResult("WARN", "model", f"{message} ({beside[0].where} is the first)", fix)
    turns, instead = sum(not isinstance(row.prompt, str) for row in rows), run.engine.without_template()
    if run.data.chat_template == "never":
        return
    if rows and instead == "fails":
        message = "has no chat template, and this engine writes all rows with one"
        yield CheckResult("FAIL", "model", message, "use an instruct model, or put chat_template.jinja in its folder")
    elif turns and instead == "plain text":
        message = f"has no chat template, so {turns:,} conversations are written as plain text"
        yield CheckResult("WARN", "model", message, "use an instruct model, or rows of prompt and response")


def _single(row: Row) -> bool:
    """One question, and at most its answer: others need a chat template."""
    return isinstance(row.prompt, str) or [turn.role for turn in row.prompt] in (["user"], ["user", "assistant"])


def _not_here(run: RunSpec) -> CheckResult | None:
    """Why the tokenizer is not used before the run starts."""
    model = run.model
    assert isinstance(model, Pretrained)
    output = "no tokens are counted, as the model's tokenizer "
    if model.on_hub:
        return CheckResult("WARN", "lengths", f"{output}is not here yet", f"run rlrun model download {model.path}")
    if model.trust_remote_code:
        return CheckResult("WARN", "lengths", f"{output}may run code of its own", "rlrun data check counts them")
    if not (tokenizer_folder(model.folder) / TOKENIZER).is_file():
        base = (config.read(model.folder, LAYOUTS[1]) or {}).get("base_model_name_or_path")
        if base and base_folder(model.folder) is None:
            got = f"{output}is that of its base, which is not here"
            return CheckResult("WARN", "lengths", got, f"run rlrun model download {shlex.quote(str(base))}")
        saves = f"AutoTokenizer.from_pretrained({model.path!r}).save_pretrained({model.path!r})"
        fix = f"save {TOKENIZER} beside it: {saves}"
        return CheckResult("WARN", "lengths", f"{output}has no {TOKENIZER}", fix)
    return None


def sizes(row: Row) -> tuple[int, int]:
    """Bytes of a row's prompt and of its answer: no tokenizer makes more tokens, apart from those around turns. A
    conversation that holds its answers is counted as both."""
    if isinstance(row.prompt, str):
        return _bytes(row.prompt), max(_bytes(row.response or ""), _bytes(row.rejected or ""))
    whole = sum(_bytes(turn.content) + (_bytes(str(turn.extra)) if turn.extra else 0) for turn in row.prompt)
    answers = _bytes(row.response or ""), _bytes(row.rejected or "")
    return whole, max(whole, *answers) if row.response is None else max(answers)


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def _count(run: RunSpec, text: TextProcess, kind: Kind, rows: Sequence[Row]) -> dict[int, Count]:
    """Token counts by place: of the first rows, and from the longest on until no row of a part is too long."""
    of_rows = [sum(sizes(row)) for row in rows]
    by_size = sorted(range(len(rows)), key=of_rows.__getitem__, reverse=True)
    chosen, size = list(range(min(FIRST, len(rows)))), 0
    for place in by_size:
        size += of_rows[place]
        if size > COUNTED:
            break
        chosen.append(place)
    waiting, found = list(dict.fromkeys(chosen)), dict[int, Count]()
    while waiting:
        part, waiting = waiting[:PART], waiting[PART:]
        counts = text.lengths([rows[place] for place in part], kind)
        found.update(zip(part, counts, strict=True))
        if not any(isinstance(count, str) or _is_over(run, count) for count in counts):
            break
    return dict(sorted(found.items()))


@dataclass(frozen=True)
class _Limit:
    """Of the tokens of prompts, of responses, or of both together."""

    what: str
    setting: str
    parts: slice
    tokens: int
    other: int = 0
    """Tokens of the limit that another setting gives."""

    def of(self, count: Sequence[int]) -> int:
        """The tokens that it limits, of those of prompt and response."""
        return sum(count[self.parts])


def _limits(run: RunSpec) -> list[_Limit]:
    prompt, response = run.data.max_prompt_length, run.data.max_response_length
    if run.shares_length:
        return [_Limit("row", "data.max_response_length", slice(2), run.max_sequence_length, prompt)]
    together = run.max_sequence_length < prompt + response
    both = [_Limit("row", "data.max_length", slice(2), run.max_sequence_length)] if together else []
    return [
        *both,
        _Limit("prompt", "data.max_prompt_length", slice(1), prompt),
        _Limit("response", "data.max_response_length", slice(1, 2), response),
    ]


def _check_tokens(run: RunSpec, text: TextProcess, split: Split, every: Sequence[Row]) -> LengthReport:
    """Counts the tokens of a split's longest rows; no results where there are none."""
    if not every:
        return LengthReport([])
    data, asked = run.data, split == "val" and run.algorithm.sampled
    counted = _count(run, text, "prompts" if asked else run.algorithm.data, every)
    rows = [every[place] for place in counted]
    found = [count for count in counted.values() if not isinstance(count, str)]
    if unwritable := [(every[place], count) for place, count in counted.items() if isinstance(count, str)]:
        return LengthReport([_not_written(unwritable, not found, data.on_bad_row == "skip")])
    of = f"{len(rows):,}" if len(rows) == len(every) else f"the {len(rows):,} longest"
    results = _over_limits(run, f"{of} {split}", rows, found)
    if not results:
        results.append(CheckResult("OK", f"lengths {split}", f"{_summary(run, found)} tokens"))
    if several := sum(count[2] > 1 for count in found):
        results.append(CheckResult("OK", f"sequences {split}", several_sequences(several, len(found))))
    return LengthReport(results, _filtered(run, found) if split == "train" else 0)


def _filtered(run: RunSpec, counts: Sequence[Sequence[int]]) -> int:
    """Rows that are left out for their length."""
    filters = run.data.truncation == "filter" and not run.shares_length
    return sum(_is_over(run, count) for count in counts) if filters else 0


def _summary(run: RunSpec, counts: Sequence[Sequence[int]]) -> str:
    most = [(limit.what, max(map(limit.of, counts))) for limit in _limits(run)]
    return " and ".join(f"{what}s of at most {tokens}" for what, tokens in most if tokens)


def _over_limits(run: RunSpec, of: str, rows: Sequence[Row], counts: Sequence[Sequence[int]]) -> list[CheckResult]:
    """One for each limit that some rows exceed."""
    results = []
    for limit in _limits(run):
        tokens = list(map(limit.of, counts))
        if first := next((row for row, length in zip(rows, tokens, strict=True) if length > limit.tokens), None):
            results.append(_too_long(run, of, first, limit, tokens))
    return results


def _is_over(run: RunSpec, count: Sequence[int]) -> bool:
    return any(limit.of(count) > limit.tokens for limit in _limits(run))


def _not_written(unwritable: Sequence[tuple[Row, str]], all_rows: bool, skip: bool) -> CheckResult:
    row, why = unwritable[0]
    how = "learned from" if why == EQUAL else "written with the model's chat template"
    many = f"{len(unwritable):,} rows cannot be {how}"
    where = "model.path" if all_rows and "the chat template fails" in why else row.where
    level: Level = "WARN" if skip and not all_rows else "FAIL"
    return CheckResult(level, where, f"{many}, the first: {why}", _fix(unwritable))


def _fix(unwritable: Sequence[tuple[Row, str]]) -> str:
    """What helps where a template, and not a row alone, is the reason."""
    if not any("the chat template" in why for _, why in unwritable) or all("; " in why for _, why in unwritable):
        return ""  # each says what to change
    if all(_single(row) for row, _ in unwritable):
        return "use data.chat_template=never (plain text), or fix chat_template in the model's tokenizer_config.json"
    turns = [turn for row, _ in unwritable if not isinstance(row.prompt, str) for turn in row.prompt]
    without = "without system turns" if any(turn.role == "system" for turn in turns) else "that it takes"
    return f"use rows {without}, or another chat_template in the model's tokenizer_config.json"


def _too_long(run: RunSpec, of: str, first: Row, limit: _Limit, tokens: list[int]) -> CheckResult:
    over = sum(length > limit.tokens for length in tokens)
    enough, truncation = max(tokens) - limit.other, run.data.truncation
    message = f"{over:,} of {of} {limit.what}s are longer than {limit.tokens} tokens ({first.where} is the first)"
    message += ", which is the length of prompt and response together" if limit.what == "row" else ""
    if truncation == "error" or (run.shares_length and truncation == "filter"):
        other = "right" if run.shares_length else "filter"
        return CheckResult("FAIL", limit.setting, message, f"use {enough} or data.truncation={other}")
    action = "left out" if truncation == "filter" else f"cut on the {truncation}"
    level: Level = "FAIL" if truncation == "filter" and over == len(tokens) else "WARN"
    return CheckResult(level, limit.setting, f"{message}, and {action}", f"use {enough} to keep all")


def token_count(run: RunSpec, text: str) -> int | None:
    """Tokens of a text; None where the model's tokenizer is not used before the run starts."""
    if isinstance(run.model, Pretrained) and _not_here(run):
        return None
    with suppress(Problems), TextProcess(run.model, run.data) as process:  # named by the lengths of the rows
        return process.tokens(text)
    return None
