"""Names of other projects that are typed together get answers that agree, with the values of that project."""

from __future__ import annotations

import re

import pytest

from launcher.config.names.table import table
from launcher.config.reference import coming_from
from launcher.config.resolve import try_resolve

ACTOR, ROLLOUT, REF = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref"
OFFLOAD = "fsdp_config.param_offload"


def fixes(algorithm: str, words: list[str]) -> list[str]:
    """What is expected of each of these words, in their order, without notes."""
    given = [] if algorithm in ("sft", "dpo", "ppo") else ["sampler.n=4"]
    found = try_resolve([f"algorithm={algorithm}", "model=tiny", "data=reverse", *given, *words])
    found_fixes = {problem.where.lstrip("-"): re.sub(r" \(.*|'", "", problem.fix) for problem in found.problems}
    found_fixes |= {one.key: f"use {' '.join(one.words)}" if one.words else OUT for one in found.taken}
    return [found_fixes.get(word.partition("=")[0].lstrip("-"), "") for word in words]


OUT = "leave it out"


@pytest.mark.parametrize(
    ("algorithm", "words", "expected"),
    [
        ("sft", "adapter=lora lora_r=32 lora_alpha=8", (OUT, "use model.lora_rank=32", "use model.lora_alpha=8")),
        ("sft", "use_peft=true lora_r=32", (OUT, "use model.lora_rank=32 model.lora_alpha=32")),
        ("sft", "use_peft=true lora_alpha=8", ("use model.lora_rank=16", "use model.lora_alpha=8")),
        ("sft", "use_peft=false lora_r=32", (OUT, OUT)),
        ("sft", "finetuning_type=lora lora_rank=32", (OUT, "use model.lora_rank=32 model.lora_alpha=64")),
        ("sft", "finetuning_type=full lora_rank=32", (OUT, OUT)),
        ("grpo", f"{ACTOR}.use_kl_loss=True {ACTOR}.kl_loss_coef=0.005", (OUT, "use algorithm.kl_loss_coef=0.005")),
        ("grpo", f"{ACTOR}.use_kl_loss=False {ACTOR}.kl_loss_coef=0.005", ("use algorithm.kl_loss_coef=0.0", OUT)),
        ("grpo", f"{ACTOR}.use_dynamic_bsz=True {ACTOR}.ppo_max_token_len_per_gpu=24000",
         (OUT, "use trainer.max_tokens_per_gpu=24000")),
        ("grpo", f"{ACTOR}.use_dynamic_bsz=False {ACTOR}.ppo_max_token_len_per_gpu=24000", (OUT, OUT)),
        ("grpo", f"{ACTOR}.ppo_micro_batch_size_per_gpu=4 {ROLLOUT}.log_prob_micro_batch_size_per_gpu=32",
         ("use trainer.micro_batch_size_per_gpu=4",
          "one size holds for all passes, trainer.micro_batch_size_per_gpu; leave it out, or use engine=verl, which"
          " takes it")),
        ("grpo", f"{ROLLOUT}.val_kwargs.do_sample=True {ROLLOUT}.val_kwargs.temperature=0.6",
         (OUT, "use sampler.val_temperature=0.6")),
        ("grpo", f"{ROLLOUT}.val_kwargs.do_sample=False {ROLLOUT}.val_kwargs.temperature=0.6",
         ("use sampler.val_temperature=0.0", OUT)),
        ("ppo", f"{REF}.{OFFLOAD}=True critic.model.{OFFLOAD}=True {ACTOR}.{OFFLOAD}=False",
         ("use engine.offload=[reference,critic]",) * 3),
        ("ppo", f"{ACTOR}.{OFFLOAD}=True {REF}.{OFFLOAD}=True hardware.nproc_per_node=2",
         ("use engine.strategy=fsdp2 engine.offload=[weights]",) * 2 + ("",)),
        ("dpo", "max_prompt_length=256 max_length=1024",
         ("use data.max_prompt_length=256", "use data.max_prompt_length=256 data.max_response_length=768")),
        ("grpo", "max_prompt_length=256 max_completion_length=99 max_length=1024",
         ("use data.max_prompt_length=256", "use data.max_response_length=99", OUT)),
        ("grpo", "epsilon=0.2 epsilon_high=0.28",
         ("use algorithm.clip_ratio_low=0.2 algorithm.clip_ratio_high=0.28", "use algorithm.clip_ratio_high=0.28")),
        ("sft", "bf16=true torch_dtype=bfloat16", (OUT, "use model.dtype=bfloat16")),
        ("sft", "warmup_steps=0 warmup_ratio=0.1 max_steps=100",
         (OUT, "use optim.lr_warmup_steps=10", "use trainer.total_training_steps=100")),
        ("sft", "warmup_steps=5 warmup_ratio=0.1", ("use optim.lr_warmup_steps=5", OUT)),
        ("sft", "save_strategy=no save_steps=500", ("use trainer.save_freq=-1", OUT)),
        ("sft", "save_strategy=steps save_steps=500", (OUT, "use trainer.save_freq=500")),
        ("grpo", f"{ROLLOUT}.name=hf {ROLLOUT}.gpu_memory_utilization=0.6", ("use sampler=torch", OUT)),
        ("grpo", "algorithm.adv_estimator=grpo algorithm.filter_groups.enable=True", ("use algorithm=dapo",) * 2),
    ],
)  # fmt: skip
def test_two_names_of_one_setting_agree(algorithm: str, words: str, expected: tuple[str, ...]) -> None:
    assert fixes(algorithm, words.split()) == [*expected]


@pytest.mark.parametrize(
    ("algorithm", "words", "expected"),
    [
        ("grpo", f"{ACTOR}.ppo_micro_batch_size=64 trainer.n_gpus_per_node=8", "trainer.micro_batch_size_per_gpu=8"),
        ("grpo", f"{ACTOR}.ppo_micro_batch_size=64 trainer.n_gpus_per_node=8 trainer.nnodes=2",
         "trainer.micro_batch_size_per_gpu=4"),
        ("sft", "per_device_train_batch_size=8 gradient_accumulation_steps=2 num_processes=2",
         "data.train_batch_size=32 trainer.micro_batch_size_per_gpu=8"),
        ("sft", "gradient_accumulation_steps=2 per_device_train_batch_size=8 num_gpus=2",
         "data.train_batch_size=32 trainer.micro_batch_size_per_gpu=8"),
        ("sft", "num_processes=16 num_machines=2", "hardware=gpu hardware.n_gpus_per_node=8"),
        ("sft", "per_device_train_batch_size=8 num_processes=16 num_machines=2",
         "data.train_batch_size=128 trainer.micro_batch_size_per_gpu=8"),
        ("sft", "batch_size=32 micro_batch_size=4 num_processes=2", "data.train_batch_size=64"),
        ("grpo", "per_device_train_batch_size=8 gradient_accumulation_steps=4 steps_per_generation=8 num_processes=4"
         " num_generations=8", "data.train_batch_size=32 trainer.micro_batch_size_per_gpu=8"),
        ("grpo", "steps_per_generation=8 per_device_train_batch_size=8 gradient_accumulation_steps=4 num_processes=4"
         " num_generations=8", "trainer.ppo_mini_batch_size=16"),
        ("grpo", "generation_batch_size=64 per_device_train_batch_size=8 num_generations=8",
         "data.train_batch_size=8 trainer.ppo_mini_batch_size=1"),
        ("ppo", "num_mini_batches=2 per_device_train_batch_size=8 gradient_accumulation_steps=4",
         "trainer.ppo_mini_batch_size=32"),
        ("ppo", "per_device_train_batch_size=8 num_mini_batches=2 gradient_accumulation_steps=4",
         "data.train_batch_size=64 trainer.micro_batch_size_per_gpu=8"),
        ("ppo", "num_mini_batches=4", "trainer.ppo_mini_batch_size=4"),  # of the run's own batch
    ],
)  # fmt: skip
def test_batches_are_those_of_all_that_is_typed(algorithm: str, words: str, expected: str) -> None:
    assert fixes(algorithm, words.split())[0] == f"use {expected}"


def test_without_answers_to_a_prompt_there_are_as_many_as_trl_samples() -> None:
    found = try_resolve(["algorithm=grpo", "model=tiny", "data=reverse", "per_device_train_batch_size=16"]).problems
    assert found[0].fix.startswith("use data.train_batch_size=2 trainer.micro_batch_size_per_gpu=16 ")


@pytest.mark.parametrize("name", ["load_in_4bit=false", "fp16=False", "deepspeed=null", "fsdp=", "adapter=",
    "trainer.default_hdfs_dir=null", "report_to=none", "packing=0", "use_dora=no", "trainer.resume_mode=null",
    "output_dir=null", "algorithm.filter_groups.enable=False", f"{ACTOR}.{OFFLOAD}=False", "reward_model.enable=False",
    f"{ACTOR}.policy_loss.loss_mode=vanilla"])  # fmt: skip
@pytest.mark.parametrize("algorithm", ["ppo", "dapo"])
def test_what_is_switched_off_is_left_out(algorithm: str, name: str) -> None:
    (fix,) = fixes(algorithm, [name])
    assert fix.endswith(OUT) and "use " not in fix


@pytest.mark.parametrize("word", ["weight_decay=0", "shuffle_dataset=false", "random_seed=0", "delta=null"])
def test_a_setting_of_ours_can_be_off(word: str) -> None:
    assert fixes("ppo", [word])[0].endswith(f"={word.partition('=')[2]}")


IPO = "algorithm.loss_type=ipo algorithm.length_normalised=true"


@pytest.mark.parametrize(
    ("algorithm", "word", "expected"),
    [
        ("dpo", "loss_type=ipo", f"use {IPO}"),  # TRL and LLaMA-Factory divide by the answer's length
        ("dpo", "pref_loss=ipo", f"use {IPO}"),
        ("sft", "rl=ipo", f"use algorithm=dpo {IPO}"),
        ("sft", "lora_r=8", "use model.lora_rank=8 model.lora_alpha=32"),
        ("sft", "lora_rank=8", "use model.lora_rank=8 model.lora_alpha=16"),
        ("sft", "lora_target=q_proj,v_proj", "use model.target_modules=[q_proj,v_proj]"),
        ("sft", "data.gen_batch_size=512", "each round samples data.train_batch_size prompts; leave it out"),
        ("sft", "trainer.remove_previous_ckpt_in_save=True", "use trainer.keep_last=1"),
        ("sft", "torch_dtype=auto", "there is no such number format; use model.dtype=float32 or bfloat16"),
        ("sft", "eval_steps=0.05", "use trainer.test_freq=STEPS"),
        ("sft", "metric_for_best_model=eval_loss", "use trainer.best_metric=val/loss"),
        ("sft", "metric_for_best_model=accuracy",
         "metrics have other names, which rlrun config metrics lists; use trainer.best_metric=NAME"),
        ("grpo", "reward_weights=[1.0,0.5]",
         "weights are given by name: reward=weighted reward.parts={NAME:WEIGHT,NAME:WEIGHT}"),
        ("grpo", "rollout.val_kwargs.top_p=0.9",
         "sampler.top_p and sampler.top_k hold in validation too; leave it out"),
    ],
)  # fmt: skip
def test_a_value_means_the_same(algorithm: str, word: str, expected: str) -> None:
    assert fixes(algorithm, [word]) == [expected]


def test_steps_may_be_a_fraction_of_all() -> None:
    expected = fixes("sft", ["eval_steps=0.05", "save_steps=0.1", "max_steps=200"])
    assert expected[:2] == ["use trainer.test_freq=10", "use trainer.save_freq=20"]


def test_the_columns_of_a_summary() -> None:
    words = ["algorithm=sft", "model=tiny", "data=files", "data.train_files=x", "text_column=a", "summary_column=b"]
    expected = [problem.fix for problem in try_resolve(words).problems]
    assert expected == ["use data.prompt_key=a", "use data.response_key=b"]


@pytest.mark.parametrize("name", ["kto", "orpo", "simpo", "rloo"])
def test_another_algorithm_is_called_another(name: str) -> None:
    (problem,) = try_resolve([f"algorithm={name}", "model=tiny", "data=reverse"]).problems
    assert problem.fix.startswith("it is not here; the nearest, another algorithm, is algorithm=")


@pytest.mark.parametrize("project", table().projects.values(), ids=lambda project: project.key)
def test_a_page_says_what_differs_where_nothing_is_typed(project: coming_from.Project) -> None:
    page = coming_from.page(project)
    assert len(project.defaults) >= 5
    for theirs, ours in project.defaults.items():
        assert f"| {theirs} | {coming_from.marked(ours)} |" in page
    assert "hardware=gpu" in project.ours


def test_every_default_of_a_page_can_be_typed() -> None:
    for project in table().projects.values():
        for words in project.defaults.values():
            sampled = "sampler.n=8" if "sampler.n" not in words else "seed=0"
            whole = ["algorithm=grpo", "model=qwen3-0.6b", "data=files", "data.train_files=x", sampled, *words.split()]
            whole += ["hardware.nproc_per_node=2"] if "hardware" not in words and "=1" not in words else []
            assert try_resolve(whole).problems == [], words
