"""Every file of conf/ makes a run, and every class that it names is documented."""

from __future__ import annotations

from dataclasses import fields

import pytest
import yaml

from launcher.launch.resolve import conf_dir, groups, resolve
from launcher.settings import locate
from launcher.spec.stored import from_yaml, to_yaml

BASE = {"algorithm": "grpo", "model": "tiny", "data": "reverse"}
MORE = {"hf": ["model.path=Qwen/Qwen3-0.6B"], "files": ["data.train_files=train.jsonl"]}
CHOICES = [(group, choice) for group, choices in groups().items() for choice in choices]


@pytest.mark.parametrize(("group", "choice"), CHOICES, ids=lambda value: value)
def test_choice_is_a_run_that_survives_being_written_down(group, choice):
    words = [f"{name}={value}" for name, value in {**BASE, group: choice}.items()]
    run = resolve([*words, "sampler.n=8", *MORE.get(choice, [])])
    assert from_yaml(to_yaml(run)) == run


@pytest.mark.parametrize(("group", "choice"), CHOICES, ids=lambda value: value)
def test_class_and_its_settings_are_documented(group, choice):
    node = yaml.safe_load((conf_dir() / group / f"{choice}.yaml").read_text())
    if "_target_" in node:
        chosen = locate(node["_target_"], object)
        assert chosen.__doc__ or chosen.__module__ != "", choice
        assert set(node) - {"_target_"} <= {field.name for field in fields(chosen)}
