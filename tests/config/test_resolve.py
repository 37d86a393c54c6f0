"""Wrong arguments: each is named with a fix, all at once, and nothing is started."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path

import pytest
from typer.testing import CliRunner

from launcher.cli.main import app
from launcher.config.compose import groups
from launcher.config.diagnose import CHOICES
from launcher.config.resolve import resolve
from launcher.core.problems import Problems
from launcher.preflight import plan
from launcher.spec.run import Optim
from launcher.spec.stored import from_yaml, to_yaml

BASE = {"algorithm": "grpo", "model": "tiny", "data": "reverse", "sampler.n": "4"}
GROUPS = groups()
TOP = ", ".join(sorted([*GROUPS, "critic", "optim", "seed", "trainer"]))
LONG = "a" * 300
TARGET = "_target_ is named by config files only"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with one good file, one empty folder and one file that is neither data nor model."""
    monkeypatch.chdir(tmp_path)
    Path("train.jsonl").write_text('{"prompt": "p", "response": "r"}\n')
    Path("empty").mkdir()
    Path("note.txt").write_text("")
    Path("taken/a").mkdir(parents=True)
    Path("taken/a/b").write_text("")
    for step in (90, 1000):
        Path(f"trained/checkpoint-{step}").mkdir(parents=True)
        Path(f"trained/checkpoint-{step}/config.json").write_text("{}")
    return tmp_path


def problems(words: Iterable[str], config_dir: Path | None = None) -> list[str]:
    """What a person is told about these words; words of BASE stand for what they leave out."""
    words = list(words)
    keys = {word.lstrip("+~").partition("=")[0].partition("@")[0] for word in words}
    base = [f"{key}={value}" for key, value in BASE.items() if key not in keys]
    try:
        run = resolve([*base, *words], config_dir)
    except Problems as found:
        return found.lines
    return [str(problem) for problem in plan.problems(run, here=False)]


def choices(group: str) -> str:
    return ", ".join(GROUPS[group])


def names(cls: type) -> str:
    return ", ".join(sorted(field.name for field in fields(cls)))


def test_the_words_that_all_others_are_compared_to_are_right() -> None:
    assert problems([]) == []


EXACT = [
    # a typo in a key, at every group: the class is named, and the nearest setting
    ("algorithm.cilp_ratio_high=1", "algorithm.cilp_ratio_high: GRPO has no setting 'cilp_ratio_high';"
                                    " did you mean algorithm.clip_ratio_high=1?"),
    ("optim.wx=1", f"optim.wx: Optim has no setting 'wx'; it has {names(Optim)}"),  # nothing is near
    # a typo in a group
    ("algoritm=grpo", "algoritm: no group or setting 'algoritm'; did you mean algorithm=grpo?"),
    ("wander=true", f"wander: no group or setting 'wander'; it may be {TOP}"),
    # a typo in a choice
    ("hardware=../../etc/passwd", f"hardware: no choice '../../etc/passwd'; it may be {choices('hardware')}"),
    # a wrong value
    ("optim.lr=nan", "optim.lr: got nan; use a finite number"),
    ("seed=99999999999999999999", "seed: got 99999999999999999999; use a number < 9223372036854775808"),
    # a wrong type: nothing is converted
    ("sampler.n=true", "sampler.n: got True; use a whole number"),  # Python's True is 1
    ("sampler.n='4'", "sampler.n: got '4'; use sampler.n=4"),
    ("trainer=null", "trainer: got None, and it is a group of settings; use trainer.SETTING=VALUE"),
    # names that would be paths
    ("trainer.run_root='~no-such-user/x'", "trainer.run_root: got '~no-such-user/x',"
                                           " could not determine home directory; use another folder"),
    # what cannot be read
    ("=5", "'=5': names no setting; use key=value"),
    ("seed=[1,{", "seed: '[1,{' has brackets that do not match; use 'seed=\"[1,{\"'"),
    ("data.prompt_key=\udc80", "data.prompt_key: '\\udc80' cannot be read; use key=value"),
    # a sweep
    ("sampler.n=2,4", "sampler.n: 'sampler.n=2,4' is a sweep; use -m, or one value, or for a list 'sampler.n=[2,4]'"),
    # code from the command line, in every disguise
    # Hydra's own settings and ways around the groups
    ("hydra.run.dir=x", "hydra.run.dir: Hydra's own settings are not part of a run; leave it out"),
    # what lies outside the run
    # taken away
    ("~hardware", f"hardware: not chosen; it may be {choices('hardware')}"),
    # fine each, but not together
    ("hardware.nnodes=2", "hardware.nnodes: cluster local is one machine, got 2; use 1, or cluster=ray"),
    ("hardware.n_gpus_per_node=2", "hardware.n_gpus_per_node: is 2 and device is cpu; use hardware=gpu"),
    ("model.hidden_size=65", "model: hidden_size 65 does not split over 4 attention heads; use an even hidden_size"),
    # what stands on the disk
    ("trainer.run_root=s3://bucket/x", "trainer.run_root: 's3://bucket/x' is an address, not a folder; use a folder,"
                                       " such as one mounted there"),
]  # fmt: skip


@pytest.mark.parametrize(("word", "line"), EXACT, ids=[ascii(word)[1:40] for word, _ in EXACT])
def test_a_wrong_word_makes_one_line(word: str, line: str, here: Path) -> None:
    assert problems([word]) == [line.replace("{here}", str(here))]


def test_a_group_that_another_choice_has_chosen_is_not_missing() -> None:
    with pytest.raises(Problems) as found:
        resolve(["algorithm=grpo", "model=tiny", "environment=verifiers", "environment.id=wordle", "optim.lr=much"])
    assert [problem.where for problem in found.value.problems] == ["optim.lr"]


@pytest.mark.parametrize("words", [
    ["model.path=Qwen/Qwen3-0.6B"], ["model=hf", "model.path=Qwen/Qwen3-0.6B"], ["model=Qwen/Qwen3-0.6B"],
])  # fmt: skip
def test_a_model_is_known_in_every_spelling(words: list[str]) -> None:
    known = resolve(["algorithm=sft", "data=reverse", "model=qwen3-0.6b"])
    assert resolve(["algorithm=sft", "data=reverse", *words]).model == known.model


SEVERAL = [
    (["algorithm=sft", "algorithm=grpo"],
     ["algorithm: chosen twice, as algorithm=sft and algorithm=grpo; keep one of the two"]),
    (["trainer.run_root=taken", "trainer.project_name=a", "trainer.experiment_name=b"],  # a file has the run's name
     ["trainer.run_root: '{here}/taken/a/b' is a file; use a folder"]),
    (["model=hf"], ["model.path: has no value; use model.path=VALUE"]),
    (["model=hf", "model.path=empty"],
     ["model.path: 'empty' holds no config.json and no checkpoint; use a model's folder"]),
    (["model=hf", "model.path=trained"],
     ["model.path: 'trained' holds no config.json and no checkpoint; use model.path=trained/checkpoint-1000"]),
    (["model=hf", "model.path=trained/checkpoint-90/config.json"],
     ["model.path: 'trained/checkpoint-90/config.json' is a file; use model.path=trained/checkpoint-90"]),
    (["model=hf", "model.path=emtpy"], ["model.path: there is no folder 'emtpy'; did you mean model.path=empty?"]),
    (["data=files"], ["data.train_files: none is given; use data.train_files=train.jsonl"]),
    (["data=files", "data.train_files=trian.jsonl"],
     ["data.train_files: trian.jsonl is not there; did you mean data.train_files=train.jsonl?"]),
    (["data=files", "data.train_files=empty"],
     ["data.train_files: empty is a folder; use 'data.train_files=empty/*.jsonl'"]),
    (["data=files", "data.train_files='empty/*.jsonl'"],
     ["data.train_files: empty/*.jsonl matches no file; its folder has no JSONL, JSON, CSV or parquet file"]),
    (["data=files", "data.train_files=note.txt"],
     ["data.train_files: the ending of 'note.txt' is not known; expected .jsonl, .json, .ndjson, .csv, .tsv,"
      " .jsonl.gz, .json.gz, .ndjson.gz, .csv.gz, .tsv.gz or .parquet"]),
    (["data=files", "data.train_files=[train.jsonl,[1]]"], ["data.train_files: got [1] as item 2; use text"]),
    # everything at once
    (["algorithm.cilp_ratio_low=1", "sampler.n=four", "data.train_batch_size=0", "seed=1.5", "modle=tiny", "x"],
     ["modle: no group or setting 'modle'; did you mean model=tiny?",
      "'x': names no setting; use key=value",
      "algorithm.cilp_ratio_low: GRPO has no setting 'cilp_ratio_low'; did you mean algorithm.clip_ratio_low=1?",
      "data.train_batch_size: got 0; use a number >= 1",
      "sampler.n: got 'four'; use a whole number",
      "seed: got 1.5; use a whole number"]),
]  # fmt: skip


@pytest.mark.parametrize(("words", "lines"), SEVERAL, ids=[" ".join(words)[:60] for words, _ in SEVERAL])
def test_wrong_words_are_all_told_at_once(words: list[str], lines: list[str], here: Path) -> None:
    found = problems(words)
    assert sorted(found) == sorted(line.replace("{here}", str(here)) for line in lines)


def test_groups_that_are_not_chosen_are_all_asked_for() -> None:
    with pytest.raises(Problems) as found:
        resolve([])
    assert found.value.lines == [
        f"algorithm: not chosen; it may be {choices('algorithm')}",
        *(f"{group}: not chosen; {CHOICES[group]}" for group in ("data", "model")),
    ]


@pytest.mark.parametrize(
    ("words", "n"),
    [
        (["sampler.n=2", "sampler.n=3"], 3),  # of two values the last, as in Hydra
        (["++sampler.n=8"], 8),
        (["algorithm=grpo", "algorithm=grpo", "sampler.n=8"], 8),  # said twice, but the same
        (["++algorithm=grpo", "sampler.n=8"], 8),
        (["data.n_val=8", "sampler.n=${data.n_val}"], 8),  # another setting's value
    ],
)
def test_words_that_do(words: list[str], n: int) -> None:
    base = [f"{key}={value}" for key, value in BASE.items() if key not in ("sampler.n", words[0].lstrip("+")[:9])]
    assert resolve([*base, *words]).sampler.n == n


# ---- the command line


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (["train", "algorithm=gpro", "model=tiny", "data=reverse", "sampler.n=1"], 2),
        (["train", "--resume", "nowhere"], 1),
        (["show", LONG], 1),  # longer than a file's name may be
        (["logs", "\x1b[31mred"], 1),
    ],
    ids=lambda value: " ".join(value)[:50] if isinstance(value, list) else None,
)
def test_the_command_ends_with_2_and_lines_that_begin_with_a_cross(words: list[str], lines: int) -> None:
    ran = CliRunner().invoke(app, words)
    assert (ran.exit_code, ran.stdout) == (2, "")
    assert "Traceback" not in ran.stderr and "\x1b" not in ran.stderr
    assert [line[:2] for line in ran.stderr.splitlines()] == ["✗ "] * lines


def test_a_dry_run_is_a_plan_and_ends_with_2() -> None:
    ran = CliRunner().invoke(app, ["train", "--dry-run", "algorithm=sft", "model=tiny", "data=reverse", "hardware=gpu"])
    assert (ran.exit_code, ran.stderr) == (2, "") and ran.stdout.startswith("cannot start: 1 FAIL\n")


# ---- a run written down, and config files of a person's own


def own(folder: Path, text: str | bytes, name: str = "algorithm/mine") -> Path:
    path = folder / "conf" / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder / "conf"


CLASS = "_target_: launcher.algorithms.grpo.GRPO\n"


def test_a_config_file_of_ones_own(here: Path) -> None:
    config_dir = own(here, f"{CLASS}kl_loss_coef: 0.5\n")
    own(here, "replicas: 2\n", "k8s/deploy")  # a folder that is no group of ours is not ours to judge
    words = ["algorithm=mine", "model=tiny", "data=reverse", "sampler.n=4"]
    run = resolve(words, config_dir)
    assert run.algorithm.kl_loss_coef == 0.5
    assert from_yaml(to_yaml(run)) == run
    assert resolve([*words, "algorithm.kl_loss_coef=0.1"], config_dir).algorithm.kl_loss_coef == 0.1
    assert problems(["algorithm=mien"], config_dir) == ["algorithm: no choice 'mien'; did you mean algorithm=mine?"]
    assert resolve(["algorithm=mine", *words[1:]], Path("conf")) == run  # also where the folder's path is relative


@pytest.mark.parametrize("name", ["it's", 'say "x"', "back\\", "\\'"])
def test_a_folder_of_config_groups_may_have_any_name(here: Path, name: str) -> None:
    config_dir = own(here / name, f"{CLASS}kl_loss_coef: 0.5\n").rename(here / name / name)
    run = resolve(["algorithm=mine", "model=tiny", "data=reverse", "sampler.n=4"], config_dir)
    assert run.algorithm.kl_loss_coef == 0.5


def test_code_beside_the_config_groups_is_recorded_with_the_run(here: Path) -> None:
    config_dir = own(here, CLASS)
    words = ["algorithm=mine", "model=tiny", "data=reverse", "sampler.n=4"]
    assert resolve(words, config_dir).code_dir is None, "there is no code"
    (config_dir / "mine_own.py").write_text("")
    assert resolve(words, Path("conf")).code_dir == str(config_dir.resolve())
    assert problems(["code_dir=/tmp"])[0].startswith("code_dir: no group or setting"), "only --config-dir names it"


OWN = [
    ("_target_: os.system\n", "algorithm: os.system is not of class Algorithm; use one that extends it"),
    ("_target_: launcher.spec.algorithm.Algorithm\n",  # the noun itself
     "algorithm: launcher.spec.algorithm.Algorithm cannot be built; use a class with @settings and every method"),
    ("_target_: no.such.Class\n",
     "algorithm: there is no source of a module no.such; expected package.module.Class"),
    ("_target_: 5\n", "algorithm: _target_ is 5; its config file names the Algorithm class to build"),
    ("", "algorithm: has no _target_; its config file names the Algorithm class to build"),
    (f"{CLASS}kl_coef: 1\n", "algorithm.kl_coef: GRPO has no setting 'kl_coef'; did you mean kl_loss_coef?"),
    (f"{CLASS}kl_loss_coef: [\n", "{file}:3: did not find expected node content"),
    (f"{CLASS}kl_loss_coef: 1\nkl_loss_coef: 2\n", "{file}:3: found duplicate key kl_loss_coef"),
    (b"\xff", "--config-dir: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
    ("5\n", "--config-dir: object of unsupported type: 'int'"),
    (f"{CLASS}kl_loss_coef: ${{no.such:x}}\n", "--config-dir: unsupported interpolation type no.such"),
    ("defaults: [nowhere]\n", "--config-dir: in 'algorithm/mine': Could not load 'algorithm/nowhere'"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line"), OWN, ids=[str(text)[:40] for text, _ in OWN])
def test_a_config_file_of_ones_own_that_is_wrong(text: str | bytes, line: str, here: Path) -> None:
    config_dir = own(here, text)
    expected = line.replace("{file}", str(config_dir / "algorithm" / "mine.yaml"))
    first, *others = problems(["algorithm=mine", "sed=1"], config_dir)
    assert first.startswith("sed: ") and others == [expected]


def test_a_plain_group_takes_no_target(here: Path) -> None:
    (line,) = problems(["hardware=mine"], own(here, "_target_: os.system\n", "hardware/mine"))
    assert line.startswith("hardware._target_: Hardware has no setting '_target_'; it has ")
