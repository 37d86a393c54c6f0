"""Every file of conf/ makes a run, and every class that it names is documented; every recipe is made of whole runs, and
passes on what it is given."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from launcher.config.compose import groups
from launcher.config.resolve import resolve
from launcher.core.classes import locate
from launcher.core.files import conf_dir
from launcher.spec.algorithm import Algorithm
from launcher.spec.stored import from_yaml, to_yaml

BASE = {"algorithm": "grpo", "model": "tiny", "data": "reverse"}
MORE = {
    ("algorithm", "turn_grpo"): ["environment=python", "environment.path=shop.py"],
    ("algorithm", "gigpo"): ["environment=python", "environment.path=shop.py"],
    ("environment", "python"): ["environment.path=shop.py"],
    ("environment", "mcp"): ["environment.command=[python,server.py]"],
    ("environment", "verifiers"): ["environment.id=wordle"],
    ("environment", "openenv"): ["environment.args.taskset.base_url=http://localhost:8000"],
    ("sampler", "vllm"): ["model.num_attention_heads=2", "model.num_key_value_heads=2"],
    ("model", "hf"): ["model.path=Qwen/Qwen3-0.6B"],
    ("data", "files"): ["data.train_files=train.jsonl"],
    ("data", "hub"): ["data.repo=openai/gsm8k"],
    ("reward", "model"): ["reward.path=Skywork/Skywork-Reward-V2-Qwen3-0.6B"],
    ("reward", "length"): ["reward.high=1000"],
    ("reward", "python"): ["reward.path=my.py"],
    ("reward", "remote"): ["reward.url=http://localhost:8000/score"],
    ("reward", "by_style"): ["reward.parts={exact:1.0,model:1.0}", "reward.parts.model.path=o/r"],
    ("reward", "weighted"): ["reward.parts={exact:1.0,format:0.2}"],
}
WITH_VERL = {"engine": "verl", "sampler": "verl", "hardware": "gpu", "model": "qwen3-0.6b", "data": "gsm8k"}
OTHERS = {("engine", "verl"): WITH_VERL, ("sampler", "verl"): WITH_VERL}
"""Choices that go together only."""
CHOICES = [(group, choice) for group, choices in groups().items() for choice in choices]


@pytest.mark.parametrize(("group", "choice"), CHOICES, ids=lambda value: value)
def test_choice_is_a_run_that_survives_being_written_down(group, choice):
    words = [f"{name}={value}" for name, value in {**BASE, group: choice, **OTHERS.get((group, choice), {})}.items()]
    run = resolve([*words, "sampler.n=8", *MORE.get((group, choice), [])])
    assert from_yaml(to_yaml(run)) == run


@pytest.mark.parametrize("choice", groups()["algorithm"])
def test_each_algorithm_has_the_name_of_its_class(choice):
    target = yaml.safe_load((conf_dir() / "algorithm" / f"{choice}.yaml").read_text())["_target_"]
    assert locate(target, Algorithm).__name__.lower() == choice.replace("_", "")


RECIPES = sorted((Path(__file__).parents[1] / "recipes").glob("*.sh"))
OF_RECIPES = {name: ["data.train_files=a.jsonl"] for name in ("sft", "dpo")}
NOTE_WORDS = f"#!{sys.executable}\nimport sys, json\nprint(json.dumps(sys.argv[1:]), file=open('words', 'a'))\n"


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_recipe_is_whole_runs_and_its_header_tells_date_hardware_and_result(recipe, tmp_path):
    program = tmp_path / "bin" / "rlrun"  # notes its words instead of training
    program.parent.mkdir()
    program.write_text(NOTE_WORDS)
    program.chmod(0o755)
    given = [*OF_RECIPES.get(recipe.stem, []), "seed=7"]
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run([recipe, *given], cwd=tmp_path, env={**os.environ, "PATH": path}, check=True)
    runs = [json.loads(line) for line in (tmp_path / "words").read_text().splitlines()]
    assert runs
    for command, *words in runs:
        assert command == "train"
        assert resolve(words).seed == 7, "what the recipe is given is passed on"
    head = "\n".join(line for line in recipe.read_text().splitlines() if line.startswith("#"))
    assert re.search(r"Date \d{4}-\d\d-\d\d · hardware: .+ · result: .+", head) and os.access(recipe, os.X_OK)
