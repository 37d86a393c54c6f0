"""Each value of a run is told with the file and line, the word, or the class that gave it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from launcher.config.defaults import REASONS
from launcher.config.diff import differing
from launcher.config.nodes import apart, flat
from launcher.config.origins import Origin, origins_of
from launcher.config.recipe import known, run_request
from launcher.config.resolve import resolve, resolve_request
from launcher.spec.stored import to_node

ROOT = Path(__file__).parents[2]
BASE = ["algorithm=grpo", "model=tiny", "data=reverse", "sampler.n=4"]
PARTED = [*BASE, "reward=weighted"]
DAPO = ["algorithm=dapo", *BASE[1:]]
GSM8K = ["algorithm=grpo", "model=tiny", "data=gsm8k", "reward=gsm8k_format", "sampler.n=4"]


def origins(words: Sequence[str], config_dir: Path | None = None, recipe: str | None = None) -> Mapping[str, Origin]:
    found = resolve_request(run_request(words, config_dir, recipe))
    assert found.run and not found.problems, found.problems
    return origins_of(found.run, found)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a recipe is read in a copy of the working folder


def line_of(path: str, begins: str) -> str:
    """`path:N` of the only line that begins so."""
    lines = (ROOT / path).read_text().splitlines()
    (number,) = [number for number, line in enumerate(lines, 1) if line.strip().startswith(begins)]
    return f"{path}:{number}"


@pytest.mark.parametrize(
    ("words", "setting", "kind", "where"),
    [
        (BASE, "sampler.n", "command line", "command line: sampler.n=4"),
        ([*BASE, "sampler.n=8"], "sampler.n", "command line", "command line: sampler.n=8"),  # the last word counts
        (BASE, "algorithm", "command line", "command line: algorithm=grpo"),
        # a word is the origin of all that it stands for
        *((["algorithm=sft", "data=reverse", "model=some/model"], name, "command line",
           "command line: model=some/model") for name in ("model", "model.path")),
        ([*BASE, "trainer.run_root=~/x"], "trainer.run_root", "command line", "command line: trainer.run_root=~/x"),
        (BASE, "hardware", "file", line_of("conf/run.yaml", "- hardware:")),  # chosen by nobody
        (BASE, "data.train_batch_size", "file", line_of("conf/data/reverse.yaml", "train_batch_size")),
        (BASE, "data.shuffle", "default", line_of("launcher/spec/data.py", "shuffle:")),  # the noun's class
        # a subclass that changes a default is where the default comes from
        (DAPO, "algorithm.loss_agg_mode", "default", line_of("launcher/algorithms/dapo.py", "loss_agg_mode:")),
        # an interpolated value comes from the line with the reference
        (DAPO, "algorithm.max_response_length", "file", line_of("conf/algorithm/dapo.yaml", "max_response_length")),
        # what `~` takes away falls back to the class
        ([*BASE, "~data.train_batch_size"], "data.train_batch_size", "default",
         line_of("launcher/spec/data.py", "train_batch_size:")),
        # a choice inside a choice, its file's values and its class's
        (GSM8K, "reward.parts.gsm8k", "file", line_of("conf/reward/gsm8k.yaml", "_target_")),
        (GSM8K, "reward.parts.format.timeout_s", "default", line_of("launcher/rewards/format.py", "timeout_s:")),
        (GSM8K, "reward.weights.format", "file", line_of("conf/reward/gsm8k_format.yaml", "format: 0.2")),
        # a dict is merged: what it does not name stays with the file
        ([*GSM8K, "reward.weights={gsm8k: 2.0}"], "reward.weights.gsm8k", "command line",
         "command line: reward.weights={gsm8k: 2.0}"),
        ([*GSM8K, "reward.weights={gsm8k: 2.0}"], "reward.weights.format", "file",
         line_of("conf/reward/gsm8k_format.yaml", "format: 0.2")),
        # `reward.parts` names choices and weights at once
        ([*PARTED, "reward.parts={gsm8k: 1.0}"], "reward.weights.gsm8k", "command line",
         "command line: reward.parts={gsm8k: 1.0}"),
        ([*PARTED, "reward.parts={gsm8k: 1.0}"], "reward.parts.gsm8k", "file",
         line_of("conf/reward/gsm8k.yaml", "_target_")),
    ],
)  # fmt: skip
def test_origin(words, setting, kind, where):
    found = origins(words)[setting]
    assert (found.kind, found.where) == (kind, where)


WIDE = ("dapo-gsm8k", "dpo", "verl-ppo-gsm8k")
RECIPES = [
    pytest.param(name, marks=[] if name in WIDE else pytest.mark.long)
    for name in known()
    if name not in ("quickstart", "email-agent")
]  # of two runs


@pytest.mark.parametrize("name", RECIPES)
def test_every_line_that_is_named_speaks_of_its_setting(name):
    """Of a whole recipe: the file exists, and the line holds the setting's last name."""
    typed = ["data.train_files=a.jsonl"] if name in ("sft", "dpo") else []
    found = origins(typed, recipe=name)
    assert found.keys() >= apart(flat(to_node(resolve(run_request(typed, recipe=name).texts))))[1].keys()
    assert {origin.kind for origin in found.values()} >= {"recipe", "file", "default"}
    for setting, origin in found.items():
        if origin.kind == "command line" or origin.where in REASONS.values():
            continue
        path, _, number = origin.where.partition(" ")[0].rpartition(":")
        line = (ROOT / path).read_text().splitlines()[int(number) - 1]
        assert re.search(rf"\b{setting.rpartition('.')[2]}\b", line), (setting, origin)


def own(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / "own" / f"{name.replace('__', '/')}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "own"


def test_a_folder_of_ones_own(tmp_path):
    text = "# mine\n_target_: launcher.data.reverse.Reverse\nn_val: ${.n_demos}\nn_demos: 16\n"
    folder = own(tmp_path, data__mine=text)
    found = origins(["algorithm=grpo", "model=tiny", "data=mine", "sampler.n=4"], folder)
    assert found["data.n_val"].where == "own/data/mine.yaml:3"


def test_of_two_files_of_one_name_the_one_that_hydra_takes_is_named(tmp_path):
    folder = own(tmp_path, data__reverse="_target_: launcher.data.reverse.Reverse\ntrain_batch_size: 48\n")
    run, found = resolve(BASE, folder), origins(BASE, folder)
    taken = {16: line_of("conf/data/reverse.yaml", "train_batch_size"), 48: "own/data/reverse.yaml:2"}
    assert found["data.train_batch_size"].where == taken[run.data.train_batch_size]


def test_what_differs_from_the_defaults():
    """Values of words and of the choices' files, and those that have no default; nothing else."""
    run = resolve([*GSM8K, "optim.lr=1e-6", "optim.betas=[0.9,0.95]", "seed=0", "reward.weights.gsm8k=1.0"])
    found = {one.name: (one.value, one.default, one.required) for one in differing(run)}
    assert found == {
        "data.repo": ("openai/gsm8k", None, True),  # no default: somebody gave it
        "data.holds": ("prompts", found["data.holds"][1], False),
        "data.format": ("gsm8k", "auto", False),
        "data.train_files": (["main/train-*.parquet"], found["data.train_files"][1], False),
        "data.val_files": (["main/test-*.parquet"], found["data.val_files"][1], False),
        "reward.weights.gsm8k": (1.0, None, False),  # an entry of a dict that is empty by default
        "reward.weights.format": (0.2, None, False),
        "sampler.n": (4, 1, False),
        "optim.betas": ([0.9, 0.95], [0.9, 0.999], False),
    }  # `optim.lr=1e-6` and `seed=0` are the defaults, whoever says so
