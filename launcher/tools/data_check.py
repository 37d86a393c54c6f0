"""`rlrun data check`: read every row as a run would and report what would harm training."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Self

from launcher.core.check_result import CheckResult
from launcher.core.files import AppendOnlyFile, write_atomic
from launcher.data.keys import UnreadKeys
from launcher.data.quality import Histogram, Seen, histogram, in_both, repeated
from launcher.data.refused import SHOWN, RefusedLog
from launcher.spec.algorithm import Kind
from launcher.spec.data import SPLITS, Dataset, OnDataProgress, Row, Split, make_answer, needs_rollout
from launcher.spec.model import Model
from launcher.spec.reward import Reward, why_unscorable
from launcher.text.process import TextProcess, several_sequences

_CHUNK = 4096
FIRST = 100  # rows that show what tokenizer and chat template do


@dataclass(frozen=True)
class DataReport:
    """Counts of rows and findings; `wrong` holds the reasons not to train on the data, and is empty where it passes."""

    name: str
    kind: Kind
    rows: dict[Split, int]
    refused: int
    sources: dict[str, int]
    without_truth: int
    repeated: int
    in_both: int
    unwritable: int
    unscorable: int
    prompt_tokens: Histogram | None
    answer_tokens: Histogram | None
    cut_files: list[str]
    """Files that could not be read to their end, with the reason."""
    first: list[str]
    """The first entries of refused.jsonl and of findings.jsonl, `SHOWN` at most."""
    wrong: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return not self.wrong


def check(
    name: str,
    data: Dataset,
    kind: Kind,
    model: Model | None,
    out: Path,
    watch: OnDataProgress,
    reward: Reward | None = None,
    batch_given: bool = True,
) -> DataReport:
    """Read every row and write report.json, refused.jsonl and findings.jsonl (each repeated, leaked or overlong row) to
    `out`. With `model` tokens are counted by its tokenizer and chat template, and rows that these cannot write are
    findings; with `reward` also rows that it can never score. `batch_given`: the user set it. Raises `Problems`."""
    data = data.raw(watch)
    out.mkdir(parents=True, exist_ok=True)
    seen: dict[Split, Seen] = {split: Seen() for split in SPLITS}
    findings, unread = _Findings(out / "findings.jsonl"), UnreadKeys()
    with RefusedLog(out / "refused.jsonl") as log, _Tokens(data, kind, model) as tokens:
        for split in SPLITS:
            sifted = log.sift(data.rows(split, kind))
            while rows := list(islice(sifted, _CHUNK)):
                for row in rows:
                    seen[split].add(row, kind)
                    unread.add(row)
                    if (
                        reward
                        and needs_rollout(row, split, kind)
                        and (unscorable := why_unscorable(reward, make_answer(row)))
                    ):
                        findings.add("unscorable", row.where, unscorable)
                for where, reason, finding in tokens.count(rows):
                    findings.add(finding, where, reason)
    for repeat in repeated(seen["train"]):
        findings.add("repeated", repeat.where, f"repeats {repeat.first}")
    for repeat in in_both(seen["train"], seen["val"]):
        findings.add("in both", repeat.where, f"its prompt is also trained on: {repeat.first}")
    findings.close()
    report = _report(name, data, kind, seen, log, tokens, findings, batch_given)
    report.notes.extend(result.line for result in unread.results())
    write_atomic(out / "report.json", json.dumps({**asdict(report), "passed": report.passed}, indent=1) + "\n")
    return report


def _report(
    name: str, data: Dataset, kind: Kind, seen: dict[Split, Seen], log: RefusedLog, tokens: _Tokens,
    findings: _Findings, batch_given: bool,
) -> DataReport:  # fmt: skip
    sources: Counter[str] = sum((one.sources for one in seen.values()), Counter())
    count = findings.counts
    report = DataReport(
        name=name, kind=kind, rows={split: len(one.lines) for split, one in seen.items()}, refused=log.refused,
        sources=dict(sources.most_common()), without_truth=sum(one.without_truth for one in seen.values()),
        repeated=count["repeated"], in_both=count["in both"],
        unwritable=count["unwritable"], unscorable=count["unscorable"],
        prompt_tokens=histogram(tokens.prompts, data.max_prompt_length) if tokens.prompts else None,
        answer_tokens=histogram(tokens.answers, data.max_response_length) if any(tokens.answers) else None,
        cut_files=[*map(str, log.cut_files)],
        first=[*map(str, log.first), *findings.first][:SHOWN],
    )  # fmt: skip
    failures, notes = _judge(report, data, batch_given)
    if over := sum(sum(both) > (data.max_length or 2**60) for both in zip(tokens.prompts, tokens.answers, strict=True)):
        text = f"{over:,} rows have more than {data.max_length} tokens (data.max_length)"
        (failures if data.truncation == "error" else notes).append(f"{text}; data.truncation={data.truncation}")
    if tokens.split:
        notes.append(several_sequences(tokens.split, len(tokens.prompts)))
    for fact in tokens.facts or ():
        (failures if fact.level == "FAIL" else notes).append(fact.line)
    return replace(report, wrong=failures, notes=notes)


def _judge(report: DataReport, data: Dataset, batch_given: bool) -> tuple[list[str], list[str]]:
    """Reasons not to train on the data, for which a plan fails, and notes, of which a plan warns."""
    total, batch, rows = sum(report.rows.values()) + report.refused, data.train_batch_size, report.rows["train"]
    bad, skips = report.refused - len(report.cut_files), data.on_bad_row == "skip"
    compared = report.kind == "prompts" and report.without_truth
    rules = [
        (bad, not skips, f"{bad:,} of {total:,} rows are bad; "
         f"{'are skipped' if skips else 'use data.on_bad_row=skip to skip them'}"),
        (not rows, True, "there are no usable rows; use a file with rows"),
        # where the user sets no batch size, a plan chooses one
        (0 < rows < batch and batch_given, True,
         f"{rows:,} rows do not fill data.train_batch_size={batch}; use a smaller one"),
        (report.unwritable, not skips, f"{report.unwritable:,} rows cannot be written with the model's chat template;"
         " use another model or format"),
        (report.unscorable, not skips,
         f"{report.unscorable:,} rows can never be scored by the reward; use another reward"),
        (report.in_both, False,
         f"{report.in_both:,} prompts of val are also trained on; validation overestimates the model"),
        (report.repeated, False, f"{report.repeated:,} rows repeat an earlier one; remove those that are not meant"),
        (compared, False,
         f"{report.without_truth:,} rows have no ground truth; a reward that compares would give them 0"),
    ]  # fmt: skip
    for part, lengths in (("prompts", report.prompt_tokens), ("answers", report.answer_tokens)):
        if lengths:
            text = f"{lengths.over:,} {part} ({lengths.share_over:.2%}) have more than {lengths.limit} tokens"
            rules.append((lengths.over, data.truncation == "error", f"{text}; data.truncation={data.truncation}"))
    active = [(is_wrong, text) for holds, is_wrong, text in rules if holds]
    wrong = [*report.cut_files, *(text for is_wrong, text in active if is_wrong)]
    return wrong, [text for is_wrong, text in active if not is_wrong]


class _Tokens:
    """Counts tokens chunk by chunk; without a model it counts none."""

    def __init__(self, data: Dataset, kind: Kind, model: Model | None) -> None:
        self.kind = kind
        self.limits = data.max_prompt_length, data.max_response_length
        self.prompts: list[int] = []
        self.answers: list[int] = []
        self.split = 0
        """Rows that become several sequences."""
        self.facts: list[CheckResult] | None = None
        """Results on tokenizer and chat template, from the first rows."""
        self.text = None if model is None else TextProcess(model, data, exact=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        if self.text:
            self.text.close()

    def count(self, rows: list[Row]) -> Iterator[tuple[str, str, str]]:
        """Place, reason and kind of the rows that are too long, or that the model's template cannot write."""
        if self.text is None:
            return
        if self.facts is None:
            self.facts = self.text.facts(rows[:FIRST])
        for row, result in zip(rows, self.text.lengths(rows, self.kind), strict=True):
            if isinstance(result, str):
                yield row.where, result, "unwritable"
                continue
            prompt, answer, sequences = result
            self.split += sequences > 1
            self.prompts.append(prompt)
            self.answers.append(answer)
            if prompt > self.limits[0]:
                yield row.where, f"the prompt has {prompt} tokens", "overlong"
            if answer > self.limits[1]:
                yield row.where, f"the answer has {answer} tokens", "overlong"


class _Findings:
    """Log of readable rows that deserve attention, one JSON line each; created with the first one."""

    def __init__(self, path: Path) -> None:
        self.path, self.counts, self.first = path, Counter[str](), list[str]()
        self._log: AppendOnlyFile | None = None
        path.unlink(missing_ok=True)

    def add(self, kind: str, where: str, reason: str) -> None:
        self.counts[kind] += 1
        if self.counts[kind] <= 5:
            self.first.append(f"{where}: {reason}")
        self._log = self._log or AppendOnlyFile.open(self.path)
        self._log.append(json.dumps({"kind": kind, "where": where, "reason": reason}))

    def close(self) -> None:
        if self._log:
            self._log.close()
            if self._log.refused:
                raise self._log.refused
