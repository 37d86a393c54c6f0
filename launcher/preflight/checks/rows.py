"""Checks the rows of a run as the run reads them: bad rows, sources, lengths, and leaks into validation."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence

from launcher.core.check_result import CheckResult, any_failed
from launcher.core.problems import suggest
from launcher.data.files import Files, source_of
from launcher.data.hub import Hub
from launcher.data.keys import is_given, unread_keys
from launcher.data.quality import count_repeats, in_both
from launcher.data.refused import COMPLETE_FILE
from launcher.hubs import huggingface
from launcher.preflight.checks.context import Context, SplitRows
from launcher.spec.data import FEW_ROWS, RefusedRow, Split, is_measured, needs_rollout

MAX_NAMED = 3  # most bad rows that are named


def check(context: Context) -> Iterator[CheckResult]:
    """Check all rows; nothing more than their kind where the data has problems of its own."""
    yield from _check_kind(context)
    if context.data is None:
        data = context.run.data
        command = f"rlrun data prepare {data.repo}" if isinstance(data, Hub) else "rlrun data prepare"
        if not context.data_problems and huggingface.offline():
            message = "is not here yet, and HF_HUB_OFFLINE forbids downloading it"
            yield CheckResult(context.missing_level, "data", message, f"run {command} with a network")
        elif not context.data_problems:
            yield CheckResult("WARN", "data", "not checked: it is downloaded first", f"{command} does it now")
        return
    bad = [*_report_bad_rows(context, "train"), *_report_bad_rows(context, "val")]
    yield from bad
    if not context.train.rows:
        if not any_failed(bad):
            yield CheckResult("FAIL", "data", "has no usable rows", "use a file with rows")
        return
    yield from _summarize(context.train, count_repeats(context.train.rows, context.run.algorithm.data))
    yield from unread_keys([*context.train.rows, *context.val.rows])
    yield from _check_turns(context)
    yield from _check_leaks(context)
    yield from _check_best_metric(context)
    yield from context.lengths.results
    yield from _report_held_out(context)


def _check_kind(context: Context) -> Iterator[CheckResult]:
    """Check that the algorithm can learn from the kind of rows that a hub dataset declares."""
    run, data = context.run, context.run.data
    if not isinstance(data, Hub):
        return
    needs, holds, clause = run.algorithm.data, data.holds, f"and {data.repo} holds"
    if needs == "pairs" and holds in ("prompts", "answers"):
        message = f"the algorithm learns from pairs of a chosen and a rejected answer, {clause} {holds}"
        yield CheckResult("FAIL", "data", message, "use data=ultrafeedback or data=full-hh-rlhf, or another algorithm")
    elif needs == "answers" and holds == "pairs":
        message = f"the algorithm learns from single answers, {clause} pairs of a chosen and a rejected one"
        yield CheckResult("FAIL", "data", message, "use algorithm=dpo, or data.holds=answers to learn the chosen ones")
    elif needs == "prompts" and holds == "pairs" and run.reward.cheap and run.reward.uses_ground_truth:
        message = f"the reward compares with a right answer, {clause} pairs, of which none is right or wrong"
        yield CheckResult("FAIL", "data", message, "use algorithm=dpo, data=gsm8k or data=math, or a reward model")


def _bad_rows_fix(seen: SplitRows, bad: Sequence[RefusedRow]) -> str:
    """Advice against bad rows, from the reasons for which they were refused."""
    first = bad[0]
    if broken := [row for row in bad if row.reason.startswith("not UTF-8")]:
        name = shlex.quote(broken[0].where.rpartition(":")[0])
        return f"convert it to UTF-8 by iconv; file -i {name} may tell its encoding"
    is_array, name = first.raw.lstrip().startswith("["), shlex.quote(first.where.rpartition(":")[0])
    if seen.rows and not (first.where.endswith(":1") and is_array):
        return "use skip"
    if "; use data.prompt_key=" in first.reason:
        return first.reason.rpartition("; ")[2]
    if not first.reason.startswith("invalid JSON"):
        return "use rows in a supported format"
    if is_array:
        return f"give it a name that ends in .json, as it holds an array: mv {name} rows.json"
    return f"write one JSON object on each line, as json.dumps(row) does, or jq -c . {name} > rows.jsonl"


def _report_bad_rows(context: Context, split: Split) -> Iterator[CheckResult]:
    data, seen = context.run.data, context.train if split == "train" else context.val
    bad = [row for row in seen.refused if not row.wanted and not row.ends_file]
    for row in seen.refused:
        if row.ends_file:  # the number of rows that it lacks is unknown, so it cannot be skipped
            yield CheckResult("FAIL", row.where, row.reason, COMPLETE_FILE)
    if bad and data.on_bad_row == "error":
        yield from (CheckResult("FAIL", row.where, row.reason) for row in bad[:MAX_NAMED])
        message = f"{len(bad):,} {seen.scope} are bad"
        yield CheckResult("FAIL", "data.on_bad_row", message, _bad_rows_fix(seen, bad))
    elif bad:
        message = f"{len(bad):,} {seen.scope} are bad and skipped, the first is {bad[0].where}: {bad[0].reason}"
        yield CheckResult("WARN", f"data {split}", message)


def _summarize(train: SplitRows, repeats: int) -> Iterator[CheckResult]:
    counted = Counter(row.data_source for row in train.rows)
    sources = ", ".join(f"{name} {count:,}" for name, count in counted.most_common(5))
    first = train.rows[0].where.rpartition(":")[0]
    more = f" and {len(counted) - 5} more sources" if len(counted) > 5 else ""
    rows = f"{len(train.rows):,} rows{'' if train.complete else ' and more'}"
    rows += f", {repeats:,} of them repeat an earlier one" if repeats else ""
    yield CheckResult("OK", "data", rows if set(counted) == {source_of(first)} else f"{rows}: {sources}{more}")
    if 2 * repeats >= len(train.rows) and repeats + 1 < len(train.rows):
        message = f"{repeats:,} {train.scope} repeat an earlier one"
        fix = "leave the repeated ones out; trainer.total_epochs=2 goes through all rows twice"
        yield CheckResult("WARN", "data", message, fix)


def _report_held_out(context: Context) -> Iterator[CheckResult]:
    """Report how many training rows are held out where there are no validation files, or why none are."""
    train, val, kind = context.train, context.val, context.run.algorithm.data
    if not isinstance(context.data, Files) or context.data.val_files:
        return
    if val.rows:
        n_rows = f"{len(train.rows) + len(val.rows):,}{'' if train.complete else ' and more'}"
        yield CheckResult("OK", "held out", f"{len(val.rows):,} of {n_rows} rows (data.val_share)")
    elif not any(is_measured(row, kind) for row in train.rows):
        yield CheckResult("OK", "held out", "nothing: no row has a ground truth that an answer is compared with")
    else:
        few = f": {len(train.rows)} rows are few" if train.complete and len(train.rows) < FEW_ROWS else ""
        yield CheckResult("OK", "held out", f"nothing{few}; data.val_files=FILE or data.val_share=0.1 validates")


def _check_turns(context: Context) -> Iterator[CheckResult]:
    """Check for rows that ask for verl's tools or interactions where an episode has one turn."""
    run, rows = context.run, context.train.rows
    for key in () if run.environment.several_turns or run.engine.names else ("need_tools_kwargs", "interaction_kwargs"):
        if asking := [row for row in rows if (value := row.extra_info.get(key)) and is_given(value)]:
            first = f"{asking[0].where} is the first"
            message = f"{len(asking):,} of {len(rows):,} rows have extra_info.{key} ({first}), and get one turn"
            yield CheckResult("WARN", "environment", message, "choose what has their tools, such as environment=python")


def _check_best_metric(context: Context) -> Iterator[CheckResult]:
    """Check that held-out rows give the metric that decides which checkpoint is best."""
    run, val = context.run, context.val
    metric = run.trainer.best_metric
    if metric is None or not val.rows or not val.complete:
        return
    scored = {row.data_source for row in val.rows if needs_rollout(row, "val", run.algorithm.data)}
    names = [f"val-core/{source}/reward/mean@{run.sampler.val_n}" for source in sorted(scored)]
    if metric.startswith("val-core/") and metric.split("/reward/")[0].removeprefix("val-core/") not in scored:
        message = f"{metric} is never measured: no held-out row gives it"
        yield CheckResult("WARN", "trainer.best_metric", message, suggest(metric, names) if names else "use val/loss")


def _check_leaks(context: Context) -> Iterator[CheckResult]:
    """Check for held-out prompts that are also trained on."""
    if both := in_both(context.train.rows, context.val.rows):
        where, first = both[0]
        message = (
            f"{len(both):,} held-out prompts {context.val.scope} are also trained on ({where} is {first}), so"
            " validation overestimates the model"
        )
        yield CheckResult("WARN", "data.val_files", message, "use other rows")
