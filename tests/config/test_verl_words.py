"""Arguments in verl's spelling, with engine=verl: what each is taken as, and what is said of it; and the table of
verl's keys, read in both directions: what is written of a run is read as the same run."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from pathlib import Path

import pytest
import yaml

from launcher.config.names import verl
from launcher.config.names.conversions import RunContext, convert
from launcher.config.names.table import Translation, table
from launcher.config.resolve import Resolution, resolve, try_resolve
from launcher.core.overrides import literal
from launcher.engines.verl import Verl, words
from launcher.engines.verl.config.defaults import load
from launcher.engines.verl.rules.settings import at
from launcher.spec.run import RunSpec

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


# ---- both directions

BASE = ["model=Qwen/Qwen3-0.6B", "data=gsm8k", "engine=verl", "hardware.n_gpus_per_node=2", "sampler.n=4"]
RUNS = {
    "grpo": ["algorithm.kl_loss_coef=0.02", "algorithm.kl_loss_type=k2", "sampler.val_temperature=0.7", "seed=3"],
    "dapo": ["algorithm.clip_ratio_c=10.0", "trainer.save_freq=5", "trainer.test_freq=7", "data.truncation=filter"],
    "dr_grpo": ["algorithm.loss_scale_factor=512", "optim.lr_scheduler_type=cosine", "optim.min_lr_ratio=0.1"],
    "gspo": ["sampler.top_k=20", "sampler.top_p=0.9", "optim.betas=[0.9,0.95]", "optim.lr_warmup_steps=4"],
    "ppo": ["algorithm.kl_ctrl=adaptive", "algorithm.kl_penalty=k3", "critic.optim.lr=2e-5", "algorithm.lam=0.9"],
    "sft": ["trainer.experiment_name=first", "optim.lr=3e-6", "optim.clip_grad=0.5", "data.template_args={a:1}"],
}
WRITTEN = [row for row in table().meanings if row.ppo or row.sft]


@cache
def run_of(algorithm: str) -> RunSpec:
    return resolve([*(BASE if algorithm != "sft" else BASE[:-1]), f"algorithm={algorithm}", *RUNS[algorithm]])


def test_every_row_is_of_a_setting_and_of_keys_that_there_are() -> None:
    """A setting of some algorithm, and keys of verl's config with the backend that the row is written for."""
    configs = {name: [load(name, verl_config, {}) for verl_config in names] for name, names in {
        "ppo": ("ppo_trainer", "ppo_megatron_trainer"), "sft": ("sft_trainer_engine",)}.items()}  # fmt: skip
    configs["sft"].append(load("sft", "sft_trainer_engine", {"engine": "megatron", "optim": "megatron"}))
    for row in WRITTEN:
        holders = [name for name in RUNS if not _is_missing(row.ours[0], run_of(name))]
        assert holders, row
        for name, keys in (("ppo", row.ppo), ("sft", row.sft)):
            for key in keys:
                groups = ("model_engine", "engine", "optim")
                assert key in groups or any(at(config, key, row) is not row for config in configs[name]), key


def _is_missing(setting: str, run: RunSpec) -> bool:
    try:
        words.value_of(run, setting)
    except KeyError:
        return True
    return False


@pytest.mark.parametrize("algorithm", RUNS)
def test_what_is_written_is_read_as_it_was(algorithm: str) -> None:
    run = run_of(algorithm)
    assert isinstance(run.engine, Verl)
    given = dict(word.lstrip("+").partition("=")[::2] for word in words.arguments(run, run.engine, Path("/run")))
    for row in WRITTEN:
        for key in row.ppo if run.algorithm.sampled else row.sft:
            is_read = key in row.names.get("verl", ()) and not row.unless and row.to not in ("is_on", "frequency")
            if key in given and is_read:
                value = words.value_of(run, row.ours[0])
                read = convert(row, given[key], RunContext())
                if (pattern := row.with_verl(given[key])) is not None:
                    read = pattern.replace("{}", given[key]).split()
                assert read is not None and (not read or _agrees(read, row, value)), (key, given[key], read, value)


def _agrees(read: list[str], row: Translation, value: object) -> bool:
    """Whether one of the words is the value."""
    own = next(word.partition("=")[2] for word in read if word.partition("=")[0] in row.ours).strip("'\"")
    if value is None:
        return own == "null"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(own) == value
    return own.replace(" ", "") in (str(value), literal(value).strip("'\"").replace(" ", ""))


def test_older_keys_have_an_answer_each() -> None:
    """Today's keys are none of the older ones, so that no answer leads to another answer."""
    read = verl.read()
    for program, known in read["renamed"].items():
        assert not {*known.values()} & {*known}
        assert not {*known} & {*read["gone"][program]}
    assert not {*read["unread"].values()} & {*read["unread"]}
