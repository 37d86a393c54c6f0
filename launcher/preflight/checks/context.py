"""What the checks of one run share: each value is computed once, when a check first asks for it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice

from launcher.core.check_result import CheckResult, Level
from launcher.core.problems import Problem
from launcher.models import store
from launcher.models.pretrained import Pretrained
from launcher.preflight.checks.lengths import LengthReport, measure_lengths, sizes
from launcher.preflight.checks.run_folder import folder_problems
from launcher.preflight.checks.step_counts import Steps, count_steps
from launcher.spec.data import Dataset, RefusedRow, Row, Split
from launcher.spec.run import RunSpec

MAX_ROWS = 50_000  # of a split that a plan reads; rlrun data check reads all
MAX_BYTES = 20_000_000  # of the texts in them


class Check(ABC):
    """A check of your own: a class with `@settings`, named by `check/NAME.yaml` in the folder of --config-dir."""

    @abstractmethod
    def check(self, context: Context) -> Iterable[CheckResult]:
        """One result for each thing that was looked at."""


@dataclass
class SplitRows:
    """The first rows of a split."""

    rows: list[Row] = field(default_factory=list)
    refused: list[RefusedRow] = field(default_factory=list)
    complete: bool = True
    """Whether there are no more rows than were read."""

    @property
    def scope(self) -> str:
        """`of 200 rows`, `of the first 50,000 rows`."""
        return f"of {'' if self.complete else 'the first '}{len(self.rows) + len(self.refused):,} rows"


@dataclass
class Context:
    """One run, and what is known of it on this machine."""

    asked: RunSpec
    here: bool
    """Whether the run is to start on this machine, so that what is missing here is a failure."""

    @cached_property
    def run(self) -> RunSpec:
        """The run; a hub's model that has been downloaded is replaced by its folder."""
        model = self.asked.model
        if self.model_problems or not isinstance(model, Pretrained) or not model.on_hub or model.trust_remote_code:
            return self.asked
        folder = store.find(model.path, model.revision)
        return replace(self.asked, model=replace(model, path=str(folder))) if folder else self.asked

    @property
    def missing_level(self) -> Level:
        """The level of something that is not on this machine."""
        return "FAIL" if self.here else "WARN"

    @cached_property
    def model_problems(self) -> Sequence[Problem]:
        return self.asked.model.problems()

    @cached_property
    def reward_problems(self) -> Sequence[Problem]:
        return self.asked.reward.problems()

    @cached_property
    def data_problems(self) -> Sequence[Problem]:
        return self.asked.data.problems()

    @cached_property
    def folder_problems(self) -> list[Problem]:
        return folder_problems(self.asked.trainer)

    @cached_property
    def data(self) -> Dataset | None:
        """The dataset as it can be read now; None where it has problems or has to be prepared first."""
        if self.data_problems or self.reward_problems:
            return None
        return self.run.data.local(self.run.algorithm.data)

    @cached_property
    def train(self) -> SplitRows:
        return self._read("train")

    @cached_property
    def val(self) -> SplitRows:
        return self._read("val")

    def _read(self, split: Split) -> SplitRows:
        if self.data is None:
            return SplitRows(complete=False)
        found, rows, read_bytes = SplitRows(), iter(self.data.read(split, self.run.algorithm.data)), 0
        for row in islice(rows, MAX_ROWS):
            if isinstance(row, RefusedRow):
                found.refused.append(row)
            else:
                found.rows.append(row)
                read_bytes += sum(sizes(row))
            if read_bytes > MAX_BYTES:
                break
        found.complete = next(rows, None) is None
        return found

    @cached_property
    def lengths(self) -> LengthReport:
        if self.model_problems or not self.train.rows:
            return LengthReport([])
        return measure_lengths(self.run, self.train.rows, self.val.rows)

    @cached_property
    def steps(self) -> Steps:
        """Counted with the rows where these are known."""
        train, val = self.train, self.val
        fatal = self.run.data.on_bad_row == "error" and any(not row.wanted for row in train.refused)
        known = train.rows and train.complete and not fatal
        rows = len(train.rows) - self.lengths.filtered if known else None
        return count_steps(self.run, rows, len(val.rows) if val.complete and train.rows else None)
