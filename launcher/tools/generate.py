"""Which model answers, and which prompts it is asked: a run's checkpoint, a folder, or a model of a hub."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from yaml import YAMLError

from launcher.core.bounded_parse import parse_yaml
from launcher.core.problems import Problem, Problems
from launcher.data.files import Files
from launcher.hubs.progress import Watch
from launcher.models import store as models
from launcher.models.pretrained import Pretrained
from launcher.runs import kept_checkpoints, store
from launcher.runs.folder import Folder
from launcher.spec.data import Dataset, Message, RefusedRow, Row, Text


@dataclass(frozen=True)
class AnsweringModel:
    """The model that answers."""

    label: str
    folder: Path
    data: Dataset
    """How its prompts are written: as in its run, else with the tokenizer's chat template."""


def choose(name: str, root: Path, step: int | None, best: bool, watch: Watch) -> AnsweringModel:
    """The model that `name` means: a run, a model's folder, or a hub's id, which is downloaded.

    Raises `Problems`, those of the model's files too.
    """
    run = store.named(name, root)
    if run is None and (step is not None or best):
        given = "--best" if best else "--step"
        raise Problems(Problem(given, f"chooses a checkpoint of a run, and {name!r} is none", "leave it out"))
    if run:
        found = _checkpoint(run, step, best)
        return _readable(AnsweringModel(f"{run.name}, step {found.step}", found.path / "policy", _data_of(run)))
    asked = Pretrained(path=name)
    if asked.on_hub:
        folder = models.find(name) or models.download(name, watch, sources=asked.hub_order)
        return _readable(AnsweringModel(name, folder, Files()))
    if not Path(name).expanduser().exists() and "/" not in name:
        store.find(name, root)  # which suggests names of runs
    return _readable(AnsweringModel(name, Path(name).expanduser(), Files()))


def _checkpoint(run: Folder, step: int | None, best: bool) -> kept_checkpoints.Kept:
    if step is not None and best:
        raise Problems(Problem("--step, --best", "both are given", "use one"))
    if best:
        return kept_checkpoints.best(run)
    return kept_checkpoints.newest(run) if step is None else kept_checkpoints.of_step(run, step)


def _readable(chosen: AnsweringModel) -> AnsweringModel:
    if problems := Pretrained(path=str(chosen.folder)).problems():
        raise Problems(replace(problem, where=chosen.label) for problem in problems)
    return chosen


def _data_of(run: Folder) -> Files:
    """`Files` that are written as the run's prompts were; with the chat template where its spec does not say."""
    try:
        found = parse_yaml(run.spec.read_bytes())["data"]["chat_template"]
    except (OSError, ValueError, YAMLError, KeyError, TypeError):
        found = "auto"
    return Files(chat_template="never" if found == "never" else "auto")


def with_system(prompt: Text, system: str | None) -> Text:
    """The prompt after a system turn."""
    if not system:
        return prompt
    turns = (Message("user", prompt),) if isinstance(prompt, str) else prompt
    return (Message("system", system), *turns)


def read_prompts(path: str) -> Iterator[Row]:
    """The prompts of a file of rows in any format of data.train_files. Raises `Problems` for one that is unreadable."""
    data = Files(train_files=(path,))
    if problems := data.problems():
        raise Problems(problems)
    for row in data.read("train", "prompts"):
        if isinstance(row, RefusedRow):
            raise Problems(Problem(row.where, row.reason, "use rows with a prompt", "bad-row"))
        yield row


def as_lines(answers: Iterable[tuple[Text, str]]) -> str:
    """Rows of `prompt` and `response`, which training reads as demonstrations."""
    rows = (
        {"prompt": prompt if isinstance(prompt, str) else [vars(turn) for turn in prompt], "response": text}
        for prompt, text in answers
    )
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
