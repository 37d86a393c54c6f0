"""A run as its folder stores it: spec.yaml has its settings, prepared.json the local files that were found for it.

spec.yaml      hub ids and paths as they were typed
prepared.json  {"directory": what relative paths are relative to, "model", "data", "reward": the same with local,
                absolute paths, "rows": number of training rows, where they were counted}
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field

from launcher.core.bounded_parse import parse_json, parse_yaml
from launcher.core.classes import add_code_dir
from launcher.core.files import read_file
from launcher.core.settings import Chosen, Count, adapter, from_node, settings
from launcher.spec.data import Dataset
from launcher.spec.environment import Environment, Single
from launcher.spec.model import Model
from launcher.spec.reward import Reward
from launcher.spec.run import RunSpec

SPEC, PREPARED = "spec.yaml", "prepared.json"
OF_DATA = ("train_batch_size", "val_batch_size", "max_prompt_length", "max_response_length", "val_share")
"""Settings of the data that may be fitted or amended after it was prepared: those of spec.yaml count."""


@settings
class Prepared:
    """The local files of a run, with absolute paths: everything that it reads."""

    directory: str
    """Working directory of the command that prepared it: relative paths of the RunSpec are relative to it."""
    model: Chosen[Model]
    """The model in its local folder."""
    data: Chosen[Dataset]
    """The data as local files, with absolute paths."""
    reward: Chosen[Reward]
    """The reward, with its models in local folders, and its own code in the run's: paths relative to that."""
    environment: Chosen[Environment] = Field(default_factory=Single)
    """The environment, with absolute paths."""
    rows: Count | None = None
    """Good rows of the training data; None if they have not been counted."""

    @classmethod
    def from_local(cls, run: RunSpec) -> Prepared:
        """The prepared files of a run whose model, data and reward are on this machine."""
        parts = {name: getattr(run, name).with_absolute_paths() for name in ("model", "data", "reward", "environment")}
        return cls(directory=os.getcwd(), **parts)

    def applied_to(self, run: RunSpec) -> RunSpec:
        """The run as its processes read it. Raises pydantic's `ValidationError` where the two do not fit."""
        data = replace(self.data, **{name: getattr(run.data, name) for name in OF_DATA})
        recomputed = run.model.enable_gradient_checkpointing
        model = replace(self.model, enable_gradient_checkpointing=recomputed)
        return replace(run, model=model, data=data, reward=self.reward, environment=self.environment)

    def within(self, folder: Path) -> Prepared:
        """The same with paths of copied user code in the run's folder, which may have been moved."""
        return replace(self, reward=self.reward.within(folder), environment=self.environment.within(folder))

    def to_json(self) -> str:
        return json.dumps(adapter(Prepared).dump_python(self, mode="json"), indent=1) + "\n"


def to_node(run: RunSpec) -> dict[str, Any]:
    """The run as plain dicts, lists, numbers and strings, as spec.yaml holds them."""
    node: dict[str, Any] = adapter(RunSpec).dump_python(run, mode="json")
    return node


def to_yaml(run: RunSpec) -> str:
    return yaml.safe_dump(to_node(run), sort_keys=False, allow_unicode=True, width=120)


def from_yaml(text: str) -> RunSpec:
    """The run; makes its user code importable. Raises pydantic's `ValidationError` where the text is not a run of this
    version."""
    node = parse_yaml(text)
    add_code_dir(node.get("code_dir"))
    return from_node(RunSpec, node)


def read_prepared(folder: Path) -> Prepared | None:
    """What was found for the run in `folder`; None where it was not prepared. Raises `OSError`, `ValueError`."""
    try:
        text = read_file(folder / PREPARED)
    except FileNotFoundError:
        return None
    return from_node(Prepared, parse_json(text)).within(folder)


def read_run(folder: Path) -> RunSpec:
    """The run in `folder` as its processes read it. Raises like `from_yaml` and `read_prepared`."""
    run, prepared = from_yaml(read_file(folder / SPEC).decode()), read_prepared(folder)
    return prepared.applied_to(run) if prepared else run
