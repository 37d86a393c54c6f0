"""Datasets by name: a choice of conf/data, a file or pattern, or the id of a dataset on a hub."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from launcher.config.compose import groups
from launcher.config.resolve import resolve
from launcher.core.bounded_parse import parse_yaml
from launcher.core.check_result import CheckResult
from launcher.core.files import conf_dir
from launcher.core.overrides import quoted
from launcher.core.problems import Problem, Problems, short_repr, suggest
from launcher.data.files import Files, expand
from launcher.data.hub import Hub
from launcher.data.keys import unread_keys
from launcher.data.prepare import PreparedData, prepare
from launcher.data.reader import FORMS, read_rows
from launcher.data.rows import RawRow
from launcher.hubs.repo import is_id
from launcher.spec.algorithm import Kind
from launcher.spec.data import ENDINGS, Dataset, OnDataProgress, RefusedRow, Row
from launcher.spec.run import RunSpec

LOOKED_AT = 100  # rows of a file
_KINDS_OF_FORMATS: dict[str, Kind] = {"gsm8k": "prompts", "math": "prompts", "hh": "pairs"}
_ALGORITHMS: dict[Kind, str] = {
    "answers": "algorithm=sft",
    "pairs": "algorithm=dpo",
    "prompts": "algorithm=grpo",
    "mixed": "algorithm=gspo_selfplay",
}


@dataclass(frozen=True)
class Chosen:
    """A dataset chosen by name, and the run whose settings apply to it."""

    name: str
    run: RunSpec
    has_model: bool
    """Whether the overrides choose the model; otherwise no tokens can be counted."""

    @property
    def data(self) -> Dataset:
        return self.run.data

    @property
    def kind(self) -> Kind:
        return self.run.algorithm.data


def _choices_by_repo() -> dict[str, str]:
    """The choices of conf/data by the repository of a hub that they read."""
    nodes = {name: parse_yaml((conf_dir() / "data" / f"{name}.yaml").read_bytes()) for name in _dataset_choices()}
    return {str(node["repo"]): name for name, node in nodes.items() if "repo" in node}


def _dataset_choices(config_dir: Path | None = None) -> list[str]:
    """The choices of conf/data that name a dataset; `files` and `hub` take any files or repository."""
    return [name for name in groups(config_dir)["data"] if name not in ("files", "hub")]


def chosen(what: str, kind: Kind | None, overrides: Sequence[str], config_dir: Path | None = None) -> Chosen:
    """The dataset `what` names, with Hydra's `overrides`, as rows of `kind`; by default those that it holds.

    Raises `Problems`.
    """
    what = what.removeprefix("data=")  # as `rlrun train` takes it
    groups_given = {word.partition("=")[0] for word in overrides}
    has_model = "model" in groups_given
    algorithm = [word for word in overrides if word.startswith("algorithm=")]
    if algorithm and kind:
        got = f"{kind} and {algorithm[0]} both say what the rows are"
        raise Problems(Problem("--for", got, "use one of them", "conflicting-settings"))
    model_words = [] if has_model else ["model=tiny", f"model.max_position_embeddings={2**40}"]
    data_words = _choice_words(what, config_dir)
    words = [*data_words, *model_words, "sampler.n=8", *(word for word in overrides if word not in algorithm)]
    if not algorithm:
        algorithm = [_ALGORITHMS[kind or _held_kind(what, words, config_dir)]]
    run = resolve([*algorithm, *words], config_dir)
    name = _strip_ending(Path(what).name) if data_words[0] == "data=files" else what
    return Chosen(re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "data", run, has_model)


def _strip_ending(file: str) -> str:
    """The file's name without the ending of its format."""
    return next((file[: -len(ending)] for ending in ENDINGS if file.lower().endswith(ending)), file)


def _choice_words(what: str, config_dir: Path | None) -> list[str]:
    """The overrides that choose the dataset."""
    names = _dataset_choices(config_dir)
    what = _choices_by_repo().get(what, what)
    if what in names:
        return [f"data={what}"]
    if any(Path(name).is_file() for name in expand(what)):
        return ["data=files", f"data.train_files={quoted(what)}"]
    if is_id(what) and not what.lower().endswith(ENDINGS):
        return ["data=hub", f"data.repo={what}"]
    got = "not a file, a hub id (owner/name) or a choice of data"
    raise Problems(Problem(short_repr(what), got, suggest(what, names), "not-found"))


def _held_kind(what: str, words: Sequence[str], config_dir: Path | None) -> Kind:
    """The kind of rows that a dataset holds, by its settings or its first rows. Raises `Problems`."""
    data = resolve(["algorithm=sft", *words], config_dir).data
    if not isinstance(data, Files):
        return "prompts"
    kind = (data.holds if isinstance(data, Hub) else None) or _KINDS_OF_FORMATS.get(data.format)
    if kind or words[0] not in ("data=hub", "data=files"):  # a choice is of prompts where it does not say otherwise
        return kind or "prompts"
    if not isinstance(data, Hub):
        if problems := data.problems():
            raise Problems(*problems)
        return inspect_rows(data.expanded("train")[0], data)
    got = f"what the rows of {what} are is unknown"
    raise Problems(Problem("--for", got, "use answers, pairs, prompts or mixed"))


def made_ready(found: Chosen, watch: OnDataProgress, into: Path) -> PreparedData:
    """Write the dataset's prepared rows into a folder. Raises `Problems`."""
    data = found.data.fetched(watch)
    if isinstance(data, Files):
        return prepare(data, found.kind, into, watch)
    got = "is generated, so there is nothing to prepare"
    raise Problems(Problem(found.name, got, f"use data={found.name}", "not-supported"))


def unread(found: Chosen, watch: OnDataProgress) -> list[CheckResult]:
    """Keys of the first rows that nothing reads, so that a prepared folder does not hold them."""
    rows = islice(found.data.fetched(watch).rows("train", found.kind), LOOKED_AT)
    return list(unread_keys([row for row in rows if isinstance(row, Row)]))


def inspect_rows(file: str, settings: Files) -> Kind:
    """The kind of a file's first rows, read with `settings`. Raises `Problems` where they are of none."""
    rows = _read_first(file)
    if paired := sum(_has(row, "chosen", "rejected") for row in rows):
        return "pairs" if paired == len(rows) else "mixed"
    graded = any(_has(row, "reward_model", "ground_truth", "self_play") for row in rows)
    usable = next((row for row in rows if not isinstance(settings.row(row, "prompts"), RefusedRow)), rows[0])
    as_answers, as_prompts = settings.row(usable, "answers"), settings.row(usable, "prompts")
    if isinstance(as_answers, RefusedRow) and isinstance(as_prompts, RefusedRow):
        raise Problems(Problem(as_answers.where, as_answers.reason, "use prompt and response", "bad-row"))
    return "prompts" if graded or isinstance(as_answers, RefusedRow) else "answers"


def _read_first(file: str) -> list[RawRow]:
    """The readable ones of a file's first rows. Raises `Problems` where there is none."""
    first = list(islice(read_rows(file), LOOKED_AT))
    if not (rows := [row for row in first if isinstance(row, RawRow)]):
        reason = f": {first[0].reason}" if first and isinstance(first[0], RefusedRow) else ""
        raise Problems(Problem(file, f"holds no row that can be read{reason}", "" if reason else f"use {FORMS}"))
    return rows


def _has(row: RawRow, *keys: str) -> bool:
    return any(row.values.get(key) is not None for key in keys)
