"""Values that the checks of one run share; each is computed once, when a check first needs it."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path

from pydantic import ValidationError

from launcher.config.explain import explain
from launcher.core import activity
from launcher.core.check_result import Level
from launcher.core.problems import Problem, Problems, error_message, short_repr
from launcher.preflight.checks.lengths import LengthReport, measure_lengths, sizes
from launcher.runs.folder import Folder
from launcher.spec.data import Dataset, RefusedRow, Row, Split
from launcher.spec.run import RunSpec, Trainer

MAX_ROWS = 50_000  # rows of a split that a plan reads; rlrun data check reads all
MAX_BYTES = 20_000_000  # of their texts, as UTF-8
ROOT = "trainer.run_root"
INVISIBLE = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")  # control characters, right-to-left marks, half surrogates


@dataclass
class SplitRows:
    """The first rows of a split."""

    rows: list[Row] = field(default_factory=list)
    refused: list[RefusedRow] = field(default_factory=list)
    complete: bool = True
    """Whether all rows of the split were read."""

    @property
    def scope(self) -> str:
        """The rows read, in words: `of 200 rows`, `of the first 50,000 rows`."""
        return f"of {'' if self.complete else 'the first '}{len(self.rows) + len(self.refused):,} rows"

    @property
    def sources(self) -> frozenset[str] | None:
        """The data sources of all rows; None where not all were read."""
        return frozenset(row.data_source for row in self.rows) if self.rows and self.complete else None


@dataclass
class Context:
    """A run, and what is known about it on this machine."""

    asked: RunSpec
    here: bool
    """Whether the run is to start on this machine, so that what is missing here is a failure."""
    every_row: bool = False
    """Whether all rows are read, and not only the first."""
    has_model: bool = True
    """Whether a model was chosen, so that tokens can be counted."""

    @cached_property
    def run(self) -> RunSpec:
        """The run, with a downloaded hub model replaced by its folder."""
        return self.asked if self.model_problems else self._with_folder

    @property
    def missing_level(self) -> Level:
        """The level of results on something that is missing on this machine."""
        return "FAIL" if self.here else "WARN"

    @cached_property
    def model_problems(self) -> Sequence[Problem]:
        """Problems of the model, or of settings that do not fit a downloaded model's folder."""
        activity.report("checking the model")
        if problems := self.asked.model.problems():
            return problems
        try:
            _ = self._with_folder
        except ValidationError as error:
            return explain(error, {})
        except Problems as error:  # the store cannot be read
            return error.problems
        return []

    @cached_property
    def _with_folder(self) -> RunSpec:
        """The run with the model's local folder. Raises pydantic's `ValidationError`, and `Problems`."""
        model = self.asked.model.here
        return self.asked if model == self.asked.model else replace(self.asked, model=model)

    @cached_property
    def reward_problems(self) -> Sequence[Problem]:
        """Problems of what scores answers: the reward and the environment."""
        return [*self.asked.reward.problems(), *self.asked.environment.problems()]

    @cached_property
    def data_problems(self) -> Sequence[Problem]:
        return self.asked.data.problems()

    @cached_property
    def folder_problems(self) -> list[Problem]:
        return folder_problems(self.asked.trainer)

    @cached_property
    def data(self) -> Dataset | None:
        """The dataset as it can be read now; None where it has problems or has to be fetched first."""
        if self.data_problems:
            return None
        return self.run.data.local()

    @cached_property
    def train(self) -> SplitRows:
        return self._read("train")

    @cached_property
    def val(self) -> SplitRows:
        return self._read("val")

    @property
    def file_rows(self) -> list[Row]:
        """The rows of the training files, including those held out of them."""
        return [*self.train.rows, *(self.val.rows if self.run.data.val_share else [])]

    def _read(self, split: Split) -> SplitRows:
        if self.data is None:
            return SplitRows(complete=False)
        activity.report("reading the rows" if split == "train" else "reading the held-out rows")
        split_rows, rows, read_bytes = SplitRows(), iter(self.data.rows(split, self.run.algorithm.data)), 0
        for row in islice(rows, None if self.every_row else MAX_ROWS):
            if isinstance(row, RefusedRow):
                split_rows.refused.append(row)
            else:
                split_rows.rows.append(row if self.reward_problems else self.run.environment.prompt(row))
                read_bytes += sum(sizes(row))
            if read_bytes > MAX_BYTES and not self.every_row:
                break
        split_rows.complete = next(rows, None) is None
        return split_rows

    @cached_property
    def lengths(self) -> LengthReport:
        if self.model_problems or not self.has_model:
            return LengthReport([])
        activity.report("measuring lengths")
        return measure_lengths(self.run, self.train.rows, self.val.rows)

    @cached_property
    def steps(self) -> Steps:
        """The numbers of steps, from the number of rows where it is known."""
        train, val = self.train, self.val
        fatal = self.run.data.on_bad_row == "error" and any(not row.wanted for row in train.refused)
        countable = train.rows and train.complete and not fatal
        rows = len(train.rows) - self.lengths.filtered if countable else None
        return count_steps(self.run, rows, len(val.rows) if val.complete and train.rows else None)


# ---- how many steps


@dataclass(frozen=True)
class Steps:
    """Numbers of one run; those that depend on the rows are None while their number is not known."""

    rows: int | None
    val_rows: int | None
    processes: int
    prompts: int
    """Rows of one step, over all processes."""
    answers: int
    """Sequences that a step learns from, over all processes; a pair counts twice."""
    mini_batches: int
    """Optimizer updates of one step."""
    micro_batches: int
    """Micro-batches of each process per update, by rows; with max_tokens_per_gpu at most as many."""
    steps_per_epoch: int | None
    steps: int | None
    left_over: int | None
    """Rows that do not fill a batch at the end of an epoch."""
    validations: int | None
    checkpoints: int | None

    @property
    def epochs(self) -> float | None:
        return self.steps / self.steps_per_epoch if self.steps and self.steps_per_epoch else None


def count_steps(run: RunSpec, rows: int | None, val_rows: int | None) -> Steps:
    """Count the steps for `rows` training rows and `val_rows` validation rows; None where not known yet."""
    trainer, batch = run.trainer, run.data.train_batch_size
    steps = trainer.total_training_steps if rows is None else run.total_steps(rows)
    validations = 0 if val_rows == 0 else _times(trainer.test_freq, steps)
    return Steps(
        rows=rows, val_rows=val_rows, processes=run.hardware.processes, prompts=batch,
        answers=batch * run.sequences_per_prompt, mini_batches=run.mini_batches * trainer.ppo_epochs,
        micro_batches=run.micro_batches, steps_per_epoch=None if rows is None else run.steps_per_epoch(rows),
        steps=steps, left_over=None if rows is None else rows % batch,
        validations=validations and validations + trainer.val_before_train,
        checkpoints=_times(trainer.save_freq, steps),
    )  # fmt: skip


def _times(frequency: int, steps: int | None) -> int | None:
    """How often something happens every `frequency` steps and at the last one; None if the steps are unknown."""
    return 1 if frequency <= 0 else None if steps is None else -(-steps // frequency)


# ---- the folder of the run


def root_of(run: RunSpec) -> Path:
    """The folder of all runs, with `~` expanded where such a user exists."""
    root = Path(run.trainer.run_root)
    with suppress(RuntimeError):
        root = root.expanduser()
    return root


def folder_of(run: RunSpec) -> Path:
    """The run's folder; N stands for the number of a name that is still to be chosen."""
    trainer = run.trainer
    return root_of(run) / trainer.project_name / (trainer.experiment_name or f"{run.label}-N")


def _name_problems(root: str) -> list[Problem]:
    """Why nothing can be a folder of that name."""
    if invisible := [letter for letter in root if unicodedata.category(letter) in INVISIBLE]:
        got = f"contains the invisible character {invisible[0]!a}"
        return [Problem(ROOT, got, "use letters, digits and punctuation")]
    if re.match(r"[a-z0-9+.-]+://", root):
        return [Problem(ROOT, f"{root!r} is an address, not a folder", "use a folder, such as one mounted there")]
    return []


def folder_problems(trainer: Trainer) -> list[Problem]:
    """Why the run's folder cannot be made or used."""
    if problems := _name_problems(trainer.run_root):
        return problems
    shown = Path(trainer.run_root) / trainer.project_name / (trainer.experiment_name or "")
    try:
        folder = shown.expanduser().absolute()
        with suppress(FileNotFoundError, NotADirectoryError):
            folder.stat()  # raises for an impossible name, which exists() does not
        links = [path for path in (folder.parent, folder) if path.is_symlink()]
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        taken = trainer.experiment_name and not links and Folder(folder).has_results()
    except (OSError, ValueError, RuntimeError) as error:  # too long, a NUL, or the home of an unknown user
        got = f"got {short_repr(trainer.run_root)}, {error_message(error)}"
        return [Problem(ROOT, got, "use another folder", "bad-file")]
    if links:
        return [Problem(ROOT, f"{links[0]} is a symbolic link", "use the folder that it leads to", "not-permitted")]
    if not existing.is_dir():
        return [Problem(ROOT, f"{str(existing)!r} is a file", "use a folder", "bad-file")]
    if not os.access(existing, os.W_OK | os.X_OK):
        return [Problem(ROOT, f"cannot write to {str(existing)!r}", "use another folder", "not-permitted")]
    if taken:
        fix = f"use {trainer.experiment_name}-2, or rlrun train --resume {shown}"
        return [Problem("trainer.experiment_name", f"{shown} already has results", fix, "in-use")]
    return []
