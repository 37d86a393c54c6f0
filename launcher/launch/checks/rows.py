"""The rows of a run, read as it would read them: bad ones, their sources and routes, their lengths, the reward."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from launcher.data.quality import Seen, in_both
from launcher.launch.bench_reward import worthless
from launcher.models.pretrained import Pretrained
from launcher.models.template import longest_around
from launcher.problems import Problems, nearest
from launcher.spec.data import Message, Refused, Row, Split, answer_to, asked
from launcher.spec.run import RunSpec
from launcher.verdicts import Level, Verdict, of_problem, of_problems

MOST = 50_000  # rows of a split that a plan reads; rlrun data check reads all
COUNTED = 20_000  # rows whose tokens are counted
NAMED = 3  # rows of each fault that are named
_LINE = re.compile(r":\d+$")


@dataclass
class Looked:
    """What was read of a split."""

    rows: list[Row] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    whole: bool = True
    """Whether there are no more rows than were read."""

    @property
    def first(self) -> str:
        """How what was seen is spoken of: `of 200 rows`, `of the first 50,000 rows`."""
        return f"of {'' if self.whole else 'the first '}{len(self.rows) + len(self.refused):,} rows"


@dataclass(frozen=True)
class Found:
    """Verdicts on the rows, and how many can be used; None where that was not found out."""

    verdicts: list[Verdict]
    rows: int | None = None
    val_rows: int | None = None
    longest: tuple[int, int] | None = None
    """Tokens of the longest prompt and answer, where all were counted."""


def found(run: RunSpec, counted: bool = True) -> Found:
    """Read the run's rows, which are `here`, and with `counted` ask its model how many tokens they have."""
    train, val = look(run, "train"), look(run, "val")
    verdicts = [*_readable(run, "train", train), *_readable(run, "val", val)]
    if not train.rows:
        return Found(verdicts or [Verdict("FAIL", "data", "has no rows", "a file with rows would do")])
    verdicts += [*_sources(train), *_unfit(run, train), *_leaked(run, train, val), *_measured(run, val)]
    lengths, over, longest = _lengths(run, train, val) if counted else ([], 0, None)
    verdicts += [*lengths, *_scored(run, train)]
    usable = len(train.rows) - over if train.whole else None
    return Found(verdicts, usable, len(val.rows) if val.whole else None, longest)


def look(run: RunSpec, split: Split) -> Looked:
    """The first rows of a split."""
    seen, rows = Looked(), iter(run.data.read(split, run.algorithm.data))
    for row in islice(rows, MOST):
        if isinstance(row, Refused):
            seen.refused.append(row)
        else:
            seen.rows.append(row)
    seen.whole = next(rows, None) is None
    return seen


def _readable(run: RunSpec, split: Split, seen: Looked) -> Iterator[Verdict]:
    bad = [row for row in seen.refused if not row.wanted]
    broken = [row for row in bad if not _LINE.search(row.where)]
    for row in broken:  # a file that cannot be read from some place on
        yield Verdict("FAIL", row.where, row.reason, "the whole file, with rows, would do")
    if bad == broken:
        return
    if bad and run.data.on_bad_row == "error":
        yield from (Verdict("FAIL", row.where, row.reason) for row in bad[:NAMED])
        yield Verdict("FAIL", "data.on_bad_row", f"{len(bad):,} {seen.first} are bad", "skip would do")
    elif bad:
        first = f"{bad[0].where}: {bad[0].reason}"
        yield Verdict("WARN", f"data {split}", f"{len(bad):,} {seen.first} are bad and left out, the first is {first}")


def _sources(seen: Looked) -> Iterator[Verdict]:
    """Where the rows come from."""
    counted = Counter(row.data_source for row in seen.rows)
    told = ", ".join(f"{name} {count:,}" for name, count in counted.most_common(5))
    more = f" and {len(counted) - 5} more sources" if len(counted) > 5 else ""
    rows = f"{len(seen.rows):,} rows{'' if seen.whole else ' and more'}"
    yield Verdict("OK", "data", f"{rows}: {told}{more}" if set(counted) != {"unknown"} else rows)


def _unfit(run: RunSpec, seen: Looked) -> Iterator[Verdict]:
    """Rows that the reward could never score: the first of each source."""
    kind = run.algorithm.data
    bad = [(row, why) for row in seen.rows if asked(row, "train", kind) and (why := run.reward.unfit(answer_to(row)))]
    if not bad:
        return
    all_bad = len(bad) == sum(asked(row, "train", kind) for row in seen.rows)
    level: Level = "WARN" if run.data.on_bad_row == "skip" and not all_bad else "FAIL"
    firsts = {row.data_source: row.where for row, _ in reversed(bad)}
    named = sorted(bad, key=lambda of: of[0].where != firsts[of[0].data_source])  # the first of each source
    yield from (of_problem(f"{row.where}: {why}", level) for row, why in named[:NAMED])
    mend = "another reward or other rows would do" if all_bad else "data.on_bad_row=skip would do"
    yield Verdict(level, "reward", f"{len(bad):,} {seen.first} cannot be scored", mend if level == "FAIL" else "")


def _measured(run: RunSpec, val: Looked) -> Iterator[Verdict]:
    """Whether the metric that says which checkpoint is best is one that held-out rows give."""
    wanted = run.trainer.best_metric
    if wanted is None or not val.rows or not val.whole:
        return
    scored = {row.data_source for row in val.rows if asked(row, "val", run.algorithm.data)}
    known = [f"val-core/{source}/reward/mean@{run.sampler.val_n}" for source in sorted(scored)]
    if wanted.startswith("val-core/") and wanted.split("/reward/")[0].removeprefix("val-core/") not in scored:
        would = nearest(wanted, known) if known else "val/loss would do"
        yield Verdict("WARN", "trainer.best_metric", f"{wanted} is never measured, as no held-out row gives it", would)


def _leaked(run: RunSpec, train: Looked, val: Looked) -> Iterator[Verdict]:
    """Held-out prompts that are trained on."""
    if not val.rows:
        return
    seen, held_out = Seen(), Seen()
    for rows, into in ((train.rows, seen), (val.rows, held_out)):
        for row in rows:
            into.add(row, run.algorithm.data)
    twice = list(in_both(seen, held_out))
    if twice:
        yield Verdict(
            "WARN", "data.val_files",
            f"{len(twice):,} held-out prompts {val.first} are trained on, too ({twice[0].where} is {twice[0].first}):"
            " validation flatters the model", "other rows would do",
        )  # fmt: skip


def _scored(run: RunSpec, train: Looked) -> list[Verdict]:
    """Whether right answers to the first rows earn more than empty ones."""
    if not run.algorithm.sampled:
        return []
    name = type(run.reward).__name__
    lines = worthless(run, train.rows)
    if lines:
        return of_problems(lines)
    if not run.reward.cheap:
        return [Verdict("WARN", "reward", f"{name} is not asked by a plan", "rlrun reward bench asks it")]
    return [Verdict("OK", "reward", f"{name} gives right answers to the first rows more than empty ones")]


# ---- lengths


def _lengths(run: RunSpec, train: Looked, val: Looked) -> tuple[list[Verdict], int, tuple[int, int] | None]:
    """What is said of lengths, how many training rows are left out for theirs, and the longest."""
    limits = run.data.max_prompt_length, run.data.max_response_length
    sizes = [_sizes(row) for row in [*train.rows, *val.rows]]
    longest, around = [max(of) for of in zip(*sizes, strict=True)], longest_around(run.model)
    fits = all(most + (around or 0) <= limit for most, limit in zip(longest, limits, strict=True))
    if around is not None and fits and _plain(train, val):
        return (
            [*_bare(train), Verdict("OK", "lengths", f"all fit, as the longest prompt has {longest[0]} bytes")],
            0,
            None,
        )
    try:
        encoder = _encoder(run)
    except Problems as problems:
        return of_problems(problems.lines), 0, None
    if encoder is None:
        return [Verdict("WARN", "lengths", "no tokens are counted, as the model's tokenizer is not here yet",
                        _fetching(run))], 0, None  # fmt: skip
    found = _Lengths(run, encoder)
    verdicts = [*found.of("train", train), *found.of("val", val)]
    every = train.whole and len(train.rows) <= COUNTED
    return verdicts, found.left_out, (found.longest[0], found.longest[1]) if every and found.longest[0] else None


def _plain(*seen: Looked) -> bool:
    """Whether every prompt is one text: others need a chat template."""
    return all(isinstance(row.prompt, str) or _single(row.prompt) for of in seen for row in of.rows)


def _single(turns: Sequence[Message]) -> bool:
    """One question, and at most its answer."""
    return [turn.role for turn in turns] in (["user"], ["user", "assistant"])


def _bare(seen: Looked) -> Iterator[Verdict]:
    """Of a model without a chat template: turns that it reads as one text."""
    turns = sum(not isinstance(row.prompt, str) for row in seen.rows)
    if turns:
        yield Verdict(
            "WARN", "model", f"has no chat template, so {turns:,} conversations are written as plain text",
            "an instruct model, or rows of prompt and response, would do",
        )  # fmt: skip


def _encoder(run: RunSpec) -> Any:
    """None where the model's tokenizer is not on this machine."""
    if isinstance(run.model, Pretrained) and (run.model.on_hub or run.model.trust_remote_code):
        return None
    from launcher.engines.torch.tokenizer import light  # noqa: PLC0415  late: it costs a second

    tokenizer = light(run.model)
    if tokenizer is None:
        return None
    from launcher.engines.torch.tokens import Encoder  # noqa: PLC0415  late, as above

    return Encoder(tokenizer, replace(run.data, max_prompt_length=2**40, max_response_length=2**40))


def _fetching(run: RunSpec) -> str:
    return f"rlrun model download {run.model.path} would do" if isinstance(run.model, Pretrained) else ""


def _sizes(row: Row) -> tuple[int, int]:
    """Bytes of a row's prompt and of its answer: no tokenizer makes more tokens, but for what stands around turns. A
    conversation that holds its answers is counted as both."""
    if isinstance(row.prompt, str):
        return _bytes(row.prompt), max(_bytes(row.response or ""), _bytes(row.rejected or ""))
    whole = sum(_bytes(turn.content) for turn in row.prompt)
    answers = _bytes(row.response or ""), _bytes(row.rejected or "")
    return whole, max(whole, *answers) if row.response is None else max(answers)


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


class _Lengths:
    """Tokens of prompts and answers against the limits."""

    def __init__(self, run: RunSpec, encoder: Any) -> None:
        from launcher.engines.torch.lengths import Lengths  # noqa: PLC0415  late: see `_encoder`

        self.run, self.lengths = run, Lengths(encoder)
        self.left_out = 0
        """Training rows that data.truncation=filter leaves out."""
        self.longest = [0, 0]

    def of(self, split: Split, seen: Looked) -> list[Verdict]:
        """Counts the first rows of a split; says nothing where there are none."""
        data, rows = self.run.data, seen.rows[:COUNTED]
        if not rows:
            return []
        counts = self.lengths.of(rows, "prompts" if split == "val" and self.run.algorithm.sampled else
                                 self.run.algorithm.data)  # fmt: skip
        unwritable = [(row, count) for row, count in zip(rows, counts, strict=True) if isinstance(count, str)]
        if unwritable:
            row, why = unwritable[0]
            level: Level = "WARN" if data.on_bad_row == "skip" and len(unwritable) < len(rows) else "FAIL"
            first, many = of_problem(f"{row.where}: {why}", level), f"{len(unwritable):,} rows cannot be written"
            return [replace(first, says=f"{many} with the model's chat template, the first: {first.says}")]
        limits = {"prompt": data.max_prompt_length, "response": data.max_response_length}
        verdicts, over = [], set[int]()
        for place, (what, limit) in enumerate(limits.items()):
            lengths = [count[place] for count in counts if not isinstance(count, str)]
            self.longest[place] = max(self.longest[place], *lengths)
            long = [number for number, length in enumerate(lengths) if length > limit]
            over.update(long)
            if long:
                verdicts.append(self._over(split, rows[long[0]], what, limit, lengths, len(long)))
        if split == "train":
            self.left_out = len(over) if data.truncation == "filter" else 0
        if not verdicts:
            told = " and ".join(
                f"{what}s of at most {most}" for what, most in zip(limits, self.longest, strict=True) if most
            )
            verdicts.append(Verdict("OK", f"lengths {split}", f"{told} tokens"))
        return verdicts

    def _over(self, split: Split, first: Row, what: str, limit: int, lengths: list[int], over: int) -> Verdict:
        setting, truncation = f"data.max_{what}_length", self.run.data.truncation
        says = (
            f"{over:,} of {len(lengths):,} {split} {what}s are longer than {limit} tokens ({first.where} is the first)"
        )
        if truncation != "error":
            done = "left out" if truncation == "filter" else f"cut on the {truncation}"
            level: Level = "FAIL" if truncation == "filter" and over == len(lengths) else "WARN"
            return Verdict(level, setting, f"{says}, and {done}", f"{max(lengths)} keeps all")
        return Verdict("FAIL", setting, says, f"{max(lengths)} or data.truncation=filter would do")
