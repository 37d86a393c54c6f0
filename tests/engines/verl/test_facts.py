"""What a plan of engine=verl finds of rows, files, the reward function and the model, and gives to the rules."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from launch_model import Model

from launcher.config.resolve import resolve
from launcher.core.problems import Problems
from launcher.engines.verl import Verl, checks, rows, words
from launcher.preflight.plan import plan

ACTOR, ROLLOUT, MODEL = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "model"))
LOOPS, TOKENS = f"{ROLLOUT}.agent.agent_loop_config_path", f"{MODEL}.tokenizer_path"
GRPO = (
    "algorithm.adv_estimator=grpo", "data.train_files={folder}/train.parquet", "data.val_files={folder}/test.parquet",
    "data.train_batch_size=1024", f"{MODEL}.path=Qwen/Qwen2.5-7B-Instruct", f"{ACTOR}.use_kl_loss=True",
    f"{ACTOR}.ppo_mini_batch_size=256", f"{ACTOR}.ppo_micro_batch_size_per_gpu=32", f"{ROLLOUT}.n=5",
    f"{ROLLOUT}.name=vllm", "trainer.n_gpus_per_node=8", "reward=auto",
)  # fmt: skip
Rows = Callable[..., str]


def grpo(folder: Path, *typed: str) -> list[str]:
    """A run of GRPO with verl, and what was typed in the place of its arguments."""
    given = {word.partition("=")[0] for word in typed}
    base = [word.replace("{folder}", str(folder)) for word in GRPO if word.partition("=")[0] not in given]
    return ["engine=verl", *base, *typed]


def named(folder: Path, *typed: str) -> dict[str, list[str]]:
    """What a plan of it refuses or warns of, by what it is about."""
    found: dict[str, list[str]] = {}
    for result in plan(grpo(folder, *typed)).results:
        if result.level != "OK":
            found.setdefault(result.subject.partition(" (")[0], []).append(result.line)
    return found


@pytest.mark.parametrize(
    ("split", "changed", "taken"),
    [
        ("train", {"prompt": "1+1?"}, False),
        ("train", {"prompt": [{"from": "human", "value": "1+1?"}]}, False),
        ("train", {"reward_model": {"style": "rule"}}, False),
        ("val", {"data_source": None}, False),
        ("train", {}, True),  # with its other columns
    ],
)
def test_files_are_taken_as_they_are_where_verl_can_read_all_of_them(
    split: str, changed: dict[str, object], taken: bool, folder: Path, rows_of: Rows
) -> None:
    file = rows_of(folder, "rows", 3, extra="x", **changed)
    found = rows._files_of_verl(resolve(grpo(folder, f"data.{split}_files={file}")))
    assert (found is not None) == taken and (found is None or found[split] == [file])  # type: ignore[index]


def test_files_that_cannot_be_joined_are_refused(folder: Path, rows_of: Rows) -> None:
    files = [rows_of(folder, name, 8, extra_info={"index": index}) for name, index in (("one", 1), ("other", "1"))]
    run = resolve(grpo(folder, f"data.train_files=[{','.join(files)}]", "data.train_batch_size=8"))
    (folder / words.WORK).mkdir()
    with pytest.raises(Problems, match=r"data\.train_files: cannot be joined: .*int64 vs string.*; use equal types"):
        rows.provide(run, folder)


def test_files_are_linked_only_where_verl_can_read_them(folder: Path, rows_of: Rows) -> None:
    from pyarrow import parquet  # noqa: PLC0415

    texts, turns = rows_of(folder, "texts", 8, prompt="1+1?"), rows_of(folder, "turns", 8, agent_name="tool_agent")
    for name, linked in ((texts, False), (turns, True)):
        run = resolve(grpo(folder, f"data.train_files={name}", "data.train_batch_size=8"))
        work = folder / Path(name).stem
        (work / words.WORK).mkdir(parents=True)
        rows.provide(run, work)
        made = work / words.WORK / "train.parquet"
        assert (made.resolve() == Path(name).resolve()) == linked
        assert parquet.read_table(made)["prompt"][0].as_py()[0]["role"] == "user"


def test_all_that_is_wrong_is_named_at_once(folder: Path, rows_of: Rows) -> None:
    """Names and sources that verl does not know, paths that lead nowhere, and too few rows, of which one line is
    enough."""
    few, other = rows_of(folder, "few", 40), rows_of(folder, "other", 20, data_source="mine")
    typed = [f"data.train_files={few}", f"data.val_files={other}", "data.train_batch_size=64",
             f"{ACTOR}.ppo_mini_batch_size=32", f"{ACTOR}.ppo_micro_batch_size_per_gpu=4",
             "algorithm.adv_estimator=grpo_vectorised"]  # fmt: skip
    found = named(folder, *typed, f"{LOOPS}=none.yaml", f"{TOKENS}=/{'x' * 300}")  # a name that no disk could have
    assert "'mine' has no reward in verl" in found["data.val_files"][0]
    assert "there is no none.yaml" in found[LOOPS][0] and "there is no /xxx" in found[TOKENS][0]
    (line,), (typo,) = found["data.train_batch_size"], found["algorithm"]
    assert line.endswith("use 32")
    assert typo == "algorithm (algorithm.adv_estimator): got 'grpo_vectorised'; did you mean grpo_vectorized?"


def test_rows_without_a_truth_are_counted_and_what_is_there_is_not_missed(
    folder: Path, rows_of: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """verl runs elsewhere: a path from the working folder is made whole, also where a run is resumed from anywhere."""
    monkeypatch.chdir(folder)
    unlabelled = rows_of(folder, "open", 20, reward_model={"style": "rule"})
    typed = [f"data.val_files={unlabelled}", f"{ACTOR}.policy_loss.loss_mode=dapo"]
    found = named(folder, *typed, f"{LOOPS}=./train.parquet", f"{TOKENS}=Qwen/Qwen3-0.6B")
    assert "20 rows have no ground truth" in found["data.val_files"][0]
    assert "use vanilla, with clip_ratio_high=0.28" in found["algorithm"][0]
    assert not {LOOPS, TOKENS} & {*found}
    assert not [*checks._missing_paths([f"{LOOPS}={folder}/train.parquet", f"{TOKENS}={folder}"])]
    others = (f"++{LOOPS}=train.parquet", f"{TOKENS}=Qwen/Qwen3-0.6B", "critic.optim.lr=1e-5")
    there = Verl(extra=others, resume_from_path="global_step_3").with_absolute_paths()
    assert there.extra == (f"++{LOOPS}={folder}/train.parquet", *others[1:])
    assert there.resume_from_path == f"{folder}/global_step_3"
    assert there.with_absolute_paths() == there


@pytest.mark.parametrize(("name", "about"), [("short", "takes no extra_info"), ("named", "lacks: it has score")])
def test_a_reward_function_is_tried_as_verl_calls_it(name: str, about: str, folder: Path) -> None:
    file = folder / "mine.py"
    file.write_text(
        "def short(data_source, solution_str, ground_truth): return float(ground_truth in solution_str)\n"
        "def named(data_source, solution_str, ground_truth, extra_info):\n"
        "    return {'score': ground_truth in solution_str}\n"
    )
    typed = ["reward=python", f"reward.path={file}", f"reward.name={name}", f"{ACTOR}.use_kl_loss=false",
             "algorithm.filter_groups.enable=true", "algorithm.filter_groups.metric=acc"]  # fmt: skip
    lines = [line for lines in named(folder, *typed).values() for line in lines]
    assert any(about in line for line in lines), lines


@pytest.mark.parametrize(("shown", "fix"), [("0,1", "use 2"), ("-1", ""), ("0,1,2,3,4,5,6,7", None)])
def test_gpus_that_the_run_hides_from_itself_are_named(shown: str, fix: str | None, folder: Path) -> None:
    run = resolve(grpo(folder, f"engine.env={{CUDA_VISIBLE_DEVICES: '{shown}'}}"))
    found = [problem.fix for problem in checks._hidden_gpus(run.engine, run)]  # type: ignore[arg-type]
    assert found == ([] if fix is None else [fix])


@pytest.fixture
def other(folder: Path, model_folder: Path) -> Callable[..., Path]:
    """A copy of the model, with entries of one of its files changed; None takes an entry away."""

    def copy(name: str, file: str, **entries: object) -> Path:
        shutil.copytree(model_folder, folder / name)
        node = json.loads((folder / name / file).read_text()) | entries
        (folder / name / file).write_text(json.dumps({key: x for key, x in node.items() if x is not None}))
        return folder / name

    return copy


def test_a_model_and_a_critic_that_verl_reads_otherwise_are_named(folder: Path, other: Callable[..., Path]) -> None:
    """verl takes AutoTokenizer's, and gives the policy's tokens to the critic."""
    bare = other("bare", "tokenizer_config.json", chat_template=None)
    (bare / "chat_template.jinja").unlink(missing_ok=True)
    gae = ("algorithm.adv_estimator=gae", f"{ACTOR}.use_kl_loss=false")
    Model(tokens=["<stop>"]).save(folder / "critic")
    found = named(folder, *gae, f"{MODEL}.path={bare}", f"critic.model.path={folder}/critic")
    lines = [line for lines in found.values() for line in lines]
    assert any("has no chat template, and this engine writes all rows with one" in line for line in lines)
    assert "its tokenizer has other tokens than the policy's" in found["critic.model.path"][0]

    split = other("split", "tokenizer_config.json", tokenizer_class="GPT2Tokenizer")
    small = other("small", "config.json", vocab_size=91)
    found = named(folder, *gae, f"{MODEL}.path={split}", f"critic.model.path={small}")
    assert any("tokenizer_config.json names a class that splits" in line for line in found["model.path"])
    got = "its vocab_size is 91, and the policy's tokens have ids up to 91"
    assert got in found["critic.model.path"][0]

    given = f"{MODEL}.custom_chat_template='{{{{ messages[0].content }}}}'"
    like = shutil.copytree(bare, folder / "like")
    found = named(folder, *gae, f"{MODEL}.path={bare}", given, f"critic.model.path={like}")
    assert not {"model.path", "critic.model.path"} & {*found}
    assert not any("chat template" in line for lines in found.values() for line in lines)
