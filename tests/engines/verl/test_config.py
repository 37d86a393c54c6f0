"""verl's config from its arguments: what Hydra would refuse, and what it takes and verl cannot use."""

from __future__ import annotations

import pytest

from launcher.engines.verl.config.compose import VerlConfig, compose
from launcher.engines.verl.config.defaults import Program
from launcher.engines.verl.config.types import accepts
from launcher.engines.verl.rules import judge
from launcher.engines.verl.rules.table import read_table


def only(made: VerlConfig) -> str:
    assert len(made.problems) == 1, list(map(str, made.problems))
    return str(made.problems[0])


@pytest.mark.parametrize(
    ("program", "words", "key", "value"),
    [
        ("ppo", ["model_engine=megatron"], "actor_rollout_ref.actor.strategy", "megatron"),
        ("ppo", ["-cn", "ppo_megatron_trainer", "model_engine=veomni"], "critic.strategy", "veomni"),
        ("ppo", ["+ray_kwargs.ray_init.num_gpus=1"], "ray_kwargs.ray_init.num_gpus", 1),
        ("ppo", ["actor_rollout_ref.actor.ppo_mini_batch_size=32"], "critic.ppo_mini_batch_size", 32),
        ("ppo", ['trainer.logger=\'["console","file"]\''], "trainer.logger", '["console","file"]'),
        ("ppo", ["+trainer.total_training_steps=5"], "trainer.total_training_steps", 5),
        ("sft", ["engine=megatron", "optim=megatron"], "optim._target_", "verl.workers.config.McoreOptimizerConfig"),
        ("sft", ["trainer.save_freq=after_each_epoch"], "trainer.save_freq", "after_each_epoch"),
    ],
)
def test_arguments_are_applied_as_hydra_does(program, words, key, value):
    made = compose(words, program)
    assert made.problems == []
    found = made.config
    for part in key.split("."):
        found = found[part]
    assert found == value


@pytest.mark.parametrize(
    ("program", "word", "line"),
    [
        ("ppo", "data.train_batch_sise=8",
         "data.train_batch_sise: verl has no such key; did you mean data.train_batch_size?"),
        ("ppo", "optim.lr=1e-6", "optim.lr: verl has no such key; use actor_rollout_ref.actor.optim.lr"),
        ("ppo", "reward_model.reward_manager=dapo",
         "reward_model.reward_manager: composes, but main_ppo does not read it; use reward.reward_manager.name"),
        ("ppo", "+trainer.nnodes=2", "trainer.nnodes: + adds a key, and verl has this one; use trainer.nnodes="),
        ("ppo", "data.train_batch_size=abc",
         "data.train_batch_size: got 'abc', which verl takes and cannot use; use a whole number"),
        ("ppo", "actor_rollout_ref.rollout.n=8.0",
         "actor_rollout_ref.rollout.n: got 8.0, which verl takes and cannot use; use 8"),
        ("ppo", "actor_rollout_ref.actor.use_kl_loss=no",
         "actor_rollout_ref.actor.use_kl_loss: got 'no', which verl takes and cannot use; use true or false"),
        ("ppo", "actor_rollout_ref.actor.optim=adam",
         "actor_rollout_ref.actor.optim: 'adam' is one value, and this a section; "
         "use actor_rollout_ref.actor.optim.NAME="),
        ("ppo", "+actor_rollout_ref.actor.clip_ratio_hi=0.3",
         "actor_rollout_ref.actor.clip_ratio_hi: FSDPActorConfig of verl has no field clip_ratio_hi; "
         "did you mean actor_rollout_ref.actor.clip_ratio_high?"),
        ("ppo", "trainer.nnodes=1,2",
         "trainer.nnodes: several values: verl takes one config; use trainer.nnodes=[...] for a list, or one value"),
        ("ppo", "--config-name=dpo_trainer",
         "--config-name: verl has no config dpo_trainer; did you mean ppo_trainer?"),
        ("ppo", "~trainer.nnodes", "trainer.nnodes: verl reads it; leave ~ out, and give a value"),
        ("sft", "data.prompt_key=question", "data.prompt_key: verl has no such key; it reads only data.messages_key; "
         "write rows with a column of messages"),
        ("sft", "engine=fsdp2", "engine: there is no fsdp2; did you mean engine=fsdp?"),
    ],
)  # fmt: skip
def test_one_wrong_argument_is_one_problem(program, word, line):
    assert only(compose([word], program)) == line


def test_all_problems_are_named_at_once_and_the_rest_is_composed():
    made = compose(["data.train_batch_size=x", "a.b=1", "model_engine=no", "data.seed=3"], "ppo")
    assert [problem.where for problem in made.problems] == ["model_engine", "a.b", "data.train_batch_size"]
    assert made.config["data"]["train_batch_size"] == 1024
    assert made.config["data"]["seed"] == 3


def test_an_unknown_added_key_is_a_note():
    made = compose(["+mine.x=1", "reward_model.enable=False", "+reward.reward_kwargs.max_resp_len=5"], "ppo")
    assert made.problems == []
    assert [note.where for note in made.notes] == ["mine.x", "reward_model.enable"]


@pytest.mark.parametrize(("word", "message"), [
    ("data.train_files=~/a.parquet", "bash leaves ~ there"), ("data.val_files=[a,~/b]", "bash leaves ~ there"),
    ("--config-path=/", "composed by verl alone"), ("data.seed=${nowhere.x}", "nowhere"),
])  # fmt: skip
def test_what_verl_alone_or_nobody_can_read_is_named(word, message):
    assert message in only(compose([word], "ppo"))


# ---- keys of older versions of verl and of its forks, and misspelt ones

ACTOR, ROLLOUT, REF = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref"
OUT = "leave it out"
PPO = {
    f"{ACTOR}.use_token_level_loss": f"use {ACTOR}.loss_agg_mode=token-mean",
    "critic.model.fsdp_config.grad_offload": OUT,  # of a section that has another name today
    f"{REF}.param_offload": f"did you mean {REF}.fsdp_config.param_offload?",
    "custom_reward_function.overlong_buffer.len": "use +reward.reward_kwargs.overlong_buffer_cfg.len",
    "reward_model.model.fsdp_config.param_offload": OUT,
    f"{ROLLOUT}.limit_images": f"use +{ROLLOUT}.limit_images=",  # a field of its dataclass
    "algorithm.bypass_old_logprob_for_rollout": "use algorithm.rollout_correction.bypass_mode",
    # misspelt
    "reward_model.enabel": "did you mean reward.reward_model.enable?",
    f"{ACTOR}.ppo_mini_bach_size": f"did you mean {ACTOR}.ppo_mini_batch_size?",
    f"{ROLLOUT}.nn": f"did you mean {ROLLOUT}.nnodes?",
    "critic.lr": "did you mean critic.optim.lr?",
    # nothing is guessed from a name that tells nothing
    "retriever.enable": "use +retriever.enable= where code of yours reads it",
}
SFT = {
    "model.fsdp_config.cpu_offload": "use engine.param_offload",
    "data.val_batch_size": OUT,
    "lr": "did you mean optim.lr?",
}


@pytest.mark.parametrize(
    ("program", "more", "fixes"),
    [
        ("ppo", [], PPO),
        ("sft", [], SFT),
        ("ppo", ["model_engine=megatron"], {f"{REF}.param_offload": f"did you mean {REF}.megatron.param_offload?"}),
    ],
    ids=["ppo", "sft", "megatron"],
)
def test_a_key_that_verl_has_not_has_its_answer(program: Program, more: list[str], fixes: dict[str, str]) -> None:
    problems = compose([*more, *(f"{key}=1" for key in fixes)], program).problems
    assert {problem.where: problem.fix for problem in problems} == fixes and len(problems) == len(fixes)


@pytest.mark.parametrize(
    ("program", "value"), [("ppo", "null"), ("ppo", "0"), ("ppo", "1.5"), ("ppo", "[1]"), ("sft", "null"), ("sft", "0")]
)
def test_whatever_the_values_are_the_rules_can_be_asked(program, value):
    """Each value that verl cannot use is named, and the default stands in its place."""
    rows = (*read_table().sizes, *read_table().settings)
    made = compose([f"{key}={value}" for key in {key for row in rows for key in row.key.split()}], program)
    assert made.problems
    judge(made.config)


@pytest.mark.parametrize(
    ("annotation", "value", "taken"),
    [
        ("int", 3.0, False), ("int", True, False), ("float", 3, True), ("Optional[int]", None, True),
        ("str | float", [1], False), ("bool", 1, True), ("bool", "yes", False), ("list[str]", [1], False),
        ("Literal['a', 'b']", "c", False), ("tuple[float, float]", [0.9, 0.99], True), ("Any", object(), True),
    ],
)  # fmt: skip
def test_types_are_read_from_annotations(annotation, value, taken):
    assert accepts(annotation, value) is taken
