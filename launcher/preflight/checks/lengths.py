"""Checks lengths of prompts and responses against their limits, and text that the tokenizer does not know."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from launcher.core.check_result import CheckResult, Level, from_problems
from launcher.core.problems import Problems, short_repr
from launcher.data.formats import template_fields
from launcher.models import config
from launcher.models.pretrained import LAYOUTS, Pretrained, base_folder, tokenizer_folder, weights_of
from launcher.models.scratch import Scratch
from launcher.spec.algorithm import Kind
from launcher.spec.data import Row, prompt_turns
from launcher.spec.run import RunSpec
from launcher.text.bounds import EQUAL, FAIL_SHARE, TOKENIZER, WARN_SHARE, Count
from launcher.text.process import TextProcess, several_sequences

COUNTED = 2_000_000  # bytes of a split's longest rows, whose tokens are counted
FIRST = 100  # rows that are counted in any case, as the template may refuse their form
PART = 1000  # rows whose tokens are counted together
SHOWN, SHOWN_TOKENS = 3, 400  # rows that a plan shows, and most tokens of each sequence
ENDS = 2  # special tokens that a tokenizer of characters adds to a text


@dataclass(frozen=True)
class LengthReport:
    """Results of the checks on lengths, and the number of training rows that data.truncation=filter drops."""

    results: list[CheckResult]
    filtered: int = 0
    text: list[CheckResult] = field(default_factory=list)
    """Results on the tokenizer and the chat template."""


def measure_lengths(run: RunSpec, train: Sequence[Row], val: Sequence[Row]) -> LengthReport:
    """Compare prompts and responses with their limits: by bytes where that suffices, otherwise by tokens."""
    rows = [*train, *val]
    if isinstance(run.model, Scratch):
        if not run.model.chat and (report := _fits_by_bytes(run, run.model, rows)):
            return report
    elif unavailable := _tokenizer_unavailable(run):
        return LengthReport([unavailable] if rows else [])
    try:
        model = replace(run.model, path=weights_of(run.model.path)) if isinstance(run.model, Pretrained) else run.model
    except Problems:  # no checkpoint verifies; the check of the model says so
        return LengthReport([])
    first, facts, results, filtered = [*train[:FIRST], *val[:FIRST]], list[CheckResult](), list[CheckResult](), 0
    with TextProcess(model, run.data) as text:
        try:
            facts += text.facts(first)
            facts += () if text.templated() else _without_template(run, rows)
            facts += _check_class(text, first) if run.engine.picks_tokenizer else ()
            results, filtered = _check_tokens(run, text, "train", train)
            results += _check_tokens(run, text, "val", val)[0]
        except Problems as problems:
            facts += from_problems(problems.problems)
    return LengthReport(results, filtered, facts)


def _check_class(text: TextProcess, rows: Sequence[Row]) -> Iterator[CheckResult]:
    """Warn of a tokenizer class, which this engine takes, that splits the rows otherwise than tokenizer.json."""
    if other := text.first_split_difference(rows):
        message = f"its tokenizer_config.json names a class that splits {short_repr(other, 40)} otherwise than"
        fix = "use a folder whose tokenizer_class fits its tokenizer.json, such as PreTrainedTokenizerFast"
        yield CheckResult("WARN", "model.path", f"{message} {TOKENIZER}; this engine takes it", fix)


def as_tokens(run: RunSpec, rows: Sequence[Row]) -> list[list[dict[str, Any]]]:
    """The token sequences that rows become, with the tokens that have a loss; long ones are shortened in the middle.
    Empty for an engine that encodes demonstrations in its own way."""
    if run.engine.writes_by_turn and run.algorithm.data == "answers":
        return []
    try:
        with TextProcess(run.model.here, run.data) as text:
            sequences = text.pieces(rows, run.algorithm.data)[: 2 * SHOWN]
    except Problems:  # the checks report it
        return []
    half = SHOWN_TOKENS // 2
    for index, sequence in enumerate(sequences):
        if (gap := len(sequence) - SHOWN_TOKENS) > 0:
            sequences[index] = [*sequence[:half], (f" [... {gap} tokens ...] ", False), *sequence[-half:]]
    return [[{"text": text, "loss": loss} for text, loss in sequence] for sequence in sequences]


def _fits_by_bytes(run: RunSpec, model: Scratch, rows: Sequence[Row]) -> LengthReport | None:
    """For a tokenizer of characters: the report without counting, if every row has fewer bytes than its limits."""
    row_sizes, limits = [sizes(row) for row in rows], _limits(run)
    longest = [max(of, default=0) for of in zip(*row_sizes, strict=True)] or [0, 0]
    fits = all(limit.of(size) + ENDS <= limit.tokens for size in row_sizes for limit in limits)
    if not (fits and all(map(_is_single_turn, rows))):
        return None
    message = f"all fit, as the longest prompt has {longest[0]} bytes"
    results = [*_without_template(run, rows), CheckResult("OK", "lengths", message)] if rows else []
    return LengthReport(results, text=list(_check_alphabet(model, rows[:FIRST])))


def _check_alphabet(model: Scratch, rows: Sequence[Row]) -> Iterator[CheckResult]:
    """Check that the model's alphabet has the characters of the rows."""
    prompts = "".join(content for row in rows for _, content in prompt_turns(row))
    answers = "".join(text for row in rows for text in (row.response, row.rejected) if text)
    for what, text in (("prompts", prompts), ("answers", answers)):
        missing = sum(character not in model.alphabet for character in text)
        if missing > WARN_SHARE * len(text):
            message = f"{missing / len(text):.0%} of the characters of the {what} are not in it and become <unk>"
            level: Level = "FAIL" if missing > FAIL_SHARE * len(text) else "WARN"
            fix = "leave model.alphabet out, and it is made of the rows, or use another model"
            yield CheckResult(level, "model.alphabet", message, fix)
            return


def _without_template(run: RunSpec, rows: Sequence[Row]) -> Iterator[CheckResult]:
    """Check a model without a chat template for turns that become plain text, or that the engine cannot write."""
    if affected := [row for row in rows if template_fields(row)]:
        message = f"no chat template is used, so tools, calls and reasoning of {len(affected):,} rows are lost"
        fix = "use an instruct model, or write them into the texts"
        yield CheckResult("WARN", "model", f"{message} ({affected[0].where} is the first)", fix)
    turns, fallback = sum(not isinstance(row.prompt, str) for row in rows), run.engine.without_template()
    if run.data.chat_template == "never":
        return
    if rows and fallback == "fails":
        message = "has no chat template, and this engine writes all rows with one"
        yield CheckResult("FAIL", "model", message, "use an instruct model, or put chat_template.jinja in its folder")
    elif turns and fallback == "plain text":
        message = f"has no chat template, so {turns:,} conversations are written as plain text"
        yield CheckResult("WARN", "model", message, "use an instruct model, or rows of prompt and response")


def _is_single_turn(row: Row) -> bool:
    """Whether a row is one question with at most one answer; other rows need a chat template."""
    return isinstance(row.prompt, str) or [turn.role for turn in row.prompt] in (["user"], ["user", "assistant"])


def _tokenizer_unavailable(run: RunSpec) -> CheckResult | None:
    """Why the tokenizer cannot be used before the run starts; None where it can."""
    model = run.model
    assert isinstance(model, Pretrained)
    prefix = "no tokens are counted, as the model's tokenizer "
    if model.on_hub:
        return CheckResult("WARN", "lengths", f"{prefix}is not here yet", f"run rlrun model download {model.path}")
    if model.trust_remote_code:
        return CheckResult("WARN", "lengths", f"{prefix}may run code of its own", "a run of one step counts them")
    if not (tokenizer_folder(model.folder) / TOKENIZER).is_file():
        base = (config.read(model.folder, LAYOUTS[1]) or {}).get("base_model_name_or_path")
        if base and base_folder(model.folder) is None:
            got = f"{prefix}is that of its base, which is not here"
            return CheckResult("WARN", "lengths", got, f"run rlrun model download {shlex.quote(str(base))}")
        save_command = f"AutoTokenizer.from_pretrained({model.path!r}).save_pretrained({model.path!r})"
        fix = f"save {TOKENIZER} beside it: {save_command}"
        return CheckResult("WARN", "lengths", f"{prefix}has no {TOKENIZER}", fix)
    return None


def sizes(row: Row) -> tuple[int, int]:
    """UTF-8 bytes of a row's prompt and of its longer answer, which bound its tokens, but for those around turns. A
    conversation with its answers counts fully for both."""
    if isinstance(row.prompt, str):
        return _utf8_bytes(row.prompt), max(_utf8_bytes(row.response or ""), _utf8_bytes(row.rejected or ""))
    total = sum(_utf8_bytes(turn.content) + (_utf8_bytes(str(turn.extra)) if turn.extra else 0) for turn in row.prompt)
    answers = _utf8_bytes(row.response or ""), _utf8_bytes(row.rejected or "")
    return total, max(total, *answers) if row.response is None else max(answers)


def _utf8_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def _count_longest(limits: Sequence[_Limit], text: TextProcess, kind: Kind, rows: Sequence[Row]) -> dict[int, Count]:
    """Token counts by row index: of the first rows, then from the longest until a batch has none over its limit."""
    row_sizes = [sum(sizes(row)) for row in rows]
    longest_first = sorted(range(len(rows)), key=row_sizes.__getitem__, reverse=True)
    chosen, total = list(range(min(FIRST, len(rows)))), 0
    for index in longest_first:
        total += row_sizes[index]
        if total > COUNTED:
            break
        chosen.append(index)
    waiting, counts_by_index = list(dict.fromkeys(chosen)), dict[int, Count]()
    while waiting:
        batch, waiting = waiting[:PART], waiting[PART:]
        counts = text.lengths([rows[index] for index in batch], kind)
        counts_by_index.update(zip(batch, counts, strict=True))
        if not any(isinstance(count, str) or _is_over(limits, count) for count in counts):
            break
    return dict(sorted(counts_by_index.items()))


class _Limit(NamedTuple):
    """A limit of the tokens of prompts, of responses, or of both together."""

    what: str
    setting: str
    parts: slice
    tokens: int
    other: int = 0
    """Part of the limit that another setting determines."""

    def of(self, count: Sequence[int]) -> int:
        """The number of limited tokens, given those of prompt and response."""
        return sum(count[self.parts])


def _limits(run: RunSpec) -> list[_Limit]:
    prompt, response = run.data.max_prompt_length, run.data.max_response_length
    if run.shares_length:
        return [_Limit("row", "data.max_response_length", slice(2), run.max_sequence_length, prompt)]
    together = run.max_sequence_length < prompt + response
    joint = [_Limit("row", "data.max_length", slice(2), run.max_sequence_length)] if together else []
    return [
        *joint,
        _Limit("prompt", "data.max_prompt_length", slice(1), prompt),
        _Limit("response", "data.max_response_length", slice(1, 2), response),
    ]


def _check_tokens(run: RunSpec, text: TextProcess, split: str, every: Sequence[Row]) -> tuple[list[CheckResult], int]:
    """Count the tokens of a split's first and longest rows; no results without rows. Also the number of rows that are
    left out for their length."""
    if not every:
        return [], 0
    kind: Kind = "prompts" if split == "val" and run.algorithm.sampled else run.algorithm.data
    limits = _limits(run)
    counted = _count_longest(limits, text, kind, every)
    counts = {index: count for index, count in counted.items() if not isinstance(count, str)}
    if unwritable := [(every[index], count) for index, count in counted.items() if isinstance(count, str)]:
        return [_report_unwritable(run, unwritable, bool(counts))], 0
    scope = f"{len(counts):,} {split}" if len(counts) == len(every) else f"the {len(counts):,} longest {split}"
    within = CheckResult("OK", f"lengths {split}", f"{_summarize(limits, [*counts.values()])} tokens")
    results = [*_over_limits(run, limits, scope, every, counts)] or [within]
    if n_split := sum(count[2] > 1 for count in counts.values()):
        results.append(CheckResult("OK", f"sequences {split}", several_sequences(n_split, len(counts))))
    filters = run.data.truncation == "filter" and not run.shares_length
    return results, filters * sum(map(partial(_is_over, limits), counts.values()))


def _summarize(limits: Sequence[_Limit], counts: Sequence[Sequence[int]]) -> str:
    """`prompts of at most 20 and responses of at most 7`"""
    longest = ((limit.what, max(map(limit.of, counts))) for limit in limits)
    return " and ".join(f"{what}s of at most {tokens}" for what, tokens in longest if tokens)


def _report_unwritable(run: RunSpec, unwritable: Sequence[tuple[Row, str]], others: bool) -> CheckResult:
    """What says that rows cannot be written for the model; `others`: whether some can."""
    row, reason = unwritable[0]
    action = "learned from" if reason == EQUAL else "written with the model's chat template"
    message = f"{len(unwritable):,} rows cannot be {action}, the first: {reason}"
    where = "model.path" if not others and "the chat template fails" in reason else row.where
    level: Level = "WARN" if run.data.on_bad_row == "skip" and others else "FAIL"
    return CheckResult(level, where, message, _template_fix(unwritable))


def _is_over(limits: Sequence[_Limit], count: Sequence[int]) -> bool:
    return any(limit.of(count) > limit.tokens for limit in limits)


def _template_fix(unwritable: Sequence[tuple[Row, str]]) -> str:
    """Advice where the chat template, not a single row, is the reason."""
    if not any("the chat template" in why for _, why in unwritable) or all("; " in why for _, why in unwritable):
        return ""  # each reason says what to change
    if all(_is_single_turn(row) for row, _ in unwritable):
        return "use data.chat_template=never (plain text), or fix chat_template in the model's tokenizer_config.json"
    turns = [turn for row, _ in unwritable if not isinstance(row.prompt, str) for turn in row.prompt]
    which = "without system turns" if any(turn.role == "system" for turn in turns) else "that it takes"
    return f"use rows {which}, or another chat_template in the model's tokenizer_config.json"


def _over_limits(
    run: RunSpec, limits: Sequence[_Limit], scope: str, every: Sequence[Row], counts: Mapping[int, Sequence[int]]
) -> Iterator[CheckResult]:
    """One result for each limit that some rows exceed."""
    truncation = run.data.truncation
    for limit in limits:
        tokens = {index: limit.of(count) for index, count in counts.items()}
        over = [index for index, length in tokens.items() if length > limit.tokens]
        if not over:
            continue
        needed, what = max(tokens.values()) - limit.other, f"{len(over):,} of {scope} {limit.what}s"
        message = f"{what} are longer than {limit.tokens} tokens ({every[over[0]].where} is the first)"
        message += ", which is the length of prompt and response together" if limit.what == "row" else ""
        if truncation == "error" or (run.shares_length and truncation == "filter"):
            alternative = "right" if run.shares_length else "filter"
            yield CheckResult("FAIL", limit.setting, message, f"use {needed} or data.truncation={alternative}")
            continue
        action = "left out" if truncation == "filter" else f"cut on the {truncation}"
        level: Level = "FAIL" if truncation == "filter" and len(over) == len(tokens) else "WARN"
        yield CheckResult(level, limit.setting, f"{message}, and {action}", f"use {needed} to keep all")


def token_count(run: RunSpec, text: str) -> int | None:
    """Number of tokens of a text; None where the model's tokenizer cannot be used before the run starts."""
    if isinstance(run.model, Pretrained) and _tokenizer_unavailable(run):
        return None
    with suppress(Problems), TextProcess(run.model, run.data) as process:  # the check of lengths reports it
        return process.tokens(text)
    return None
