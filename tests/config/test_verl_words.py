"""Arguments in verl's spelling, with engine=verl: what each is taken as, and what is said of it."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest
import yaml

from launcher.config.resolve import Resolution, try_resolve

TABLE: dict[str, dict[str, str]] = yaml.safe_load(Path(__file__).with_name("verl_words.yaml").read_text())
EXTRA = "engine.extra"
ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
MODEL = "actor_rollout_ref.model"
MOST = "algorithm.filter_groups.max_num_gen_batches"


def resolved(words: Collection[str], algorithm: str = "grpo") -> Resolution:
    """These words, and what a run of verl needs beside them."""
    given = {
        "algorithm": ("adv_estimator", "loss_mode", "filter_groups.enable"), "model": (f"{MODEL}.path", "pretrain"),
        "data": ("train_files",), "sampler.n": (f"{ROLLOUT}.n=",),
    }  # fmt: skip
    some = {"algorithm": algorithm, "model": "Qwen/Qwen3-0.6B", "data": "gsm8k", "sampler.n": "4"}
    if algorithm == "sft":
        some = {"algorithm": "sft", "model": "Qwen/Qwen3-0.6B", "data": "reverse"}
    text = " ".join(words)
    needed = [f"{key}={value}" for key, value in some.items() if not any(part in text for part in given[key])]
    return try_resolve([*needed, "engine=verl", *words])


def extra(*typed: str) -> list[str]:
    found = resolved(typed)
    assert not found.problems and found.run, found.problems
    return list(found.run.engine.extra)  # type: ignore[attr-defined]


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
    result = resolved(words, algorithm)
    found = {word: message_of(word, result) for word in words}
    differ = {word: (found[word], want) for word, want in words.items() if not found[word].startswith(want)}
    assert not differ


def test_what_is_passed_on_stands_in_one_setting() -> None:
    """A limit of sampling, too, as sampling without one is verl's; and neither 10 steps nor ten times all of them are
    known to be meant by a share of 10."""
    words = ["trainer.balance_batch=True", f"{ROLLOUT}.mode=async", f"+{ROLLOUT}.engine_kwargs.vllm.a=1"]
    assert extra(f'engine.extra=["{words[0]}"]', *words[1:]) == words
    warmup = f"{ACTOR}.optim.lr_warmup_steps_ratio=10"
    for most in (5, 0, -1):
        assert extra("algorithm.filter_groups.enable=true", f"{MOST}={most}", warmup) == [f"{MOST}={most}", warmup]


MEGATRON = f"{ACTOR}.megatron.tensor_model_parallel_size"


@pytest.mark.parametrize("backend", ["engine.strategy=megatron", "model_engine=megatron", f"{ACTOR}.strategy=megatron"])
def test_keys_of_megatron_are_known_where_it_trains(backend: str) -> None:
    assert extra(backend, f"{MEGATRON}=2") == [f"{MEGATRON}=2"]


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        (f"{ROLLOUT}.gpu_memory_utilisation=0.5", f"{ROLLOUT}.gpu_memory_utilisation: verl has no such key;"
                                                  f" did you mean {ROLLOUT}.gpu_memory_utilization?"),
        (f"{MEGATRON}=2", f"{MEGATRON}: verl has no such key; did you mean {ROLLOUT}.tensor_model_parallel_size?"),
        (f"{ROLLOUT}.n=five", f"sampler.n: got 'five' (typed as {ROLLOUT}.n=five); use a whole number"),
        (f"{ROLLOUT}.temperature=0",
         f"sampler.temperature: got 0 (typed as {ROLLOUT}.temperature=0); use a number > 0.0"),
        ("optim.lr_scheduler_type=linear",
         "optim.lr_scheduler_type: verl has no linear schedule; use constant or cosine"),
        ("algorithm=ppo algorithm.adv_estimator=grpo", "algorithm: chosen twice, as algorithm=ppo and algorithm=grpo"
                                                       " (typed as algorithm.adv_estimator=grpo); keep one of the two"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_answered_with_what_can(typed: str, line: str) -> None:
    assert [str(problem) for problem in resolved(typed.split()).problems] == [line]


def test_a_choice_may_be_a_kind_of_what_a_word_says() -> None:
    assert not resolved(["algorithm=dapo", "algorithm.adv_estimator=grpo"]).problems


@pytest.mark.parametrize("words", [[f"{MODEL}.lora_rank=0", f"{MODEL}.lora_alpha=0"], [f"{MODEL}.lora_alpha=0"]])
def test_an_alpha_without_adapters_is_left_out(words: list[str]) -> None:
    found = resolved(words)
    assert not found.problems and found.run and found.run.model.lora_rank == 0
    assert next(one for one in found.taken if "alpha" in one.typed.text).words == ()


def test_the_parts_of_a_length_penalty_stay_together() -> None:
    """verl reads `enable` of each mapping, also where only the other keys say that there is one."""
    buffer = "+reward.reward_kwargs.overlong_buffer_cfg"
    typed = [f"{buffer}.enable=true", f"{buffer}.len=64", f"{buffer}.penalty_factor=1.0", f"{buffer}.log=false"]
    manager = ["reward.reward_manager.name=dapo", "+reward.reward_kwargs.max_resp_len=256"]
    assert extra(*manager, *typed) == [*manager, *typed]
    found = resolved(typed, "dapo")
    assert not found.problems and found.run and found.run.algorithm.overlong_buffer_len == 64  # type: ignore[attr-defined]
