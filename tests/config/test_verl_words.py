"""Arguments in verl's spelling: what each is taken as with engine=verl, and what is said of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.config.recipe import run_request
from launcher.config.resolve import Resolution, resolve, resolve_request, try_resolve
from launcher.config.translate import EXTRA, listed
from launcher.core.problems import Problems
from launcher.preflight.plan import plan

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
REF, MODEL = "actor_rollout_ref.ref", "actor_rollout_ref.model"

TABLE = {  # what is typed together: the word, and what it is taken as
    # `=` ours as it is, `-` left out, `+` passed on to verl (by which name), `!` refused with this advice
    "grpo": [
        [
            ("algorithm.adv_estimator=grpo", "reward=auto algorithm=grpo"),
            ("data.train_files=a.parquet", "data=files data.train_files=a.parquet"),
            ("data.val_files=b.parquet", "="),
            ("data.truncation=left", "="),
            ("data.gen_batch_size=512", "+"),
            ("data.seed=1", "+"),
            ("data.return_raw_chat=True", "+"),
            ("data.apply_chat_template_kwargs.enable_thinking=False", "data.template_args.enable_thinking=False"),
            ("data.reward_fn_key=data_source", "+"),
            ("data.dataloader_num_workers=4", "+"),
            (f"{MODEL}.path=Qwen/Qwen3-0.6B", "model=hf model.path=Qwen/Qwen3-0.6B"),
            (f"{MODEL}.use_remove_padding=True", "+"),
            (f"{MODEL}.enable_gradient_checkpointing=True", "model.enable_gradient_checkpointing=true"),
            (f"{MODEL}.lora_rank=32", "model.lora_rank=32 model.lora_alpha=16"),
            (f"{MODEL}.target_modules=all-linear", "model.target_modules=all-linear"),
            (f"{MODEL}.trust_remote_code=False", "model.trust_remote_code=False"),
            (f"+{MODEL}.override_config.attn_implementation=sdpa", "+"),
            (f"{ACTOR}.ppo_mini_batch_size=64", "trainer.ppo_mini_batch_size=64"),
            (f"{ACTOR}.ppo_micro_batch_size_per_gpu=8", "trainer.micro_batch_size_per_gpu=8"),
            (f"{ACTOR}.kl_loss_type=low_var_kl", "algorithm.kl_loss_type=k3"),
            (f"{ACTOR}.clip_ratio=0.1", "algorithm.clip_ratio_low=0.1 algorithm.clip_ratio_high=0.1"),
            (f"{ACTOR}.entropy_coeff=0", "algorithm.entropy_coeff=0"),
            (f"{ACTOR}.loss_agg_mode=token-mean", "algorithm.loss_agg_mode=token-mean"),
            (f"{ACTOR}.ppo_epochs=2", "trainer.ppo_epochs=2"),
            (f"{ACTOR}.grad_clip=0.5", "optim.clip_grad=0.5"),
            (f"{ACTOR}.optim.lr=1e-6", "optim.lr=1e-6"),
            (f"{ACTOR}.optim.lr_warmup_steps=10", "optim.lr_warmup_steps=10"),
            (f"{ACTOR}.optim.weight_decay=0.1", "optim.weight_decay=0.1"),
            (f"{ACTOR}.fsdp_config.param_offload=True", "+"),
            (f"{ACTOR}.fsdp_config.fsdp_size=8", "+"),
            (f"{ACTOR}.strategy=fsdp2", "engine.strategy=fsdp2"),
            (f"{ACTOR}.ulysses_sequence_parallel_size=2", "+"),
            (f"{ACTOR}.checkpoint.save_contents=[model]", "+"),
            (f"{ROLLOUT}.name=vllm", "sampler.name=vllm"),
            (f"{ROLLOUT}.mode=async", "+"),
            (f"{ROLLOUT}.n=5", "sampler.n=5"),
            (f"{ROLLOUT}.temperature=0.7", "sampler.temperature=0.7"),
            (f"{ROLLOUT}.top_p=0.9", "sampler.top_p=0.9"),
            (f"{ROLLOUT}.top_k=-1", "sampler.top_k=-1"),
            (f"{ROLLOUT}.gpu_memory_utilization=0.6", "sampler.gpu_memory_utilization=0.6"),
            (f"{ROLLOUT}.max_model_len=4096", "sampler.max_model_len=4096"),
            (f"{ROLLOUT}.max_num_batched_tokens=8192", "+"),
            (f"{ROLLOUT}.enforce_eager=True", "sampler.enforce_eager=True"),
            (f"{ROLLOUT}.free_cache_engine=True", "+"),
            (f"{ROLLOUT}.enable_chunked_prefill=False", "+"),
            (f"{ROLLOUT}.val_kwargs.do_sample=True", "sampler.val_temperature=1.0"),
            (f"{ROLLOUT}.val_kwargs.n=4", "sampler.val_n=4"),
            (f"{ROLLOUT}.val_kwargs.top_p=0.7", "+"),
            (f"{ROLLOUT}.multi_turn.enable=True", "+"),
            (f"{ROLLOUT}.disable_log_stats=False", "+"),
            (f"{ROLLOUT}.prometheus.enable=True", "+"),
            (f"+{ROLLOUT}.engine_kwargs.vllm.swap_space=4", "+"),
            ("actor_rollout_ref.hybrid_engine=True", "+"),
            ("algorithm.kl_ctrl.kl_coef=0.001", "+"),
            ("algorithm.filter_groups.metric=acc", "+"),
            ("algorithm.norm_adv_by_std_in_grpo=False", "="),
            ("trainer.n_gpus_per_node=8", "hardware=gpu hardware.n_gpus_per_node=8"),
            ("trainer.total_epochs=15", "="),
            ("trainer.save_freq=20", "="),
            ("trainer.test_freq=5", "="),
            ("trainer.val_before_train=False", "="),
            ("trainer.logger=[console,wandb]", "="),
            ("trainer.project_name=p", "="),
            ("trainer.experiment_name=e", "="),
            ("trainer.default_local_dir=ckpts/p", "trainer.run_root=ckpts/p"),
            ("trainer.default_hdfs_dir=null", "-"),
            ("trainer.resume_mode=auto", "-"),
            ("trainer.max_actor_ckpt_to_keep=2", "trainer.keep_last=2"),
            ("trainer.balance_batch=True", "+"),
            ("trainer.rollout_data_dir=x", "-"),
            ("trainer.use_v1=True", "+"),
            ("ray_kwargs.ray_init.num_cpus=16", "+"),
            ("critic.model.path=Qwen/Qwen3-0.6B", "+"),
            ("global_profiler.tool=torch", "+"),
            ("trainer.nnode=2", "! did you mean hardware.nnodes=2?"),
            (f"{ROLLOUT}.nn=3", f"! did you mean {ROLLOUT}.nnodes?"),
        ],
        [
            ("data.filter_overlong_prompts=True", "data.truncation=filter"),
            (f"{MODEL}.lora_alpha=64", "model.lora_alpha=64"),
            (f"{ACTOR}.ppo_micro_batch_size=8", "+"),
            (f"{ACTOR}.use_kl_loss=True", "algorithm.kl_loss_coef=0.001"),
            (f"{ACTOR}.clip_ratio_low=0.1", "algorithm.clip_ratio_low=0.1"),
            (f"{ACTOR}.lr=1e-6", "optim.lr=1e-6"),
            (f"{ACTOR}.optim.lr_warmup_steps=-1", "-"),
            (f"{ACTOR}.fsdp_config.optimizer_offload=False", "-"),
            (f"{ACTOR}.strategy=megatron", "engine.strategy=megatron"),
            (f"{ROLLOUT}.name=sglang", "sampler.name=sglang"),
            (f"{ROLLOUT}.mode=sync", "+"),
            (f"{ROLLOUT}.tensor_model_parallel_size=2", "sampler.tensor_parallel_size=2"),
            (f"{ROLLOUT}.val_kwargs.temperature=0.6", "sampler.val_temperature=0.6"),
            ("algorithm.rollout_correction.rollout_is=token", "+"),
            ("reward.custom_reward_function.path=my.py", "reward=python reward.path=my.py"),
            ("trainer.nnodes=2", "hardware.nnodes=2"),
            ("trainer.total_training_steps=100", "="),
            ("trainer.resume_mode=resume_path", "-"),
        ],
        [
            (f"{ACTOR}.ppo_max_token_len_per_gpu=24000", "trainer.max_tokens_per_gpu=24000"),
            (f"{ACTOR}.kl_loss_coef=0.002", "algorithm.kl_loss_coef=0.002"),
            (f"{ACTOR}.clip_ratio_high=0.28", "algorithm.clip_ratio_high=0.28"),
            (f"{ACTOR}.optim.lr_warmup_steps_ratio=0.1", "+"),
            (f"{REF}.fsdp_config.param_offload=True", f"! did you mean {REF}.megatron.param_offload?"),
            (f"{ROLLOUT}.name=hf", "sampler.name=hf"),
            (f"{ROLLOUT}.tensor_parallel_size=2", "-"),
            ("custom_reward_function.path=my.py", "reward=python reward.path=my.py"),
            ("trainer.device=cuda", "hardware=gpu"),
            ("model_engine=megatron", "engine.strategy=megatron"),
            ("critic.optim.lr=1e-5", "="),
        ],
        [
            (f"{ACTOR}.use_dynamic_bsz=True", "trainer.max_tokens_per_gpu=16384"),
            (f"{ACTOR}.clip_ratio_c=10.0", "algorithm.clip_ratio_c=10.0"),
            (f"{ACTOR}.optim.warmup_style=cosine", "optim.lr_scheduler_type=cosine"),
            (f"{ACTOR}.policy_loss.loss_mode=gspo", "algorithm=gspo"),
            ("custom_reward_function.name=score", "reward=python reward.name=score"),
            ("critic.model.fsdp_config.param_offload=True", "+critic.fsdp.param_offload=True"),
        ],
        [
            (f"{ACTOR}.policy_loss.loss_mode=clip_cov", "+"),
            (f"{REF}.log_prob_micro_batch_size_per_gpu=8", "+"),
            ("+reward.custom_reward_function.reward_kwargs.a=1", "reward=python reward.kwargs.a=1"),
            ("trainer.critic_warmup=0", "="),
        ],
        [
            (f"{ACTOR}.policy_loss.loss_mode=vanilla", "-"),
            (f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=8", "+"),
            ("reward.reward_manager.name=dapo", "+"),
        ],
        [
            (f"{ROLLOUT}.log_prob_micro_batch_size=8", "+"),
            ("algorithm.use_kl_in_reward=False", "+"),
            ("reward_model.reward_manager=naive", "+"),
        ],
        [
            ("algorithm.use_kl_in_reward=True", "+"),
            ("reward_model.path=my/rm", "reward=model reward.path=my/rm"),
            ("critic.ppo_micro_batch_size_per_gpu=8", "+"),
        ],
        [
            ("algorithm.filter_groups.enable=True", "algorithm=dapo"),
            ("reward_model.enable=True", "reward=model +reward.reward_model.enable=True"),
        ],
        [
            ("algorithm.adv_estimator=rloo", "algorithm=grpo +"),
            ("reward.reward_model.model_path=my/rm", "reward=model reward.path=my/rm"),
        ],
        [
            ("reward.reward_model.enable=True", "reward=model +"),
        ],
        [
            ("reward.reward_model.rollout.name=vllm", "+"),
        ],
        [
            ("+reward.reward_kwargs.overlong_buffer_cfg.len=512", "+"),
        ],
        [
            ("reward.num_workers=4", "+"),
        ],
    ],
    "sft": [
        [
            ("model.partial_pretrain=Qwen/Qwen3-0.6B", "model=hf model.path=Qwen/Qwen3-0.6B"),
            ("data.messages_key=messages", "+"),
            ("data.prompt_key=question", "! it reads only data.messages_key"),
            ("data.response_key=answer", "! it reads only data.messages_key"),
            ("data.multiturn.enable=True", "! leave it out: every row is a chat"),
            ("data.max_length=4096", "data.max_prompt_length=16 data.max_response_length=4080"),
            ("data.max_token_len_per_gpu=8192", "trainer.max_tokens_per_gpu=8192"),
            ("model.lora_rank=32", "="),
            ("model.lora_alpha=64", "="),
            ("model.target_modules=all-linear", "="),
            ("model.enable_gradient_checkpointing=True", "="),
            ("model.use_remove_padding=True", "+"),
            ("optim.lr=1e-5", "="),
            ("optim.warmup_steps_ratio=0.1", "+optim.lr_warmup_steps_ratio=0.1"),
            ("optim.lr_scheduler=cosine", "optim.lr_scheduler_type=cosine"),
            ("engine.param_offload=True", "+"),
            ("engine.ulysses_sequence_parallel_size=2", "+"),
            ("ulysses_sequence_parallel_size=2", "+engine.ulysses_sequence_parallel_size=2"),
            ("use_remove_padding=True", "+model.use_remove_padding=True"),
            ("trainer.n_gpus_per_node=8", "hardware=gpu hardware.n_gpus_per_node=8"),
            ("checkpoint.save_contents=[model]", "+"),
            ("trainer.max_ckpt_to_keep=2", "trainer.keep_last=2"),
        ],
    ],
}
TOGETHER = [(algorithm, batch) for algorithm, batches in TABLE.items() for batch in batches]


def words_of(result: Resolution, key: str = "") -> list[str]:
    """The request in our words, of which `key` is one."""
    return [word for word in result.request.texts if not key or word.lstrip("+").startswith(f"{key}=")]


def base(algorithm: str, words: list[str]) -> list[str]:
    """What a run needs beside these words."""
    given = {
        "algorithm": ("adv_estimator", "loss_mode", "filter_groups.enable"), "model": (f"{MODEL}.path", "pretrain"),
        "data": ("train_files",), "sampler.n": (f"{ROLLOUT}.n=",),
    }  # fmt: skip
    some = {"algorithm": algorithm, "model": "tiny", "data": "reverse", "sampler.n": "4"}
    if algorithm == "sft":
        del some["sampler.n"]
    text = " ".join(words)
    return [f"{key}={value}" for key, value in some.items() if not any(part in text for part in given[key])]


def message_of(word: str, result: Resolution) -> str:
    for one in result.taken:
        if one.typed.text == word:
            ours = " ".join("+" if each == EXTRA else each for each in one.words)
            return ours + one.note.removeprefix("as ") if one.words else "-"
    key = word.lstrip("+").partition("=")[0]
    return next((f"! {problem.fix}" for problem in result.problems if problem.where == key), "=")


def test_there_are_words_enough() -> None:
    assert sum(len(batch) for _, batch in TOGETHER) >= 120


@pytest.mark.parametrize(
    ("algorithm", "batch"), TOGETHER, ids=lambda each: each if isinstance(each, str) else each[0][0]
)
def test_a_word_of_verl_is_taken(algorithm: str, batch: list[tuple[str, str]]) -> None:
    words = [word for word, _ in batch]
    result = try_resolve([*base(algorithm, words), "engine=verl", *words])
    found = {word: message_of(word, result) for word in words}
    for word, want in batch:
        assert found[word].startswith(want) if want.startswith("!") else found[word] == want, word


GRPO = [
    "hardware=gpu",
    "hardware.n_gpus_per_node=1",
    "algorithm.adv_estimator=grpo",
    f"{MODEL}.path=Qwen/Qwen3-0.6B",
    "data.train_files=a.parquet",
]


def test_what_is_passed_on_stands_in_one_setting() -> None:
    given = 'engine.extra=["trainer.balance_batch=True"]'
    result = try_resolve([*GRPO, "engine=verl", given, f"{ROLLOUT}.mode=async", f"+{ROLLOUT}.engine_kwargs.vllm.a=1"])
    assert not result.problems and result.run
    extra = ("trainer.balance_batch=True", f"{ROLLOUT}.mode=async", f"+{ROLLOUT}.engine_kwargs.vllm.a=1")
    assert result.run.engine.extra == extra  # type: ignore[attr-defined]
    assert listed(words_of(result, EXTRA)[0]) == [*extra]


def test_a_key_that_verl_does_not_have_is_refused_with_the_nearest() -> None:
    (problem,) = try_resolve([*GRPO, "engine=verl", f"{ROLLOUT}.gpu_memory_utilisation=0.5"]).problems
    assert str(problem) == (
        f"{ROLLOUT}.gpu_memory_utilisation: verl has no such key; did you mean {ROLLOUT}.gpu_memory_utilization?"
    )


def test_keys_of_megatron_are_known_where_it_trains() -> None:
    word = f"{ACTOR}.megatron.tensor_model_parallel_size=2"
    for backend in ("engine.strategy=megatron", "model_engine=megatron", f"{ACTOR}.strategy=megatron"):
        result = try_resolve([*GRPO, "engine=verl", backend, word])
        assert not result.problems and result.run and result.run.engine.extra == (word,)  # type: ignore[attr-defined]
    assert try_resolve([*GRPO, "engine=verl", word]).problems


RUN = ["algorithm=grpo", "model=Qwen/Qwen3-0.6B", "data=gsm8k", "engine=verl"]


# ---- what is typed in two spellings


def test_two_values_in_two_spellings_are_named() -> None:
    page = plan([*RUN, f"{ROLLOUT}.n=5", "sampler.n=8"])
    twice = [result for result in page.results if "given 2 times" in result.message]
    assert [(each.subject, each.message) for each in twice] == [
        ("sampler.n", f"is given 2 times: {ROLLOUT}.n=5, sampler.n=8")
    ]
    assert page.run and page.run.sampler.n == 8  # the later one holds


@pytest.mark.parametrize(
    ("typed", "refused"),
    [
        ("algorithm=grpo algorithm.adv_estimator=grpo", ""),
        ("algorithm=dapo algorithm.adv_estimator=grpo", ""),  # a kind of GRPO
        ("algorithm=ppo algorithm.adv_estimator=gae", ""),
        ("algorithm=ppo algorithm.adv_estimator=grpo", "algorithm: chosen twice, as algorithm=ppo and algorithm=grpo"),
        ("algorithm.adv_estimator=gae algorithm=grpo", "algorithm: chosen twice, as algorithm=ppo and algorithm=grpo"),
    ],
)
def test_a_choice_and_what_follows_from_a_word(typed: str, refused: str) -> None:
    lines = [str(problem) for problem in try_resolve([*RUN[1:], *typed.split()]).problems]
    assert [line.split(" (")[0] for line in lines] == ([refused] if refused else [])


def test_a_number_is_not_the_name_after_its_point() -> None:
    result = try_resolve([*RUN, f"{ROLLOUT}.temperature=1.0"])
    assert result.taken[0].words == ("sampler.temperature=1.0",)


def test_a_problem_names_what_was_typed() -> None:
    (problem,) = try_resolve([*RUN, f"{ROLLOUT}.n=five"]).problems
    assert problem.where == "sampler.n" and problem.got == f"got 'five' (typed as {ROLLOUT}.n=five)"


# ---- one run, however it is asked for

VERL = [
    "engine=verl", "algorithm.adv_estimator=gae", f"{MODEL}.path=Qwen/Qwen3-0.6B", "data.train_files=a.parquet",
    "data.train_batch_size=64", f"{ACTOR}.optim.lr=2e-6", "algorithm.lam=0.95", f"{ROLLOUT}.temperature=0.7",
]  # fmt: skip
OURS = [
    "engine=verl", "algorithm=ppo", "model=hf", "model.path=Qwen/Qwen3-0.6B", "data=files",
    "data.train_files=a.parquet",
    "data.train_batch_size=64", "optim.lr=2e-6", "algorithm.lam=0.95", "sampler.temperature=0.7", "reward=auto",
]  # fmt: skip


def test_the_run_is_that_of_our_words() -> None:
    assert resolve(VERL) == resolve(OURS)


@pytest.mark.parametrize(
    ("more", "reward"),
    [
        ([], "Auto"),
        (["reward=math"], "Math"),
        (["reward.path=my.py"], "Exact"),  # which has no path: the error names no reward that nobody typed
        (["reward.custom_reward_function.path=f.py"], "Python"),
        (["reward.reward_model.enable=true", "reward.reward_model.model_path=a/b"], "RewardModel"),
    ],
)
def test_a_launch_of_verls_that_names_no_reward_is_scored_by_data_source(more: list[str], reward: str) -> None:
    result = try_resolve([*VERL, *more])
    found = type(result.run.reward).__name__ if result.run else result.problems[0].got.split()[0]
    assert found == reward


def test_a_recipe_and_a_file_may_have_verls_words(tmp_path: Path) -> None:
    script, file = tmp_path / "run.sh", tmp_path / "run.yaml"
    script.write_text(f'rlrun train {" ".join(VERL)} "$@"\n')
    file.write_text("\n".join(word.replace("=", ": ", 1) for word in VERL))
    for by in (run_request([], recipe=str(script)), run_request([str(file)])):
        assert resolve_request(by).run == resolve(OURS)
    over = run_request([f"{MODEL}.path=Qwen/Qwen3-1.7B", f"{ROLLOUT}.temperature=1.0"], recipe=str(script))
    run = resolve_request(over).run
    assert run and run == resolve([*OURS, "model.path=Qwen/Qwen3-1.7B", "sampler.temperature=1.0"])


def test_a_plan_says_what_was_taken_and_from_where(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"prompt": "1+1?", "ground_truth": "2"}\n' * 64)
    words = ["engine=verl", "algorithm.adv_estimator=grpo", "model=Qwen/Qwen3-0.6B", f"{ROLLOUT}.n=5",
             f"data.train_files={tmp_path}/a.jsonl"]  # fmt: skip
    page = plan(words)
    assert [result.message for result in page.results if result.subject == f"{ROLLOUT}.n=5"] == ["taken as sampler.n=5"]
    assert str(page.origins["sampler.n"]) == f"command line: {ROLLOUT}.n=5"
    assert str(page.origins["algorithm"]) == "command line: algorithm.adv_estimator=grpo"


def test_our_words_alone_load_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys  # noqa: PLC0415

    for name in [
        name for name in sys.modules if name.startswith(("launcher.config.translate", "launcher.engines.verl"))
    ]:
        monkeypatch.delitem(sys.modules, name)
    assert not try_resolve(["algorithm=grpo", "model=tiny", "data=reverse"]).problems
    assert "launcher.config.translate" not in sys.modules


def test_without_an_engine_that_takes_them_names_are_answered() -> None:
    typed = [f"{ROLLOUT}.n=5", "actor_rollout_ref.model.use_liger=true"]
    lines = [str(each) for each in try_resolve(["algorithm=grpo", "model=tiny", "data=reverse", *typed]).problems]
    assert lines[0] == f"{ROLLOUT}.n: is verl's name; use sampler.n=5"
    assert lines[1].startswith("actor_rollout_ref.model.use_liger: is verl's name; there is no switch")


def test_names_of_other_projects_are_refused_as_before() -> None:
    with pytest.raises(Problems, match=r"num_generations: is TRL.s name; use sampler\.n=5"):
        resolve(["algorithm=grpo", "model=tiny", "data=reverse", "num_generations=5"])
