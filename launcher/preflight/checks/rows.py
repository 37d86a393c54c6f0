"""The rows of a run, read as it would read them: bad ones, their sources and routes, their lengths, the reward."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from launcher.core.check_result import CheckResult, Level, any_failed, from_problem, from_problems
from launcher.core.problems import suggest
from launcher.data.quality import Seen, in_both
from launcher.preflight.checks.lengths import of_lengths, sizes
from launcher.preflight.checks.reward_bench import worthless
from launcher.rewards.exact import Exact
from launcher.spec.data import RefusedRow, Row, Split, make_answer, needs_rollout
from launcher.spec.run import RunSpec

MOST = 50_000  # rows of a split that a plan reads; rlrun data check reads all
TEXT = 20_000_000  # bytes of their texts
NAMED = 3  # rows of each fault that are named
_SOLUTION = re.compile(r"####|\\boxed|\n")  # of a ground truth that is more than its last line
_LINE = re.compile(r":\d+$")


@dataclass
class Looked:
    """What was read of a split."""

    rows: list[Row] = field(default_factory=list)
    refused: list[RefusedRow] = field(default_factory=list)
    whole: bool = True
    """Whether there are no more rows than were read."""

    @property
    def first(self) -> str:
        """How what was seen is spoken of: `of 200 rows`, `of the first 50,000 rows`."""
        return f"of {'' if self.whole else 'the first '}{len(self.rows) + len(self.refused):,} rows"


@dataclass(frozen=True)
class Found:
    """Results on the rows, and how many can be used; None where that was not found out."""

    results: list[CheckResult]
    rows: int | None = None
    val_rows: int | None = None


def found(run: RunSpec, counted: bool = True) -> Found:
    """Read the run's rows, which are `here`, and with `counted` ask its model how many tokens they have."""
    train, val = look(run, "train"), look(run, "val")
    refused = run.data.on_bad_row == "error" and any(not row.wanted for row in train.refused)
    results = [*_readable(run, "train", train), *_readable(run, "val", val)]
    if not train.rows:
        empty = CheckResult("FAIL", "data", "has no rows that can be used", "a file with rows would do")
        return Found(results if any_failed(results) else [*results, empty])
    results += [*_sources(train), *_unfit(run, train), *_leaked(run, train, val), *_measured(run, val)]
    lengths, over = of_lengths(run, train.rows, val.rows) if counted else ([], 0)
    results += [*lengths, *_scored(run, train)]
    usable = len(train.rows) - over if train.whole and not refused else None
    return Found(results, usable, len(val.rows) if val.whole else None)


def look(run: RunSpec, split: Split) -> Looked:
    """The first rows of a split."""
    seen, rows, text = Looked(), iter(run.data.read(split, run.algorithm.data)), 0
    for row in islice(rows, MOST):
        if isinstance(row, RefusedRow):
            seen.refused.append(row)
        else:
            seen.rows.append(row)
            text += sum(sizes(row))
        if text > TEXT:
            break
    seen.whole = next(rows, None) is None
    return seen


def _readable(run: RunSpec, split: Split, seen: Looked) -> Iterator[CheckResult]:
    bad = [row for row in seen.refused if not row.wanted]
    broken = [row for row in bad if not _LINE.search(row.where)]
    for row in broken:  # a file that cannot be read from some place on
        yield CheckResult("FAIL", row.where, row.reason, "the whole file, with rows, would do")
    if bad == broken:
        return
    if bad and run.data.on_bad_row == "error":
        yield from (CheckResult("FAIL", row.where, row.reason) for row in bad[:NAMED])
        yield CheckResult("FAIL", "data.on_bad_row", f"{len(bad):,} {seen.first} are bad",
                      "skip would do" if seen.rows else "rows of the right form would do")  # fmt: skip
    elif bad:
        first = f"{bad[0].where}: {bad[0].reason}"
        yield CheckResult(
            "WARN", f"data {split}", f"{len(bad):,} {seen.first} are bad and left out, the first is {first}"
        )


def _sources(seen: Looked) -> Iterator[CheckResult]:
    """Where the rows come from."""
    counted = Counter(row.data_source for row in seen.rows)
    told = ", ".join(f"{name} {count:,}" for name, count in counted.most_common(5))
    more = f" and {len(counted) - 5} more sources" if len(counted) > 5 else ""
    rows = f"{len(seen.rows):,} rows{'' if seen.whole else ' and more'}"
    yield CheckResult("OK", "data", f"{rows}: {told}{more}" if set(counted) != {"unknown"} else rows)


def _unfit(run: RunSpec, seen: Looked) -> Iterator[CheckResult]:
    """Rows that the reward could never score: the first of each source."""
    kind = run.algorithm.data
    bad = [
        (row, why)
        for row in seen.rows
        if needs_rollout(row, "train", kind) and (why := run.reward.unscorable_reason(make_answer(row)))
    ]
    if not bad:
        return
    all_bad = len(bad) == sum(needs_rollout(row, "train", kind) for row in seen.rows)
    level: Level = "WARN" if run.data.on_bad_row == "skip" and not all_bad else "FAIL"
    firsts = {row.data_source: row.where for row, _ in reversed(bad)}
    named = sorted(bad, key=lambda of: of[0].where != firsts[of[0].data_source])  # the first of each source
    yield from (from_problem(f"{row.where}: {why}", level) for row, why in named[:NAMED])
    fix = "another reward or other rows would do" if all_bad else "data.on_bad_row=skip would do"
    yield CheckResult(level, "reward", f"{len(bad):,} {seen.first} cannot be scored", fix if level == "FAIL" else "")


def _measured(run: RunSpec, val: Looked) -> Iterator[CheckResult]:
    """Whether the metric that says which checkpoint is best is one that held-out rows give."""
    wanted = run.trainer.best_metric
    if wanted is None or not val.rows or not val.whole:
        return
    scored = {row.data_source for row in val.rows if needs_rollout(row, "val", run.algorithm.data)}
    known = [f"val-core/{source}/reward/mean@{run.sampler.val_n}" for source in sorted(scored)]
    if wanted.startswith("val-core/") and wanted.split("/reward/")[0].removeprefix("val-core/") not in scored:
        would = suggest(wanted, known) if known else "val/loss would do"
        yield CheckResult(
            "WARN", "trainer.best_metric", f"{wanted} is never measured, as no held-out row gives it", would
        )


def _leaked(run: RunSpec, train: Looked, val: Looked) -> Iterator[CheckResult]:
    """Held-out prompts that are trained on."""
    if not val.rows:
        return
    seen, held_out = Seen(), Seen()
    for rows, into in ((train.rows, seen), (val.rows, held_out)):
        for row in rows:
            into.add(row, run.algorithm.data)
    twice = list(in_both(seen, held_out))
    if twice:
        yield CheckResult(
            "WARN", "data.val_files",
            f"{len(twice):,} held-out prompts {val.first} are trained on, too ({twice[0].where} is {twice[0].first}):"
            " validation flatters the model", "other rows would do",
        )  # fmt: skip


def _scored(run: RunSpec, train: Looked) -> list[CheckResult]:
    """Whether right answers to the first rows earn more than empty ones."""
    if not run.algorithm.sampled:
        return []
    name = type(run.reward).__name__
    lines = worthless(run, train.rows)
    if lines:
        return from_problems(lines)
    solved = next(
        (row for row in train.rows if isinstance(run.reward, Exact) and _SOLUTION.search(row.ground_truth or "")), None
    )
    if solved:
        message = (
            f"Exact compares with whole solutions, which no model repeats word by word (the first: {solved.where})"
        )
        return [CheckResult("WARN", "reward", message, "data.format=gsm8k reward=gsm8k, or reward=math, would do")]
    kind = run.algorithm.data
    if not any(run.reward.cheap_for(make_answer(row)) for row in train.rows if needs_rollout(row, "train", kind)):
        return [CheckResult("WARN", "reward", f"{name} is not asked by a plan", "rlrun reward bench asks it")]
    return [CheckResult("OK", "reward", f"{name} gives right answers to the first rows more than empty ones")]
