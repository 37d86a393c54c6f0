"""Plans of engine=verl: what the platform's guide asks for (S1-19 to S1-24), recipes, and what is refused in words."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.config.resolve import resolve, try_resolve
from launcher.core.check_result import CheckResult
from launcher.engines.verl import checks
from launcher.preflight.plan import plan

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
        made = "".join(f'{{"prompt": "{n}+1?", "response": "{n + 1}"}}\n' for n in range(600))
        for split in ("train", "test"):
            (folder / f"{split}.jsonl").write_text(made.replace("+1", "+1" if split == "train" else "+ 1"))
        typed = [word.replace(".parquet", ".jsonl") for word in typed]
    page = plan(["engine=verl", "reward=auto", *typed])
    failed = [result.line for result in page.results if result.level == "FAIL"]
    assert page.run and not failed, failed
    assert "accepts its" in next(result.message for result in page.results if result.subject == "engine")


def test_dpo_of_the_guide_trains_with_our_engine() -> None:
    assert resolve(["algorithm=dpo", "model=Qwen/Qwen2.5-7B-Instruct", "data=ultrafeedback", "algorithm.beta=0.1",
                    "trainer.total_epochs=1", "optim.lr=5e-7", "hardware=h100x8"])  # fmt: skip


PLANS = """
import sys
from launcher.preflight.plan import plan
for recipe in sys.argv[1:]:
    page = plan([], recipe=recipe)
    assert page.run and not [result.line for result in page.results if result.level == "FAIL"], recipe
    assert "accepts its" in next(result.message for result in page.results if result.subject == "engine")
print(sorted({'torch', 'verl', 'ray', 'transformers', 'vllm'} & {*sys.modules}))
"""


def test_a_recipe_plans_and_neither_torch_nor_verl_is_loaded_for_it() -> None:
    recipes = [path.stem for path in (Path(__file__).parents[3] / "recipes").glob("verl-*.sh")]
    ran = subprocess.run([sys.executable, "-c", PLANS, *recipes], capture_output=True, text=True, check=False)
    assert recipes and ran.stdout.strip() == "[]", ran.stderr


REFUSED = {
    "hardware=cpu": "hardware: verl 0.9.1 has no platform for CPUs; use hardware=gpu, or engine=torch",
    "sampler=vllm": "sampler: verl samples with servers of its own; use sampler=verl, or engine=torch",
    "model=tiny": "model: verl loads a model from a folder or a hub",
    "health.on_critical=pause": "health.on_critical: verl cannot save a checkpoint when it is asked to",
    "optim.lr_scheduler_type=linear": "optim.lr_scheduler_type: verl has no linear schedule",
    "data.chat_template=never": "data.chat_template: verl always writes prompts with the chat template",
    "algorithm.max_log_ratio=10": "algorithm.max_log_ratio: verl clamps log-ratios at 20",
    "algorithm.min_group_std=0.1": "algorithm.min_group_std: verl filters groups by equal scores only",
    'engine.extra=["trainer.resume_mode=auto"]': "engine.extra: trainer.resume_mode is set by rlrun",
    "engine.resume_from_path=/a/b": "engine.resume_from_path: '/a/b' does not end with global_step_N",
}


QWEN = "model=Qwen/Qwen3-0.6B"


@pytest.mark.parametrize(("typed", "lines"), [
    (["algorithm=grpo", "data=gsm8k", *REFUSED], [*REFUSED.values()]),
    (["algorithm=grpo", "data=reverse", QWEN], ["data: verl reads rows of files"]),
    (["algorithm=gspo_selfplay", "data=gsm8k", QWEN], ["algorithm: GSPOSelfPlay learns from mixed, which Verl does"]),
    (["algorithm=dpo", "data=ultrafeedback", QWEN], ["algorithm: DPO learns from pairs, which Verl does not read"]),
])  # fmt: skip
def test_what_verl_does_not_do_is_refused_in_words(typed: list[str], lines: list[str]) -> None:
    """verl has no DPO, and never had (S1-24)."""
    found = list(map(str, try_resolve(["engine=verl", *typed]).problems))
    assert not [line for line in lines if not any(each.startswith(line) for each in found)], found


def test_a_model_that_is_not_there_hides_nothing_of_verls_arguments(tmp_path: Path) -> None:
    typed = ["engine=verl", "algorithm=grpo", "data=gsm8k", f"model.path={tmp_path}/none", "hardware.n_gpus_per_node=8"]
    found = plan([*typed, "model=hf", "hardware=gpu", f"{ROLLOUT}.mode=sync"]).results
    places = {result.subject for result in found if result.level == "FAIL"}
    assert {"model.path", f"{ROLLOUT}.mode"} <= places


def test_micro_batches_that_verl_gets_otherwise_are_named(folder: Path) -> None:
    """It wants a divisor."""

    def typed(size: int) -> list[str]:
        given = [word.format(folder=folder) for word in GRPO]
        given += [f"{ACTOR}.ppo_mini_batch_size=256", f"{ACTOR}.ppo_micro_batch_size_per_gpu={size}"]
        return ["engine=verl", *given]

    lines = [result.line for result in plan(typed(3)).results]
    (line,) = [line for line in lines if "3 does not divide the 160 sequences" in line]
    assert line.endswith("gets 2; use 2 or 4") and any("80 micro-batches an update" in line for line in lines)
    for size in (4, 400):
        assert not [*checks._micro_batch_of_verl(resolve(typed(size)))]


def test_rows_of_sft_are_compared_with_one_length(model_folder: Path, tmp_path: Path) -> None:
    """multiturn_sft_dataset.py:405 compares the whole conversation."""
    made = [{"prompt": f"{n} ", "response": "1+2=3 " * 40} for n in range(64)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made))
    typed = ["engine=verl", "algorithm=sft", "hardware=gpu", f"model={model_folder}", f"data={tmp_path}/rows.jsonl"]
    typed += ["data.train_batch_size=32", "data.max_prompt_length=150"]

    def found(*more: str) -> dict[str, CheckResult]:
        return {result.subject: result for result in plan([*typed, *more]).results}

    refused = found("data.max_response_length=20")["data.max_response_length"]
    assert refused.level == "FAIL" and "64 of 64 train rows are longer than 170 tokens" in refused.line
    enough = re.search(r"use (\d+) or data.truncation=right", refused.line)
    assert enough and int(enough[1]) < 200, "longer than an answer may be, and not than both"
    assert found(f"data.max_response_length={enough[1]}")["lengths train"].level == "OK"
    filtered = found("data.max_response_length=20", "data.truncation=filter")
    assert filtered["data.max_response_length"].level == "FAIL"  # verl leaves out no rows of SFT
    assert found("data.max_response_length=20", "data.truncation=right")["data.max_response_length"].level == "WARN"
