"""Arguments in verl's spelling, with engine=verl: what each is taken as, and what is said of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from launcher.config.resolve import Resolution, try_resolve

TABLE: dict[str, dict[str, str]] = yaml.safe_load(Path(__file__).with_name("verl_words.yaml").read_text())
EXTRA = "engine.extra"
ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
MODEL = "actor_rollout_ref.model"
GRPO = [
    "engine=verl", "hardware=gpu", "hardware.n_gpus_per_node=1", "algorithm.adv_estimator=grpo",
    f"{MODEL}.path=Qwen/Qwen3-0.6B", "data.train_files=a.parquet", "sampler.n=4",
]  # fmt: skip


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


@pytest.mark.parametrize("algorithm", TABLE)
def test_words_of_verl_are_taken(algorithm: str) -> None:
    words = TABLE[algorithm]
    result = try_resolve([*base(algorithm, [*words]), "engine=verl", *words])
    found = {word: message_of(word, result) for word in words}
    differ = {word: (found[word], want) for word, want in words.items() if not found[word].startswith(want)}
    assert not differ


def test_what_is_passed_on_stands_in_one_setting() -> None:
    given = 'engine.extra=["trainer.balance_batch=True"]'
    result = try_resolve([*GRPO, given, f"{ROLLOUT}.mode=async", f"+{ROLLOUT}.engine_kwargs.vllm.a=1"])
    assert not result.problems and result.run
    extra = ("trainer.balance_batch=True", f"{ROLLOUT}.mode=async", f"+{ROLLOUT}.engine_kwargs.vllm.a=1")
    assert result.run.engine.extra == extra  # type: ignore[attr-defined]


def test_a_key_that_verl_does_not_have_is_refused_with_the_nearest() -> None:
    (problem,) = try_resolve([*GRPO, f"{ROLLOUT}.gpu_memory_utilisation=0.5"]).problems
    near = f"{ROLLOUT}.gpu_memory_utilization"
    assert str(problem) == f"{ROLLOUT}.gpu_memory_utilisation: verl has no such key; did you mean {near}?"


def test_keys_of_megatron_are_known_where_it_trains() -> None:
    word = f"{ACTOR}.megatron.tensor_model_parallel_size=2"
    for backend in ("engine.strategy=megatron", "model_engine=megatron", f"{ACTOR}.strategy=megatron"):
        result = try_resolve([*GRPO, backend, word])
        assert not result.problems and result.run and result.run.engine.extra == (word,)  # type: ignore[attr-defined]
    assert try_resolve([*GRPO, word]).problems


@pytest.mark.parametrize(
    ("typed", "refused"),
    [
        ("algorithm=dapo algorithm.adv_estimator=grpo", ""),  # a kind of GRPO
        ("algorithm=ppo algorithm.adv_estimator=grpo", "algorithm: chosen twice, as algorithm=ppo and algorithm=grpo"),
    ],
)
def test_a_choice_and_what_follows_from_a_word(typed: str, refused: str) -> None:
    others = [word for word in GRPO if "adv_estimator" not in word]
    lines = [str(problem) for problem in try_resolve([*others, *typed.split()]).problems]
    assert [line.split(" (")[0] for line in lines] == ([refused] if refused else [])


def test_a_problem_names_what_was_typed() -> None:
    others = [word for word in GRPO if "sampler" not in word]
    (problem,) = try_resolve([*others, f"{ROLLOUT}.n=five"]).problems
    assert problem.where == "sampler.n" and problem.got == f"got 'five' (typed as {ROLLOUT}.n=five)"


# ---- values that verl takes, and that our settings do not have

GROUPS = "algorithm.filter_groups"
MOST = f"{GROUPS}.max_num_gen_batches"
VERL = ["engine=verl", "model=Qwen/Qwen3-0.6B", "data=gsm8k", "sampler.n=4"]


@pytest.mark.parametrize("words", [[f"{MODEL}.lora_rank=0", f"{MODEL}.lora_alpha=0"], [f"{MODEL}.lora_alpha=0"]])
def test_an_alpha_without_adapters_is_left_out(words: list[str]) -> None:
    found = try_resolve([*VERL, "algorithm=grpo", *words])
    assert not found.problems and found.run and found.run.model.lora_rank == 0
    assert next(one for one in found.taken if "alpha" in one.typed.text).words == ()


def extra(*typed: str) -> list[str]:
    found = try_resolve([*VERL, "algorithm.adv_estimator=grpo", *typed])
    assert not found.problems and found.run, found.problems
    return list(found.run.engine.extra)  # type: ignore[attr-defined]


def test_the_parts_of_a_length_penalty_stay_together() -> None:
    """verl reads `enable` of each mapping, also where only the other keys say that there is one."""
    buffer = "+reward.reward_kwargs.overlong_buffer_cfg"
    typed = [f"{buffer}.enable=true", f"{buffer}.len=64", f"{buffer}.penalty_factor=1.0", f"{buffer}.log=false"]
    manager = ["reward.reward_manager.name=dapo", "+reward.reward_kwargs.max_resp_len=256"]
    assert extra(*manager, *typed) == [*manager, *typed]
    found = try_resolve([*VERL, "algorithm=dapo", *typed])
    assert not found.problems and found.run and found.run.algorithm.overlong_buffer_len == 64  # type: ignore[attr-defined]


@pytest.mark.parametrize("most", ["5", "0", "-1"])
def test_a_limit_of_sampling_is_passed_on_and_more_than_all_steps_is_no_share(most: str) -> None:
    """Neither 10 steps nor ten times all of them are known to be meant; sampling without a limit is verl's."""
    warmup = "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=10"
    assert extra(f"{GROUPS}.enable=true", f"{MOST}={most}", warmup) == [f"{MOST}={most}", warmup]


@pytest.mark.parametrize(
    ("word", "where", "fix"),
    [
        ("actor_rollout_ref.rollout.temperature=0", "sampler.temperature", "use a number > 0.0"),
        ("optim.lr_scheduler_type=linear", "optim.lr_scheduler_type", "use constant or cosine"),  # not what is refused
    ],
)
def test_what_cannot_be_is_answered_with_what_can(word: str, where: str, fix: str) -> None:
    (problem,) = try_resolve([*VERL, "algorithm=grpo", word]).problems
    assert (problem.where, problem.fix) == (where, fix)
