"""What people type: what is clear works, a slip is answered with what to type; wrong words are all named at once, and
nothing is started."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import QuotedString
from hypothesis import example, given
from hypothesis import strategies as st
from typer.testing import CliRunner

from launcher.cli.main import app
from launcher.config import compose
from launcher.config.compose import groups
from launcher.config.diagnose import CHOICES
from launcher.config.nodes import flat
from launcher.config.request import RunRequest, SourcedOverride
from launcher.config.resolve import resolve, resolve_request
from launcher.config.slips import number_meant
from launcher.core.overrides import literal
from launcher.core.problems import Problems
from launcher.preflight import plan
from launcher.spec.run import Optim
from launcher.spec.stored import from_yaml, to_node, to_yaml

BASE = {"algorithm": "grpo", "model": "tiny", "data": "reverse", "sampler.n": "4"}
GROUPS = groups()
TOP = ", ".join(sorted([*GROUPS, "critic", "optim", "seed", "trainer"]))
OPTIM = ", ".join(sorted(field.name for field in fields(Optim)))
ROWS = '{"prompt": "p", "response": "r"}\n'
FILES = {
    **dict.fromkeys(("train.jsonl", "rows/train-0.jsonl", "rows/train-1.jsonl", "rows/valid.jsonl"), ROWS),
    **dict.fromkeys(("models/m/config.json", "trained/checkpoint-90/config.json", "runs/p/first/spec.yaml"), "{}"),
    "trained/checkpoint-1000/config.json": "{}", "note.txt": "", "taken/a/b": "",
    "my.py": "def grade(answers):\n    return 1\n",
}  # fmt: skip


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with these files and an empty folder."""
    monkeypatch.chdir(tmp_path)
    for name, text in {**FILES, "empty/x": ""}.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)
    Path("empty/x").unlink()
    return tmp_path


def words_of(words: Iterable[str]) -> list[str]:
    """These words, and those of BASE for what they leave out."""
    given = {word.lstrip("+~").partition("=")[0].partition("@")[0] for word in words}
    given |= {key.removesuffix(".path") for key in given}  # model.path alone says which model
    return [*(f"{key}={value}" for key, value in BASE.items() if key not in given), *words]


def problems(words: Iterable[str], config_dir: Path | None = None) -> list[str]:
    """What a person is told about these words."""
    try:
        run = resolve(words_of(words), config_dir)
    except Problems as found:
        return found.lines
    return [str(problem) for problem in plan.problems(run, here=False)]


def choices(group: str) -> str:
    return ", ".join(GROUPS[group])


MEANT = [
    (["model.path=Qwen/Qwen3-0.6B"], {"model.architecture.hidden_size": 1024}),
    (["model=hf", "model.path=Qwen/Qwen3-0.6B"], {"model.architecture.hidden_size": 1024}),
    (["model=Qwen/Qwen3-0.6B"], {"model.path": "Qwen/Qwen3-0.6B", "model.architecture.hidden_size": 1024}),
    (["model=some/model"], {"model.path": "some/model"}),
    (["model=first"], {"model.path": "runs/p/first"}),
    (["data=train.jsonl"], {"data.train_files": ["train.jsonl"]}),
    (["data=rows/*.jsonl"], {"data.train_files": ["rows/*.jsonl"]}),
    (["data=[train.jsonl,rows/valid.jsonl]"], {"data.train_files": ["train.jsonl", "rows/valid.jsonl"]}),
    (["data=train.jsonl,rows/valid.jsonl"], {"data.train_files": ["train.jsonl", "rows/valid.jsonl"]}),
    (["data=rows"], {"data.train_files": ["rows"]}),  # preflight says that it is a folder
    (["data=some/rows"], {"data.repo": "some/rows"}),
    (["reward=my.py:grade"], {"reward.path": "my.py", "reward.name": "grade"}),
    (["reward=http://127.0.0.1:1/score"], {"reward.url": "http://127.0.0.1:1/score"}),
    (["reward=org/judge"], {"reward._target_": "launcher.rewards.model.RewardModel", "reward.path": "org/judge"}),
    (["algorithm=SFT", "model=TINY"], {"model.hidden_size": 64}),
    (["model=qwen2.5-0.5B-Instruct"], {"model.path": "Qwen/Qwen2.5-0.5B-Instruct"}),
    (["trainer.save_freq=5e2", "seed=2.0"], {"trainer.save_freq": 500, "seed": 2}),
    (["data.shuffle=off", "engine.mixed_precision=no", "model.enable_gradient_checkpointing=1"],
     {"data.shuffle": False, "engine.mixed_precision": False, "model.enable_gradient_checkpointing": True}),
    (["trainer.total_training_steps=None"], {"trainer.total_training_steps": None}),
    (["sampler.n=2", "sampler.n=3"], {"sampler.n": 3}),  # of two values the last, as in Hydra
    (["++sampler.n=8"], {"sampler.n": 8}),
    (["algorithm=grpo", "algorithm=grpo"], {"sampler.n": 4}),  # said twice, but the same
    (["++algorithm=grpo"], {"sampler.n": 4}),
    (["data.n_val=8", "sampler.n=${data.n_val}"], {"sampler.n": 8}),  # another setting's value
    # the price of length and the constant of Dr. GRPO are those of the longest answer
    (["algorithm=dapo", "data.max_response_length=24"], {"algorithm.max_response_length": 24}),
    (["algorithm=dr_grpo", "data.max_response_length=24"], {"algorithm.loss_scale_factor": 24}),
    (["trainer.experiment_name=007"], {"trainer.experiment_name": "007"}),
    (["trainer.run_root=~/x"], {"trainer.run_root": "~/x"}),
    (["trainer.run_root=数据 (1)#2"], {"trainer.run_root": "数据 (1)#2"}),
]  # fmt: skip


@pytest.mark.parametrize(("typed", "means"), MEANT, ids=[" ".join(typed) for typed, _ in MEANT])
def test_what_is_clear_works(typed: list[str], means: dict[str, object]) -> None:
    asked = RunRequest([SourcedOverride(word, word) for word in words_of(typed)])
    found = resolve_request(asked, {"first": "runs/p/first"}.get)
    assert found.run and not found.problems
    run = flat(to_node(found.run))
    assert {name: run.get(name) for name in means} == means


@pytest.mark.parametrize(
    ("text", "number"),
    [("0,001", "0.001"), ("1,024", "1024"), ("1 000", "1000"), ("10k", "10000"), ("5%", "0.05"),
     ("2M", "2000000"), ("2m", ""), ("=3", "3"),
     ("−1", "-1"), ("1e-4;", "1e-4"), ("abc", ""), ("1.2.3", ""), ("1,2,3", ""), ("", "")],
)  # fmt: skip
def test_numbers_that_are_meant(text: str, number: str) -> None:
    assert number_meant(text) == number


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.from_regex(r"[a-z]+", fullmatch=True), inner),
    max_leaves=5,
)


@given(values)
@example(np.float64(1e-4))
def test_values_come_back_as_they_were_given(value: object) -> None:
    parsed = OverridesParser.create().parse_override(f"x={literal(value)}")
    assert _plain(parsed.value()) == value


def _plain(value: Any) -> Any:
    """Without Hydra's quoted strings."""
    if isinstance(value, QuotedString):
        return value.text
    if isinstance(value, dict):
        return {_plain(key): _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list) else value


def test_a_name_too_long_for_a_file_is_no_traceback() -> None:
    for word in ("x" * 5_000, f"model={'x' * 5_000}", f"data={'x' * 5_000}"):
        assert problems([word])


def test_one_word_at_fault_among_many_is_found_by_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    count, composed = 0, compose._composed

    def counted(*run: Any) -> compose.Composed:
        nonlocal count
        count += 1
        return composed(*run)

    monkeypatch.setattr(compose, "_composed", counted)
    lines = problems([*(f"reward.kwargs.a{number}=1" for number in range(64)), "~optim.clip_grad", "reward=python"])
    assert any(line.startswith("optim.clip_grad: is set by no file") for line in lines) and count < 32


WRONG: list[tuple[Any, Any]] = [
    ([], []),
    ("optim.wx=1", f"optim.wx: Optim has no setting 'wx'; it has {OPTIM}"),  # nothing is near
    ("wander=true", f"wander: no group or setting 'wander'; it may be {TOP}"),
    ("hardware=../../etc/passwd", f"hardware: no choice '../../etc/passwd'; it may be {choices('hardware')}"),
    ("algorithm=Dr-GRPO", "algorithm: no choice 'Dr-GRPO'; did you mean algorithm=dr_grpo?"),
    # a setting of another group is meant by its own name alone, and a value has to fit
    ("optim.name=lion", "optim.name: Optim has no setting 'name'; the optimizer is AdamW; leave it out"),
    ("sampler.max_tokens=64",
     "sampler.max_tokens: TorchSampler has no setting 'max_tokens'; use data.max_response_length=64"),
    ("algorithm.lora_rank=3", "algorithm.lora_rank: GRPO has no setting 'lora_rank'; use model.lora_rank=3"),
    ("model.lora_dropout=0.1",
     "model.lora_dropout: lora_dropout is Hugging Face's name; adapters have no dropout; leave it out"),
    ("sampler.top=3", "sampler.top: TorchSampler has no setting 'top'; did you mean sampler.top_k=3?"),
    ("model.lora=3", "model.lora: Scratch has no setting 'lora'; did you mean model.lora_rank or model.lora_alpha?"),
    ("optim.beta1=0.9", "optim.beta1: Optim has no setting 'beta1'; use 'optim.betas=[BETA1,BETA2]'"),
    ("algorithm=gpro", "algorithm: no choice 'gpro'; did you mean algorithm=grpo?"),
    ("sampler=hf", "sampler: no choice 'hf'; use sampler=torch"),
    ("engine=fsdp", "engine: no choice 'fsdp'; use engine=torch engine.strategy=fsdp2"),
    ("hardware=cuda", "hardware: no choice 'cuda'; use hardware=gpu"),
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
    ("seed=[1,2}", "seed: '[1,2}' has brackets that do not match; use 'seed=\"[1,2}\"'"),
    ("reward.kwargs={a:[1,2",
     "reward.kwargs: '{a:[1,2' has a bracket that is not closed; use 'reward.kwargs={a:[1,2]}'"),
    ("seed={8}", "seed: '{8}' has brackets around a number; use seed=8"),
    ("data.instruction={question}",
     """data.instruction: '{question}' cannot be read; use 'data.instruction="{question}"'"""),
    (["sampler.n=four 'seed=1' optim.lr==1e-4"],
     ["\"sampler.n=four 'seed=1' optim.lr==1e-4\": holds 3 arguments in one pair of quotes;"
      " use sampler.n=four seed=1 optim.lr==1e-4",
      "optim.lr: got '=1e-4'; use optim.lr=1e-4", "sampler.n: got 'four'; use a whole number"]),
    ("trainer.save_freq=10m", "trainer.save_freq: got '10m'; use a whole number"),  # minutes, or a million
    ("data.prompt_key=\udc80", "data.prompt_key: '\\udc80' cannot be read; use key=value"),
    # a sweep
    ("sampler.n=2,4", "sampler.n: 'sampler.n=2,4' is a sweep; use -m, or one value, or for a list 'sampler.n=[2,4]'"),
    # Hydra's own settings and ways around the groups
    ("hydra.run.dir=x", "hydra.run.dir: Hydra's own settings are not part of a run; leave it out"),
    # taken away
    ("~hardware", f"hardware: not chosen; it may be {choices('hardware')}"),
    # fine each, but not together
    ("hardware.nnodes=2", "hardware.nnodes: cluster local is one machine, got 2; use 1, or cluster=ray"),
    ("hardware.n_gpus_per_node=2", "hardware.n_gpus_per_node: is 2 and device is cpu; use hardware=gpu"),
    ("model.hidden_size=65", "model: hidden_size 65 does not split over 4 attention heads; use an even hidden_size"),
    # what stands on the disk
    ("trainer.run_root=s3://bucket/x", "trainer.run_root: 's3://bucket/x' is an address, not a folder; use a folder,"
                                       " such as one mounted there"),
    (["algorithm=sft", "algorithm=grpo"],
     "algorithm: chosen twice, as algorithm=sft and algorithm=grpo; keep one of the two"),
    (["trainer.run_root=taken", "trainer.project_name=a", "trainer.experiment_name=b"],  # a file has the run's name
     "trainer.run_root: '{here}/taken/a/b' is a file; use a folder"),
    (["model=hf"], "model.path: has no value; use model.path=VALUE"),
    ("reward=model", "reward.path: has no value; use reward.path=VALUE"),
    (["model=hf", "model.path=empty"],
     "model.path: 'empty' holds no config.json and no checkpoint; use a model's folder"),
    (["model=hf", "model.path=trained"],
     "model.path: 'trained' holds no config.json and no checkpoint; use model.path=trained/checkpoint-1000"),
    (["model=hf", "model.path=trained/checkpoint-90/config.json"],
     "model.path: 'trained/checkpoint-90/config.json' is a file; use model.path=trained/checkpoint-90"),
    (["model=hf", "model.path=emtpy"], "model.path: there is no folder 'emtpy'; did you mean model.path=empty?"),
    (["model=hf", "model.path=trained/checkpoint-91"],
     "model.path: there is no folder 'trained/checkpoint-91'; did you mean model.path=trained/checkpoint-90?"),
    (["data=files"], "data.train_files: none is given; use data.train_files=train.jsonl"),
    (["data=files", "data.train_files=trian.jsonl"],
     "data.train_files: trian.jsonl is not there; did you mean data.train_files=train.jsonl?"),
    (["data=files", "data.train_files=empty"],
     "data.train_files: empty is a folder; use 'data.train_files=empty/*.jsonl'"),
    (["data=files", "data.train_files='empty/*.jsonl'"],
     "data.train_files: empty/*.jsonl matches no file; its folder has no JSONL, JSON, CSV or parquet file"),
    (["data=files", "data.train_files=note.txt"],
     "data.train_files: the ending of 'note.txt' is not known; expected .jsonl, .json, .ndjson, .csv, .tsv,"
      " .jsonl.gz, .json.gz, .ndjson.gz, .csv.gz, .tsv.gz or .parquet"),
    (["data=files", "data.train_files=[train.jsonl,[1]]"], "data.train_files: got [1] as item 2; use text"),
    # everything at once
    (["algorithm.cilp_ratio_low=1", "sampler.n=four", "data.train_batch_size=0", "seed=1.5", "modle=tiny", "x"],
     ["modle: no group or setting 'modle'; did you mean model=tiny?",
      "'x': names no setting; use key=value",
      "algorithm.cilp_ratio_low: GRPO has no setting 'cilp_ratio_low'; did you mean algorithm.clip_ratio_low=1?",
      "data.train_batch_size: got 0; use a number >= 1",
      "sampler.n: got 'four'; use a whole number",
      "seed: got 1.5; use a whole number"]),
    ("trainer.save_freq=–1",
     "trainer.save_freq: got '–1', with non-ASCII characters; use trainer.save_freq=-1"),
    (["model=hf", "model.path=“models/m”"],
     "model.path: got '“models/m”', with non-ASCII characters; use model.path=models/m"),
    ("optim.lr=0,001", "optim.lr: got '0,001', with a comma in a number; use optim.lr=0.001"),
    ("optim.betas=(0.9,0.95)",
     "optim.betas: '(0.9,0.95)' has round brackets, and a list has square ones; use 'optim.betas=[0.9,0.95]'"),
    ("seed:4", "seed: 'seed:4' has a colon; use seed=4"),
    ("data=[reverse,gsm8k]", "data: ['reverse', 'gsm8k'] is not a choice; use one choice: data=reverse"),
    ("grpo", "algorithm: got 'grpo' alone; use algorithm=grpo"),
    ("seed=${sampler.nope}", "seed: '${sampler.nope}' refers to what has no value; write the value itself,"
     " or use double quotes for a shell's variable"),
    ('optim={"lr": 1e-4}', """optim: '{"lr": 1e-4}' has quotes around names; use 'optim={lr: 1e-4}'"""),
    ("data.train_files=[a,b",
     "data.train_files: '[a,b' has a bracket that is not closed; use 'data.train_files=[a,b]'"),
    ("optim.lr:=1e-4", "'optim.lr:=1e-4': cannot be read; use key=value"),
    ("trainer.total_training_steps=all", "trainer.total_training_steps: got 'all'; use a whole number or null"),
    ("model.dtype=bf16", "model.dtype: got 'bf16'; use model.dtype=bfloat16"),
    ("model=https://huggingface.co/org/x/tree/main",
     "model: no choice 'https://huggingface.co/org/x/tree/main'; use model=org/x"),
    ("data=hf://datasets/org/x", "data: no choice 'hf://datasets/org/x'; use data=org/x"),
    ("model=huggingface.co/org/x", "model: no choice 'huggingface.co/org/x'; use model=org/x"),
    ("model=https://user:pw@hf.co/org/x", "model: no choice 'https://[secret]@hf.co/org/x'; use model=org/x"),
    ("data=train.jsonl,gsm8k",
     "data: 'data=train.jsonl,gsm8k' is a sweep; use -m, or one value"),
    ("data=https://host/rows.jsonl",
     "data: no choice 'https://host/rows.jsonl'; it may be email_search, enron, files, full-hh-rlhf, gsm8k, hub,"
     " math, reverse, ultrafeedback, verifiers"),
    ("model=org/x,org/y", "model: 'model=org/x,org/y' is a sweep; use -m, or one value"),
    ("optim.beta=[0.9,0.95]",
     "optim.beta: Optim has no setting 'beta'; did you mean 'optim.betas=[0.9,0.95]'?"),
    ("model=qwen2.5-7b", "model: no choice 'qwen2.5-7b'; did you mean model=qwen2.5-7b-instruct?"),
    ("sampler.seed=5", "sampler.seed: TorchSampler has no setting 'seed'; use seed=5"),
    ("data.shuffle=maybe", "data.shuffle: got 'maybe'; use true or false"),
]  # fmt: skip
"""A word or several, and the line or lines that they are answered with."""


@pytest.mark.parametrize(("typed", "lines"), WRONG, ids=[ascii(typed)[1:60] for typed, _ in WRONG])
def test_all_that_is_wrong_is_told_at_once_with_what_to_type(typed: Any, lines: Any, here: Path) -> None:
    found = problems([typed] if isinstance(typed, str) else typed)
    assert sorted(found) == sorted([lines.replace("{here}", str(here))] if isinstance(lines, str) else lines)


def test_a_group_that_another_choice_has_chosen_is_not_missing() -> None:
    with pytest.raises(Problems) as found:
        resolve(["algorithm=grpo", "model=tiny", "environment=verifiers", "environment.id=wordle", "optim.lr=much"])
    assert [problem.where for problem in found.value.problems] == ["optim.lr"]


def test_groups_that_are_not_chosen_are_all_asked_for() -> None:
    with pytest.raises(Problems) as found:
        resolve([])
    assert found.value.lines == [
        f"algorithm: not chosen; it may be {choices('algorithm')}",
        *(f"{group}: not chosen; {CHOICES[group]}" for group in ("data", "model")),
    ]


# ---- the command line


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (["train", "algorithm=gpro", "model=tiny", "data=reverse", "sampler.n=1"], 2),
        (["train", "--resume", "nowhere"], 1),
        (["show", "a" * 300], 1),  # longer than a file's name may be
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


MINE = words_of(["algorithm=mine"])


def test_a_config_file_of_ones_own(here: Path) -> None:
    config_dir = own(here, f"{CLASS}kl_loss_coef: 0.5\n")
    own(here, "replicas: 2\n", "k8s/deploy")  # a folder that is no group of ours is not ours to judge
    run = resolve(MINE, config_dir)
    assert run.algorithm.kl_loss_coef == 0.5
    assert from_yaml(to_yaml(run)) == run
    assert resolve([*MINE, "algorithm.kl_loss_coef=0.1"], config_dir).algorithm.kl_loss_coef == 0.1
    assert problems(["algorithm=mien"], config_dir) == ["algorithm: no choice 'mien'; did you mean algorithm=mine?"]
    assert resolve(MINE, Path("conf")) == run  # also where the folder's path is relative


@pytest.mark.parametrize("name", ["it's", 'say "x"', "back\\", "\\'"])
def test_a_folder_of_config_groups_may_have_any_name(here: Path, name: str) -> None:
    config_dir = own(here / name, f"{CLASS}kl_loss_coef: 0.5\n").rename(here / name / name)
    assert resolve(MINE, config_dir).algorithm.kl_loss_coef == 0.5


def test_code_beside_the_config_groups_is_recorded_with_the_run(here: Path) -> None:
    config_dir = own(here, CLASS)
    assert resolve(MINE, config_dir).code_dir is None, "there is no code"
    (config_dir / "mine_own.py").write_text("")
    assert resolve(MINE, Path("conf")).code_dir == str(config_dir.resolve())
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
