"""What a plan of engine=verl finds of rows, files, the reward function and the model, and gives to the rules."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from launch_model import Model

from launcher.engines.verl import Verl, rows, words
from launcher.preflight.plan import plan

ACTOR, ROLLOUT, MODEL = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "model"))
GRPO = (
    "algorithm.adv_estimator=grpo", "data.train_files={folder}/train.parquet", "data.val_files={folder}/test.parquet",
    "data.train_batch_size=1024", f"{MODEL}.path=Qwen/Qwen2.5-7B-Instruct", f"{ACTOR}.use_kl_loss=True",
    f"{ACTOR}.ppo_mini_batch_size=256", f"{ACTOR}.ppo_micro_batch_size_per_gpu=32", f"{ROLLOUT}.n=5",
    f"{ROLLOUT}.name=vllm", "trainer.n_gpus_per_node=8",
)  # fmt: skip


Rows = Callable[..., str]


def named(folder: Path, *typed: str) -> dict[str, list[str]]:
    """What a plan of GRPO refuses or warns of, by what it is about."""
    base = [word.replace("{folder}", str(folder)) for word in GRPO]
    given = {word.partition("=")[0] for word in typed}
    base = [word for word in base if word.partition("=")[0] not in given]
    found: dict[str, list[str]] = {}
    reward = [] if any(word.startswith("reward=") for word in typed) else ["reward=auto"]
    for result in plan(["engine=verl", *reward, *base, *typed]).results:
        if result.level != "OK":
            found.setdefault(result.subject.partition(" (")[0], []).append(result.line)
    return found


@pytest.mark.parametrize(
    ("split", "changed", "missing"),
    [
        ("train", {"prompt": "1+1?"}, "prompt[].role"),
        ("train", {"prompt": [{"from": "human", "value": "1+1?"}]}, "prompt[].role"),
        ("train", {"reward_model": {"style": "rule"}}, "reward_model.ground_truth"),
        ("val", {"data_source": None}, "data_source"),
    ],
)
def test_rows_that_verl_cannot_read_are_written_anew(
    split: str, changed: dict[str, object], missing: str, folder: Path, rows_of: Rows
) -> None:
    file = rows_of(folder, "bad", 300, extra="x", **changed)
    lines = named(folder, f"data.{split}_files={file}", "data.train_batch_size=256")[f"data.{split}_files"]
    assert any(f"has no {missing}, which verl reads of each row: all rows are written anew" in line for line in lines)
    assert any(line.partition(";")[0].endswith("without extra") for line in lines)


def test_a_healthy_file_is_taken_as_it_is_with_its_other_columns(folder: Path, rows_of: Rows) -> None:
    healthy = rows_of(folder, "good", 300, extra="x")
    assert "data.train_files" not in named(folder, f"data.train_files={healthy}", "data.train_batch_size=256")


def test_files_are_linked_only_where_verl_can_read_them(folder: Path, model_folder: Path, rows_of: Rows) -> None:
    from pyarrow import parquet  # noqa: PLC0415

    texts, turns = rows_of(folder, "texts", 8, prompt="1+1?"), rows_of(folder, "turns", 8, agent_name="tool_agent")
    for name, linked in ((texts, False), (turns, True)):
        typed = ["algorithm=grpo", f"model={model_folder}", "engine=verl", "hardware=gpu", "data=files",
                 f"data.train_files={name}", "data.train_batch_size=8"]  # fmt: skip
        run = plan(typed).run
        assert run
        work = folder / Path(name).stem
        (work / words.WORK).mkdir(parents=True)
        rows.provide(run, work)
        made = work / words.WORK / "train.parquet"
        assert (made.resolve() == Path(name).resolve()) == linked
        assert parquet.read_table(made)["prompt"][0].as_py()[0]["role"] == "user"


def test_what_rows_hold_is_compared_with_what_verl_knows(folder: Path, rows_of: Rows) -> None:
    """Sources of held-out rows, agents, and rows of both splits that verl scores without a ground truth."""
    other = rows_of(folder, "other", 20, data_source="mine")
    assert "'mine' has no reward in verl" in named(folder, f"data.val_files={other}")["data.val_files"][0]
    unlabelled = rows_of(folder, "open", 20, reward_model={"style": "rule"})
    assert "20 rows have no ground truth" in named(folder, f"data.val_files={unlabelled}")["data.val_files"][1]


def test_a_path_that_leads_nowhere_is_named(folder: Path) -> None:
    """verl runs in a folder of the run, so a relative one does, too."""
    loops, tokens = f"{ROLLOUT}.agent.agent_loop_config_path", f"{MODEL}.tokenizer_path"
    found = named(folder, f"{loops}=none.yaml", f"{tokens}=/{'x' * 300}")  # a name that no disk could have
    assert "there is no none.yaml" in found[loops][0] and "there is no /xxx" in found[tokens][0]
    there = named(folder, f"{loops}={folder}/train.parquet", f"{tokens}={folder}")
    assert not {loops, tokens} & {*there}
    assert tokens not in named(folder, f"{tokens}=Qwen/Qwen3-0.6B")


def test_a_path_from_the_working_folder_is_made_whole(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """verl runs elsewhere, and a resumed run is started from anywhere."""
    monkeypatch.chdir(folder)
    rows = f"{ROLLOUT}.agent.agent_loop_config_path"
    assert rows not in named(folder, f"{rows}=./train.parquet")
    words = (f"++{rows}=train.parquet", f"{MODEL}.tokenizer_path=Qwen/Qwen3-0.6B", "critic.optim.lr=1e-5")
    there = Verl(extra=words, resume_from_path="global_step_3").with_absolute_paths()
    assert there.extra == (f"++{rows}={folder}/train.parquet", *words[1:])
    assert there.resume_from_path == f"{folder}/global_step_3"
    assert there.with_absolute_paths() == there


def test_a_reward_function_is_tried_as_verl_calls_it(folder: Path) -> None:
    file = folder / "mine.py"
    file.write_text(
        "def short(data_source, solution_str, ground_truth): return float(ground_truth in solution_str)\n"
        "def named(data_source, solution_str, ground_truth, extra_info):\n"
        "    return {'score': ground_truth in solution_str}\n"
        "def whole(data_source, solution_str, ground_truth, **more):\n"
        "    return {'score': ground_truth in solution_str, 'acc': 1.0}\n"
    )
    filtered = ("algorithm.filter_groups.enable=true", "algorithm.filter_groups.metric=acc")
    for name, where in (("short", "reward.name"), ("named", "algorithm.filter_groups.metric"), ("whole", None)):
        typed = ["reward=python", f"reward.path={file}", f"reward.name={name}", f"{ACTOR}.use_kl_loss=false", *filtered]
        lines = [line for lines in named(folder, *typed).values() for line in lines]
        about = (
            ("takes no extra_info" if name == "short" else "lacks: it has score") if where else "your reward function"
        )
        assert any(about in line for line in lines) == bool(where), lines


def test_a_critic_reads_the_policys_tokens(folder: Path, model_folder: Path) -> None:
    critic = folder / "critic"
    shutil.copytree(model_folder, critic)
    config = json.loads((critic / "config.json").read_text())
    ppo = ("algorithm.adv_estimator=gae", f"{MODEL}.path={model_folder}", f"critic.model.path={critic}",
           f"{ACTOR}.use_kl_loss=false")  # fmt: skip
    assert "critic.model.path" not in named(folder, *ppo)
    (critic / "config.json").write_text(json.dumps(config | {"vocab_size": config["vocab_size"] - 1}))
    assert (
        "its vocab_size is 91, and the policy's tokens have ids up to 91" in named(folder, *ppo)["critic.model.path"][0]
    )
    shutil.rmtree(critic)
    Model(tokens=["<stop>"]).save(critic)
    assert "its tokenizer has other tokens than the policy's" in named(folder, *ppo)["critic.model.path"][0]


def test_a_tokenizer_that_its_class_builds_anew_is_named(folder: Path, model_folder: Path) -> None:
    """verl takes AutoTokenizer's."""
    other = folder / "other"
    shutil.copytree(model_folder, other)
    node = json.loads((other / "tokenizer_config.json").read_text())
    (other / "tokenizer_config.json").write_text(json.dumps(node | {"tokenizer_class": "GPT2Tokenizer"}))
    lines = named(folder, f"{MODEL}.path={other}")["model.path"]
    assert any("tokenizer_config.json names a class that splits" in line for line in lines)
    assert "model.path" not in named(folder, f"{MODEL}.path={model_folder}")


def test_a_model_without_a_chat_template_is_refused(folder: Path, model_folder: Path) -> None:
    bare = folder / "bare"
    shutil.copytree(model_folder, bare)
    (bare / "chat_template.jinja").unlink(missing_ok=True)
    node = json.loads((bare / "tokenizer_config.json").read_text())
    (bare / "tokenizer_config.json").write_text(json.dumps({k: v for k, v in node.items() if k != "chat_template"}))
    lines = [line for lines in named(folder, f"{MODEL}.path={bare}").values() for line in lines]
    assert any("has no chat template, and this engine writes all rows with one" in line for line in lines)
    given = named(folder, f"{MODEL}.path={bare}", f"{MODEL}.custom_chat_template='{{{{ messages[0].content }}}}'")
    assert not any("chat template" in line for lines in given.values() for line in lines)


def test_what_is_no_name_of_verl_is_answered_with_one(folder: Path) -> None:
    typo = named(folder, "algorithm.adv_estimator=grpo_vectorised")["algorithm"]
    assert typo == ["algorithm (algorithm.adv_estimator): got 'grpo_vectorised'; did you mean grpo_vectorized?"]
    (loss,) = named(folder, f"{ACTOR}.policy_loss.loss_mode=dapo")["algorithm"]
    assert "use vanilla, with clip_ratio_high=0.28" in loss


def test_too_few_rows_are_named_once(folder: Path, rows_of: Rows) -> None:
    few = rows_of(folder, "few", 40)
    typed = [f"data.train_files={few}", "data.train_batch_size=64", f"{ACTOR}.ppo_mini_batch_size=32",
             f"{ACTOR}.ppo_micro_batch_size_per_gpu=4"]  # fmt: skip
    (line,) = named(folder, *typed)["data.train_batch_size"]
    assert line.endswith("use 32")
