"""The arithmetic of a plan, against numbers counted by hand, and against a real run."""

from __future__ import annotations

import pytest

from launcher.config.resolve import resolve
from launcher.preflight.checks import steps
from launcher.preflight.checks.context import Context, count_steps
from launcher.spec.run import RunSpec

GRPO = ["algorithm=grpo", "model=tiny", "data=reverse", "sampler.n=4", "data.train_batch_size=8"]


def run_of(*words: str) -> RunSpec:
    named = {word.partition("=")[0] for word in words}
    return resolve([*(word for word in GRPO if word.partition("=")[0] not in named), *words])


@pytest.mark.parametrize(
    ("words", "counted"),
    [
        # 100 rows make 12 whole batches of 8; 4 rows are left
        ([], {"answers": 32, "mini_batches": 1, "micro_batches": 2, "steps": 12, "left_over": 4, "checkpoints": 1}),
        (["trainer.total_training_steps=30"], {"steps": 30, "epochs": 2.5}),
        # 5, 10 and the end; with the validation before training
        (["trainer.save_freq=5", "trainer.test_freq=5"], {"checkpoints": 3, "validations": 4}),
        (["trainer.save_freq=6", "trainer.val_before_train=false"], {"checkpoints": 2, "validations": 1}),
        # two processes have 16 answers each; mini-batches of 2 prompts are 8 answers, 4 for each process
        (["hardware.nproc_per_node=2"], {"processes": 2, "micro_batches": 1}),
        (["trainer.ppo_mini_batch_size=2", "trainer.ppo_epochs=2"], {"mini_batches": 8, "micro_batches": 1}),
        # a prompt of 16 and an answer of 12 tokens: two rows in 60
        (["trainer.max_tokens_per_gpu=60"], {"micro_batches": 16}),
        (["algorithm=dpo", "sampler.n=1"], {"answers": 16}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_numbers(words: list[str], counted: dict[str, float]) -> None:
    found = count_steps(run_of(*words), 100, 20)
    assert {name: getattr(found, name) for name in counted} == counted


def test_what_depends_on_rows_is_not_known_without_them() -> None:
    found = count_steps(run_of(), None, None)
    assert (found.steps, found.steps_per_epoch, found.left_over, found.checkpoints) == (None, None, None, 1)
    assert count_steps(run_of("trainer.total_training_steps=7"), None, None).steps == 7


UNTESTED = ["sampler.val_temperature=0.6", "sampler.val_n=4", "trainer.log_val_generations=9"]


@pytest.mark.parametrize(
    ("words", "rows", "val_rows", "lines"),
    [
        (["data.train_batch_size=128"], 100, 20,
         ["FAIL data.train_batch_size: got 128, and the data has 100 rows; use 100"]),
        ([], 0, 20, ["FAIL data.train_batch_size: got 8, and the data has 0 rows; use more data or fewer processes"]),
        (["data.shuffle=false"], 100, 20,
         ["WARN data.train_batch_size: the last 4 of 100 rows are never trained on; use data.shuffle=true"]),
        (["optim.lr_warmup_steps=12"], 100, 20,
         ["WARN optim.lr_warmup_steps: rises over 12 steps, and the run has 12; use 1"]),
        (["algorithm=ppo", "trainer.critic_warmup=12"], 100, 20,
         ["FAIL trainer.critic_warmup: only the critic learns for 12 steps, and the run has 12; use at most 11"]),
        (["trainer.save_freq=13"], 100, 20,
         ["WARN trainer.save_freq: every 13 steps, and the run has 12: saved at the end only; use 3"]),
        (["trainer.save_freq=4", "trainer.test_freq=3", "trainer.best_metric=val/loss"], 100, 20,
         ["WARN trainer.test_freq: every 3 steps, and every 4 are saved: only what was validated can be the"
          " best checkpoint; use 4"]),
        (["trainer.best_metric=val/loss"], 100, 0, ["WARN trainer.best_metric: val/loss is never measured, as there are"
         " no held-out rows; set data.val_files"]),
        (UNTESTED, 100, 0, [f"WARN {word.replace('=', ': ')} has no effect, as nothing is held out; set data.val_files,"
         " or leave it out" for word in UNTESTED]),
        # well
        (UNTESTED, 100, 20, []),
        (["trainer.save_freq=4", "trainer.test_freq=2"], 100, 20, []),
        (["trainer.save_freq=4", "trainer.test_freq=3"], 100, 20, []),
        (["optim.lr_warmup_steps=11"], 100, 20, []),
    ],
)  # fmt: skip
def test_what_does_not_come_out_even(words: list[str], rows: int, val_rows: int, lines: list[str]) -> None:
    context = Context(run := run_of(*words), here=True)
    context.steps = count_steps(run, rows, val_rows)
    assert [f"{each.level} {each.line}" for each in steps.check(context) if each.level != "OK"] == lines
