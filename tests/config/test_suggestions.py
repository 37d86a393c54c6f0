"""What is said of a name holds for the run it is typed for: nothing is suggested that would be refused."""

from __future__ import annotations

import pytest

from launcher.config.resolve import try_resolve
from launcher.preflight.plan import plan

GRPO = ["algorithm=grpo", "model=tiny", "data=reverse", "sampler.n=4"]


def lines(*words: str) -> list[str]:
    return [str(problem) for problem in try_resolve(words).problems]


@pytest.mark.parametrize(
    ("algorithm", "word", "fix"),
    [
        ("sft", "entropy_coef=0", "algorithm=dapo, dr_grpo, gigpo, grpo, ..."),
        ("grpo", "gamma=1.0", "algorithm.gamma is a setting of algorithm=ppo"),
        ("grpo", "reward_weights=[1,0.5]",
         "weights are given by name: reward=weighted reward.parts={NAME:WEIGHT,NAME:WEIGHT}"),
    ],
)  # fmt: skip
def test_a_name_of_what_the_run_has_not_is_one_line(algorithm: str, word: str, fix: str) -> None:
    (line,) = lines(f"algorithm={algorithm}", *GRPO[1:], word)
    assert line.startswith(f"{word.partition('=')[0]}: ") and line.endswith(fix)


def test_a_name_without_a_chosen_group_is_not_put_into_the_run() -> None:
    found = try_resolve([*GRPO[1:], "beta=0.1", "--lora_r", "16"])
    assert [problem.fix for problem in found.problems[:2]] == [
        "use algorithm.beta=0.1 (of algorithm=dpo, gspo_selfplay)",
        "use model.lora_rank=16 model.lora_alpha=32 (with TRL's model.lora_alpha=32 where none is typed)",
    ]  # fmt: skip
    assert [problem.where for problem in found.problems[2:]] == ["algorithm"]


@pytest.mark.parametrize(
    ("word", "fix"),
    [
        ("rollout.val_kwargs.top_p=0.7", "sampler.top_p and sampler.top_k hold in validation too; leave it out"),
        ("eval.sampling.temperature=0.7", "did you mean sampler.temperature?"),
        ("critic.optim.lr_warmup_steps_ratio=0.05", "use critic.optim.lr_warmup_steps=STEPS"),
        ("actor.kl_loss_type=low_var_kl", "use algorithm.kl_loss_type=k3"),
        ("actor.strategy=fsdp", "use engine.strategy=fsdp2"),
        ("trainer.learning_rate=1e-5", "use optim.lr=1e-5"),
    ],
)
def test_only_a_known_group_before_a_name_leaves_its_meaning(word: str, fix: str) -> None:
    (line,) = lines(*GRPO, word)
    assert line.endswith(fix)


def test_the_optimizer_of_others_is_answered() -> None:
    (line,) = lines(*GRPO, "--optim", "adamw_torch")
    assert line.endswith("the optimizer is AdamW; leave it out")


@pytest.mark.parametrize("name", ["train.tsv", "a/train.TSV", "train.csv.gz", "train.ndjson"])
def test_every_ending_of_files_of_rows_is_known(name: str) -> None:
    line = lines("algorithm=sft", "model=tiny", f"dataset={name}")[0]
    assert line.endswith(f"use data=files data.train_files={name}")


def test_a_choice_that_is_guessed_is_asked_for() -> None:
    assert lines("algorithm=sft", "model=tiny", "dataset=math_10k")[0].endswith("; did you mean data=math?")


def test_brackets_are_quoted_for_every_shell() -> None:
    assert lines(*GRPO, "adam_beta2=0.95")[0].endswith("use 'optim.betas=[0.9,0.95]'")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("data=files", "data.train_files=SFT.jsonl"), "data.train_files"),  # the stand-in's class is named SFT
        (("data=files", "data.train_files=grpo.jsonl"), "data.train_files"),
        (("data=reverse", "trainer.best_metric=SFT"), "trainer.best_metric"),
    ],
)
def test_a_text_that_holds_a_class_name_hides_nothing(words: tuple[str, ...], expected: str) -> None:
    found = plan(["algorithm=foo", "model=tiny", *words]).results
    assert expected in [result.subject for result in found if result.level == "FAIL"]
