"""Each value of a run is shown with the file and line, or the argument, that set it, or as a default; and two runs side
by side, as their folders hold them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from launcher.cli.main import app
from launcher.config.defaults import REASONS
from launcher.config.diff import Side, differing, rows, side_of_run
from launcher.config.nodes import apart, flat
from launcher.config.origins import Origin, origins_of
from launcher.config.recipe import known, run_request
from launcher.config.resolve import resolve, resolve_request
from launcher.core.problems import Problems
from launcher.spec.stored import to_node, to_yaml

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
        (BASE, "data.shuffle", "default", "default"),
        # an interpolated value comes from the line with the reference
        (DAPO, "algorithm.max_response_length", "file", line_of("conf/algorithm/dapo.yaml", "max_response_length")),
        # what `~` takes away falls back to the default
        ([*BASE, "~data.train_batch_size"], "data.train_batch_size", "default", "default"),
        # a choice inside a choice, its file's values and its class's defaults
        (GSM8K, "reward.parts.gsm8k", "file", line_of("conf/reward/gsm8k.yaml", "_target_")),
        (GSM8K, "reward.parts.format.timeout_s", "default", "default"),
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
        if origin.kind == "command line" or origin.where in ("default", *REASONS.values()):
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


# ---- two runs

WORDS = " ".join(BASE)
RUNS = Path("runs")


def run_of(words: str, name: str = "first") -> Path:
    """A run's folder, made of words as `rlrun train` makes it."""
    folder = RUNS / "rlrun" / name
    folder.mkdir(parents=True, exist_ok=True)
    folder.joinpath("spec.yaml").write_text(to_yaml(resolve(words.split())))
    folder.joinpath("words.txt").write_text(f"rlrun train {words}\n")
    return folder


def side(folder: Path) -> Side:
    return side_of_run(folder.name, folder / "spec.yaml", folder / "words.txt")


def compared(a: Path, b: Path) -> list[tuple]:
    return [(row.name, *(cell and cell.value for cell in row.cells)) for row in rows(side(a), side(b))]


def printed(*words: str) -> str:
    return CliRunner().invoke(app, ["config", "diff", *words]).stdout


def test_a_group_whose_class_differs_comes_first_and_whole():
    a, b = run_of(WORDS, "a"), run_of(WORDS.replace("grpo", "gspo") + " data.shuffle=false", "b")
    assert compared(a, b) == [
        ("algorithm", "GRPO", "GSPO"),
        ("algorithm.clip_ratio_low", 0.2, 3e-4),
        ("algorithm.clip_ratio_high", 0.2, 4e-4),
        ("data.shuffle", True, False),
    ]
    assert [row.name for row in rows(side(a), side(b)) if row.whole] == ["algorithm"]


def test_what_nobody_gave_is_marked_and_comes_last():
    base = WORDS.replace("data=reverse", "data=files data.train_files=rows.jsonl")
    one, other = side(run_of(base, "one")), side(run_of(f"{base} data.max_length=64", "other"))
    derived = dict.fromkeys(("data.max_prompt_length", "data.max_response_length"), True)
    assert {row.name: row.derived for row in rows(one, other)} == {"data.max_length": False, **derived}
    given = f"{base} data.max_length=64 data.max_prompt_length=60 data.max_response_length=4"
    assert not any(row.derived for row in rows(one, side(run_of(given, "given")))), "it is given on one side"
    shown = printed("one", "rlrun/other").splitlines()
    assert shown[3].split() == ["data.max_length", "null", "64"]
    assert "derived, fitted to model or data.max_length" in shown[4]


def test_where_a_runs_values_come_from():
    """The word that it was started or resumed with; the line of spec.yaml where there is none."""
    run = run_of(f"{WORDS} optim.lr=1e-3 trainer.keep_last=2")
    with (run / "words.txt").open("a") as words:
        words.write("rlrun train --resume rlrun/first trainer.keep_last=7\n")
    cells = side(run).cells
    assert cells["optim.lr"].origin.where == f"{run}/words.txt: optim.lr=1e-3"
    assert cells["trainer.keep_last"].origin.where == f"{run}/words.txt: trainer.keep_last=7"
    assert cells["algorithm"].origin.where == f"{run}/spec.yaml:2"
    (run / "words.txt").unlink()
    assert side(run).cells["optim.lr"].origin.where.startswith(f"{run}/spec.yaml:")


def test_a_run_of_another_version_can_be_compared():
    """Settings that this version does not know, or no longer has, are settings that one side has not; null is one."""
    run = run_of(f"{WORDS} trainer.keep_last=2")
    (run / "spec.yaml").write_text((run / "spec.yaml").read_text().replace("keep_last: 2", "keep_first: 2"))
    assert compared(run, run_of(WORDS, "other")) == [("trainer.keep_first", 2, None), ("trainer.keep_last", None, 3)]
    left = side(run_of(WORDS.replace("grpo", "dpo"), "dpo"))
    (cells,) = (row.cells for row in rows(left, side(run)) if row.name == "algorithm.clip_ratio_c")
    assert cells[0] is None and cells[1].value is None


def test_a_spec_that_is_no_settings_is_named():
    run = run_of(WORDS)
    (run / "spec.yaml").write_text("a: [")
    with pytest.raises(Problems, match=rf"{run}/spec\.yaml:.*cannot be read"):
        side(run)


def test_json_says_which_side_has_a_setting_and_where_from():
    run_of(WORDS), run_of(WORDS.replace("grpo", "gspo_selfplay"), "other")
    ran = CliRunner().invoke(app, ["config", "diff", "--source", "--json", "first", "other"])
    node = json.loads(ran.stdout)
    assert ran.exit_code == 1 and not node["equal"]
    found = {row["setting"]: row for row in node["differs"] if not row["group"]}
    assert set(found["algorithm.beta"]) == {"setting", "group", "b", "b_from"}  # GRPO has none
    assert found["algorithm.beta"]["b_from"].startswith("runs/rlrun/other/spec.yaml:")
    run_of(f"{WORDS} seed=1", "other")
    assert json.loads(printed("--json", "first", "other"))["differs"] == [
        {"setting": "seed", "group": False, "a": 0, "b": 1}
    ]


def test_what_is_equal_needs_no_words():
    run_of(WORDS)
    equal = CliRunner().invoke(app, ["config", "diff", "first", "first"])
    assert (equal.exit_code, equal.stdout) == (0, "")
    assert CliRunner().invoke(app, ["config", "diff", "first", "nothing"]).exit_code == 2
