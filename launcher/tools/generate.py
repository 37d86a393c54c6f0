"""Which model answers, and which prompts it is asked: a run's checkpoint, a folder, or a model of a hub."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

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
    trust_remote_code: bool = False
    """Whether Python code that comes with it may run."""


def choose(name: str, root: Path, step: int | None, best: bool, watch: Watch, *, trust: bool = False) -> AnsweringModel:
    """The model that `name` means: a run, a model's folder, or a hub's id, which is downloaded. Its own code may run
    where its run allowed it, or with `trust`.

    Raises `Problems`, those of the model's files too.
    """
    run = store.named(name, root)
    if run is None and (step is not None or best):
        given = "--best" if best else "--step"
        raise Problems(Problem(given, f"chooses a checkpoint of a run, and {name!r} is none", "leave it out"))
    if run:
        found = _checkpoint(run, step, best)
        template = kept_checkpoints.stored_setting(run, "data", "chat_template")
        trusted = kept_checkpoints.stored_setting(run, "model", "trust_remote_code")
        data = Files(chat_template="never" if template == "never" else "auto")
        label = f"{run.name}, step {found.step}"
        return _readable(AnsweringModel(label, found.path / "policy", data, trust or trusted is True))
    asked = Pretrained(path=name)
    if asked.on_hub:
        return _readable(AnsweringModel(name, models.find_or_download(asked, watch), Files(), trust))
    if not Path(name).expanduser().exists() and "/" not in name:
        store.find(name, root)  # which suggests names of runs
    return _readable(AnsweringModel(name, Path(name).expanduser(), Files(), trust))


def _checkpoint(run: Folder, step: int | None, best: bool) -> kept_checkpoints.Kept:
    if step is not None and best:
        raise Problems(Problem("--step, --best", "both are given", "use one"))
    if best:
        return kept_checkpoints.best(run)
    return kept_checkpoints.newest(run) if step is None else kept_checkpoints.of_step(run, step)


def _readable(chosen: AnsweringModel) -> AnsweringModel:
    model = Pretrained(path=str(chosen.folder), trust_remote_code=chosen.trust_remote_code)
    if problems := model.problems():
        raise Problems(replace(problem, where=chosen.label) for problem in problems)
    return chosen


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


def open_rows(path: Path) -> TextIO:
    """A new file for rows, or a pipe. Raises `Problems` where a file is there already, and `OSError`."""
    if path.is_file():
        raise Problems(Problem("--out", f"{path} is there already", "use another name"))
    return path.open("w", encoding="utf-8")


def as_line(prompt: Text, response: str) -> str:
    """A row of `prompt` and `response`, which training reads as a demonstration."""
    return json.dumps({"prompt": prompt_node(prompt), "response": response}, ensure_ascii=False) + "\n"


def prompt_node(prompt: Text) -> Any:
    """The prompt in JSON: a text, or turns with role and content."""
    return prompt if isinstance(prompt, str) else [vars(turn) for turn in prompt]
