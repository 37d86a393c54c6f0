"""Plans of engine=verl: what the platform's guide asks for (S1-19 to S1-24), recipes, and what is refused in words."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from launch_model import TEMPLATE, Model

from launcher.core.check_result import CheckResult
from launcher.engines.verl import words
from launcher.engines.verl.config.compose import compose
from launcher.engines.verl.rules import judge
from launcher.preflight.plan import plan

RECIPES = sorted(path.stem for path in (Path(__file__).parents[3] / "recipes").glob("verl-*.sh"))
ACTOR, ROLLOUT, MODEL, REF = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "model", "ref"))
ROWS = ("data.train_files={folder}/train.parquet", "data.val_files={folder}/test.parquet")
NAMES = ("trainer.project_name=my_project", "trainer.experiment_name=first", "trainer.nnodes=1")
GRPO = (
    "algorithm.adv_estimator=grpo", *ROWS, "data.train_batch_size=1024", "data.max_prompt_length=512",
    "data.max_response_length=1024", f"{MODEL}.path=Qwen/Qwen2.5-7B-Instruct", f"{ACTOR}.optim.lr=1e-6",
    f"{ACTOR}.use_kl_loss=True", f"{ACTOR}.kl_loss_coef=0.001", f"{ROLLOUT}.n=5", "trainer.n_gpus_per_node=8",
    "trainer.total_epochs=15", "trainer.save_freq=20", "trainer.test_freq=5", *NAMES,
)  # fmt: skip
SFT = (
    "algorithm=sft", "model.partial_pretrain=Qwen/Qwen2.5-7B-Instruct", *ROWS, "data.prompt_key=prompt",
    "data.response_key=response", "data.max_length=4096", "trainer.total_epochs=3", *NAMES,
)  # fmt: skip
GUIDE = {
    "S1-19 SFT": (*SFT, "trainer.n_gpus_per_node=8"),
    "S1-20 SFT with adapters": (
        *SFT, "model.lora_rank=32", "model.lora_alpha=64", "model.target_modules=all-linear",
        "trainer.n_gpus_per_node=4",
    ),
    "S1-21 GRPO": GRPO,
    "S1-22 GRPO, full": (
        *GRPO, "data.filter_overlong_prompts=True", "data.truncation=error", f"{MODEL}.use_remove_padding=True",
        f"{ACTOR}.ppo_mini_batch_size=256", f"{ACTOR}.ppo_micro_batch_size_per_gpu=32",
        f"{ACTOR}.kl_loss_type=low_var_kl", f"{MODEL}.enable_gradient_checkpointing=True",
        f"{ROLLOUT}.tensor_model_parallel_size=2", f"{ROLLOUT}.name=vllm", f"{ROLLOUT}.gpu_memory_utilization=0.6",
        "algorithm.use_kl_in_reward=False", "trainer.critic_warmup=0",
    ),
    "S1-23 PPO": (
        "algorithm.adv_estimator=gae", *ROWS, "data.train_batch_size=256", "data.max_prompt_length=512",
        "data.max_response_length=1024", f"{MODEL}.path=Qwen/Qwen2.5-7B-Instruct", "critic.optim.lr=1e-5",
        f"{ACTOR}.ppo_mini_batch_size=64", "critic.ppo_mini_batch_size=64", "algorithm.gamma=1.0", "algorithm.lam=0.95",
        "trainer.n_gpus_per_node=8", "trainer.total_epochs=10", *NAMES,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GUIDE)
def test_a_command_of_the_guide_plans_and_verl_accepts_it(name: str, folder: Path) -> None:
    typed = [word.replace("{folder}", str(folder)) for word in GUIDE[name]]
    if "SFT" in name:
        rows = "".join(f'{{"prompt": "{n}+1?", "response": "{n + 1}"}}\n' for n in range(2000))
        for split in ("train", "test"):
            (folder / f"{split}.jsonl").write_text(rows.replace("+1", "+1" if split == "train" else "+ 1"))
        typed = [word.replace(".parquet", ".jsonl") for word in typed]
    page = plan(["engine=verl", "reward=auto", *typed])
    failed = [result.line for result in page.results if result.level == "FAIL"]
    assert page.run and not failed, failed
    accepted = compose(words.arguments(page.run, page.run.engine, Path("run")), words.program(page.run))  # type: ignore[arg-type]
    failures = [found for found in judge(accepted.config) if found.level == "FAIL"]
    assert not accepted.problems and not failures


def test_dpo_of_the_guide_is_refused_in_words_and_trains_with_our_engine() -> None:
    """S1-24: verl has no DPO, and never had."""
    typed = ["algorithm=dpo", "model=Qwen/Qwen2.5-7B-Instruct", "data=ultrafeedback", "algorithm.beta=0.1",
             "trainer.total_epochs=1", "optim.lr=5e-7", "hardware=h100x8"]  # fmt: skip
    (refused,) = [result for result in plan(["engine=verl", *typed]).results if result.subject == "algorithm"]
    assert "DPO learns from pairs, which Verl does not read" in refused.message
    assert plan(typed).run


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_plans(recipe: str) -> None:
    page = plan([], recipe=recipe)
    assert page.run and not [result.line for result in page.results if result.level == "FAIL"]
    assert "accepts its" in next(result.message for result in page.results if result.subject == "engine")


REFUSED = {
    "hardware=cpu": "hardware: verl 0.9.1 has no platform for CPUs; use hardware=gpu, or engine=torch",
    "sampler=vllm": "sampler: verl samples with servers of its own; use sampler=verl, or engine=torch",
    "cluster=ray": "cluster: verl starts a Ray cluster of its own on one machine; use cluster=local",
    "model=tiny": "model: verl loads a model from a folder or a hub",
    "health.on_critical=pause": "health.on_critical: verl cannot save a checkpoint when it is asked to",
    "optim.lr_scheduler_type=linear": "optim.lr_scheduler_type: verl has no linear schedule",
    "data.chat_template=never": "data.chat_template: verl always writes prompts with the chat template",
    "algorithm.max_log_ratio=10": "algorithm.max_log_ratio: verl clamps log-ratios at 20",
    "algorithm.min_group_std=0.1": "algorithm.min_group_std: verl filters groups by equal scores only",
    'engine.extra=["trainer.resume_mode=auto"]': "engine.extra: trainer.resume_mode is set by rlrun",
    "engine.resume_from_path=/a/b": "engine.resume_from_path: '/a/b' does not end with global_step_N",
}


def test_what_verl_does_not_do_is_refused_in_words() -> None:
    lines = [result.line for result in plan(["algorithm=grpo", "data=gsm8k", "engine=verl", *REFUSED]).results]
    missing = [line for line in REFUSED.values() if not any(found.startswith(line) for found in lines)]
    assert not missing, lines
    other = plan(["algorithm=gspo_selfplay", "model=Qwen/Qwen3-0.6B", "data=gsm8k", "engine=verl"]).results
    assert any(found.line.startswith("algorithm: GSPOSelfPlay learns from mixed, which Verl does") for found in other)


def test_a_model_that_is_not_there_hides_nothing_of_verls_arguments(tmp_path: Path) -> None:
    typed = ["engine=verl", "algorithm=grpo", "data=gsm8k", f"model.path={tmp_path}/none", "hardware.n_gpus_per_node=8"]
    found = plan([*typed, "model=hf", "hardware=gpu", f"{ROLLOUT}.mode=sync"]).results
    places = {result.subject for result in found if result.level == "FAIL"}
    assert {"model.path", f"{ROLLOUT}.mode"} <= places


def test_a_micro_batch_that_verl_gets_in_another_size_is_named(folder: Path) -> None:
    typed = ["engine=verl", *(word.format(folder=folder) for word in GRPO), f"{ACTOR}.ppo_mini_batch_size=256"]
    asked = f"{ACTOR}.ppo_micro_batch_size_per_gpu"

    def lines(size: int) -> list[str]:
        return [result.line for result in plan([*typed, f"{asked}={size}"]).results]

    three = lines(3)
    named = [line for line in three if "3 does not divide the 160 sequences" in line]
    assert named and named[0].endswith("gets 2; use 2 or 4")
    assert any("80 micro-batches an update" in line for line in three)
    assert not any("does not divide" in line for line in [*lines(4), *lines(400)])


def test_rows_of_sft_are_compared_with_one_length(model_folder: Path, tmp_path: Path) -> None:
    """multiturn_sft_dataset.py:405 compares the whole conversation."""
    rows = [{"prompt": f"{n} ", "response": "1+2=3 " * 40} for n in range(64)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    typed = ["engine=verl", "algorithm=sft", "hardware=gpu", f"model={model_folder}", f"data={tmp_path}/rows.jsonl"]
    kept = ["data.train_batch_size=32", "data.max_prompt_length=150"]

    def found(*more: str) -> dict[str, CheckResult]:
        return {result.subject: result for result in plan([*typed, *kept, *more]).results}

    assert found("data.max_response_length=200")["lengths train"].level == "OK"  # longer than 200, and 350 in all
    refused = found("data.max_response_length=20")["data.max_response_length"]
    assert refused.level == "FAIL" and "64 of 64 train rows are longer than 170 tokens" in refused.line
    enough = re.search(r"use (\d+) or data.truncation=right", refused.line)
    assert enough and found(f"data.max_response_length={enough[1]}")["lengths train"].level == "OK"
    filtered = found("data.max_response_length=20", "data.truncation=filter")
    assert filtered["data.max_response_length"].level == "FAIL"  # verl leaves out no rows of SFT
    assert found("data.max_response_length=20", "data.truncation=right")["data.max_response_length"].level == "WARN"


THINKING = (  # as that of Qwen3: an answer that ends a conversation is written otherwise than one that is alone
    "{% for turn in messages %}<|{{ turn.role }}|>{% if turn.role == 'assistant' and loop.last and not loop.first %}="
    "{% endif %}{{ turn.content }}{% if turn.role == 'assistant' %}<eos>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
ONE_USER = "{% if messages[0].role != 'user' %}{{ raise_exception('no question') }}{% endif %}" + TEMPLATE


@pytest.mark.parametrize(("template", "same"), [(True, True), (ONE_USER, True), (THINKING, False)])
def test_a_conversation_that_is_another_one_turn_by_turn(tmp_path: Path, template: bool | str, same: bool) -> None:
    """multiturn_sft_dataset.py:456, where verl itself says the same of such folders."""
    Model(random=True, template=template).save(tmp_path / "model")
    chat = [("user", "1+1?"), ("assistant", "2"), ("user", "2+1?"), ("assistant", "3")]
    rows = [{"messages": [{"role": role, "content": f"{n} {text}"} for role, text in chat]} for n in range(16)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    typed = ["engine=verl", "algorithm=sft", "hardware=gpu", f"model={tmp_path}/model", f"data={tmp_path}/rows.jsonl"]
    typed += ["data.train_batch_size=8"]

    def found(*more: str) -> list[str]:
        return [line.line for line in plan([*typed, *more]).results if line.subject == "data.ignore_input_ids_mismatch"]

    if same:
        assert not found()
        return
    (line,) = found()
    assert f"false, and {tmp_path}/rows.jsonl:1 written turn by turn is not what the chat template writes of it" in line
    assert not found("data.ignore_input_ids_mismatch=true")


def test_files_that_cannot_be_joined_are_named(folder: Path) -> None:
    """rl_dataset.py:180, which joins them after Ray has started."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    table = pq.read_table(folder / "train.parquet")
    for name, index in (("other", "1"), ("more", 1)):
        added = table.append_column("extra_info", pa.array([{"index": index}] * len(table)))
        pq.write_table(added, folder / f"{name}.parquet")

    def found(*names: str) -> list[str]:
        files = ",".join(f"{folder}/{name}.parquet" for name in names)
        typed = [word.format(folder=folder) for word in GRPO if "train_files" not in word]
        results = plan(["engine=verl", *typed, f"data.train_files=[{files}]"]).results
        return [result.line for result in results if "another type" in result.message]

    (line,) = found("train", "more", "other")
    assert f"data.train_files: {folder}/other.parquet: extra_info.index is of another type" in line
    assert "(int64 vs string)" in line
    assert not found("train", "more") and not found("train")


def test_a_plan_loads_neither_torch_nor_verl() -> None:
    code = (
        "import sys\nfrom launcher.preflight.plan import plan\nassert plan([], recipe='verl-grpo-gsm8k').run\n"
        "print(sorted({'torch', 'verl', 'ray', 'transformers', 'vllm'} & {*sys.modules}))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
