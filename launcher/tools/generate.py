"""The model of `rlrun generate` (a run's checkpoint, a folder, a hub's model), and its files of prompts and answers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TextIO

from launcher.core.bounded_parse import parse_json
from launcher.core.problems import Problem, Problems
from launcher.data.files import Files
from launcher.hubs.progress import OnProgress
from launcher.models import store as models
from launcher.models.pretrained import Pretrained
from launcher.runs import kept_checkpoints, store
from launcher.runs.folder import Folder
from launcher.spec.checkpoint_format import POLICY
from launcher.spec.data import Dataset, Message, RefusedRow, Row, prompt_node


@dataclass(frozen=True)
class AnsweringModel:
    """The model that answers."""

    label: str
    folder: Path
    data: Dataset
    """How its prompts are written: as in its run, else with the tokenizer's chat template."""
    trust_remote_code: bool = False
    """Whether Python code that comes with it may run."""
    usual_tokens: int | None = None
    """Maximum length of answers in its run, in tokens; None where that is not known."""


def choose(
    name: str, root: Path, step: int | None, best: bool, watch: OnProgress, *, trust: bool = False,
    template_args: Mapping[str, Any] | None = None,
) -> AnsweringModel:  # fmt: skip
    """The model that `name` means: a run, a model's folder, or a hub's id, which is downloaded. Its own code may run
    where its run allowed it, or with `trust`. `template_args` come before those of its run.

    Raises `Problems`, those of the model's files too.
    """
    run, usual, label = store.named(name, root), None, name
    data = Files(template_args=dict(template_args or {}))
    if run:
        kept = _checkpoint(run, step, best)
        label, folder = f"{run.name}, step {kept.step}", kept.path / POLICY
        data = _read_template(run, data.template_args)
        longest = kept_checkpoints.stored_setting(run, "data", "max_response_length")
        usual = longest if isinstance(longest, int) and longest > 0 else None
        trust = trust or kept_checkpoints.stored_setting(run, "model", "trust_remote_code") is True
    elif step is not None or best:
        option = "--best" if best else "--step"
        raise Problems(Problem(option, f"chooses a checkpoint of a run, and {name!r} is none", "leave it out"))
    elif (pretrained := Pretrained(path=name)).on_hub:
        folder = models.find_or_download(pretrained, watch)
    else:
        folder = Path(name).expanduser()
        if not folder.exists() and "/" not in name:
            store.find(name, root)  # raises, and suggests names of runs
    if problems := Pretrained(path=str(folder), trust_remote_code=trust).problems():
        raise Problems(replace(problem, where=label) for problem in problems)
    return AnsweringModel(label, folder, data, trust, usual)


def _read_template(run: Folder, template_args: Mapping[str, Any]) -> Files:
    """How the run wrote its prompts, with `template_args` before its own."""
    template, args = (kept_checkpoints.stored_setting(run, "data", name) for name in ("chat_template", "template_args"))
    chat_template: Literal["never", "auto"] = "never" if template == "never" else "auto"
    own_args = args if isinstance(args, dict) else {}
    return Files(chat_template=chat_template, template_args={**own_args, **template_args})


def read_args(text: str | None) -> dict[str, Any]:
    """Arguments of the chat template, written as JSON. Raises `Problems`."""
    try:
        args = parse_json(text) if text else {}
    except ValueError:
        args = None
    if not isinstance(args, dict):
        raise Problems(Problem("--template-args", f"{text} is no JSON object", """use '{"enable_thinking": false}'"""))
    return args


def _checkpoint(run: Folder, step: int | None, best: bool) -> kept_checkpoints.Kept:
    if step is not None and best:
        raise Problems(Problem("--step, --best", "both are given", "use one"))
    if best:
        return kept_checkpoints.best(run)
    return kept_checkpoints.newest(run) if step is None else kept_checkpoints.of_step(run, step)


def with_system(row: Row, system: str | None) -> Row:
    """The row's prompt after a system turn."""
    if not system:
        return row
    turns = (Message("user", row.prompt),) if isinstance(row.prompt, str) else row.prompt
    return replace(row, prompt=(Message("system", system), *turns))


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


def as_line(row: Row, response: str) -> str:
    """A row of `prompt` and `response`, which training reads as a demonstration."""
    node = {"prompt": prompt_node(row.prompt), "response": response}
    if row.template_args:
        node["chat_template_kwargs"] = dict(row.template_args)
    return json.dumps(node, ensure_ascii=False) + "\n"
