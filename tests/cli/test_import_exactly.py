"""What verl composes of an imported launch's run is what it composes of the script's own words, key by key."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.config.resolve import resolve
from launcher.core.overrides import key_of
from launcher.engines.verl.config.compose import compose
from launcher.engines.verl.passed_on import as_passed_on
from launcher.tools.importing.launch import config_of, differing, program_of
from launcher.tools.importing.script import import_script

A, R, M = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"
ROWS = "data.train_files=train.parquet data.val_files=val.parquet"
GRPO = (
    f"algorithm.adv_estimator=grpo {ROWS} {M}.path=a/b {R}.name=vllm {R}.n=5 trainer.n_gpus_per_node=8 "
    f"{A}.ppo_micro_batch_size_per_gpu=4 {R}.log_prob_micro_batch_size_per_gpu=8"
)
PPO = (
    f"{ROWS} {M}.path=a/b critic.model.path=a/b {R}.name=sglang "
    "critic.ppo_micro_batch_size_per_gpu=2 critic.optim.lr=2e-5"
)
RL = "verl.trainer.main_ppo"
SCRIPTS = {
    "grpo": f"{RL} {GRPO} {A}.use_kl_loss=True {A}.kl_loss_coef=0.01 {A}.kl_loss_type=mse",
    "ppo with kl": f"{RL} {PPO} algorithm.use_kl_in_reward=True algorithm.kl_ctrl.kl_coef=0.05 "
                   "algorithm.kl_penalty=low_var_kl algorithm.kl_ctrl.type=adaptive critic.cliprange_value=0.2",
    "all defaults": f"{RL} algorithm.adv_estimator=grpo",
    "dapo": f"{RL} {GRPO} algorithm.filter_groups.enable=True algorithm.filter_groups.metric=acc "
            "reward.reward_manager.name=dapo +reward.reward_kwargs.overlong_buffer_cfg.enable=True "
            "+reward.reward_kwargs.overlong_buffer_cfg.len=512 "
            "+reward.reward_kwargs.overlong_buffer_cfg.penalty_factor=1.0 "
            "+reward.reward_kwargs.max_resp_len=1024 data.max_response_length=1024",
    "gspo, clipped higher, dynamic, offloaded, validated, in turns":
        f"{RL} {GRPO} {A}.policy_loss.loss_mode=gspo {A}.clip_ratio_high=4e-4 {A}.clip_ratio_low=3e-4 "
        f"{A}.loss_agg_mode=seq-mean-token-mean {A}.clip_ratio_c=10.0 "
        f"{A}.use_dynamic_bsz=True {A}.ppo_max_token_len_per_gpu=24000 "
        f"{R}.log_prob_use_dynamic_bsz=True {R}.log_prob_max_token_len_per_gpu=48000 "
        f"{A}.fsdp_config.param_offload=True {M}.lora_rank=32 {M}.lora_alpha=64 {A}.strategy=fsdp2 "
        f"{A}.fsdp_config.optimizer_offload=True {A}.ulysses_sequence_parallel_size=2 "
        f"{R}.val_kwargs.do_sample=True {R}.val_kwargs.temperature=0.6 {R}.val_kwargs.n=4 {R}.val_kwargs.top_p=0.7 "
        "trainer.val_before_train=False trainer.test_freq=5 "
        f"{R}.multi_turn.enable=True {R}.multi_turn.max_assistant_turns=4 {R}.mode=async",
    # verl's servers read no do_sample, so its default must not make validation greedy
    "temperature of validation": f"{RL} {GRPO} {R}.val_kwargs.temperature=0.9 {R}.val_kwargs.n=8",
    "temperature of validation, not sampled": f"{RL} {GRPO} {R}.val_kwargs.temperature=0.9 {R}.val_kwargs.n=8 "
        f"{R}.val_kwargs.do_sample=False",
    "reward model": f"{RL} {GRPO} reward.reward_model.enable=True reward.reward_model.model_path=r/m "
                    "reward.reward_model.rollout.name=sglang reward.reward_model.rollout.gpu_memory_utilization=0.4",
    "older keys": f"{RL} {GRPO} custom_reward_function.path=my.py reward_model.reward_manager=naive "
                  "critic.model.fsdp_config.param_offload=True trainer.val_generations_to_log_to_wandb=4",
    "megatron": f"{RL} --config-path=config --config-name='ppo_megatron_trainer.yaml' {GRPO} "
                f"{A}.megatron.tensor_model_parallel_size=4 {A}.megatron.param_offload=True",
    "sft with lora": f"verl.trainer.sft_trainer {ROWS} model.path=a/b model.lora_rank=32 model.lora_alpha=64 "
                     "optim.lr_warmup_steps_ratio=0.1 optim.lr_scheduler_type=cosine data.use_dynamic_bsz=False",
    "sft of megatron": f"verl.trainer.sft_trainer {ROWS} model.path=a/b engine=megatron optim=megatron "
                       "engine.tensor_model_parallel_size=2 optim.lr_decay_style=cosine",
    "a reward model behind a function": f"{RL} {GRPO} reward.reward_model.enable=True "
        "reward.reward_model.model_path=r/m reward.reward_model.rollout.name=vllm "
        "reward.custom_reward_function.path=my.py reward.custom_reward_function.name=score",
    "a config of its own": f"{RL} --config-path=$PWD/config --config-name=own {GRPO}",
}  # fmt: skip
OWN = """hydra: {searchpath: [file://verl/trainer/config]}
defaults: [ppo_trainer, _self_]
data: {max_prompt_length: 1000, train_batch_size: 256}
actor_rollout_ref: {rollout: {multi_turn: {enable: true, max_assistant_turns: 5}}}
"""


def fill(folder: Path) -> None:
    (folder / "my.py").write_text(
        "def score(data_source, solution_str, ground_truth, extra_info=None, **more): return 1.0\n"
    )
    (folder / "config").mkdir()
    (folder / "config" / "own.yaml").write_text(OWN)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    fill(tmp_path)
    return tmp_path


WIDE = ("ppo with kl", "gspo, clipped higher, dynamic, offloaded, validated, in turns", "sft with lora")
"""Those that between them have most of the keys."""


@pytest.mark.parametrize("names", [WIDE, pytest.param([*SCRIPTS], marks=pytest.mark.long)], ids=["wide", "all"])
def test_the_config_is_the_scripts(folder: Path, names: tuple[str, ...]) -> None:
    (folder / "run.sh").write_text("".join(f"python3 -m {SCRIPTS[name]}\n" for name in names))
    launches = import_script(folder / "run.sh").launches
    wrong = {}
    for name, made in zip(names, launches, strict=True):
        assert not made.problems, (name, made.problems)
        run = resolve(made.arguments)
        words = [word for word in made.launch.words if not word.startswith("--")]
        more = ["model_engine=megatron"] if name == "megatron" else []
        more += [word for word in made.launch.words if "own" in name and word.startswith("--")]
        now = as_passed_on(words, program_of(run), more)[0]
        given = any(key_of(word) == f"{R}.name" for word in now) or name.startswith("sft")
        wanted = compose([*more, *([] if given else [f"{R}.name=vllm"]), *now], program_of(run)).config
        wrong[name] = [*differing(wanted, config_of(run))]
    assert {name: keys for name, keys in wrong.items() if keys} == {}


def test_a_training_backend_that_is_not_taken_is_refused(folder: Path) -> None:
    (folder / "run.sh").write_text(f"python3 -m verl.trainer.sft_trainer {ROWS} model.path=a/b engine=veomni\n")
    (made,) = import_script(folder / "run.sh").launches
    assert [problem.got for problem in made.problems if "backend veomni" in problem.got]


def test_a_config_that_the_script_writes_is_read(folder: Path) -> None:
    """And `+trainer.val_before_train=False` of older scripts, which verl 0.9.1 refuses for its plus, is set."""
    heredoc = "mkdir -p made a\ncat > made/mine.yaml <<EOF\n" + OWN + "trainer: {save_freq: $(date +%d)}\nEOF\n"
    older = ["trainer.val_before_train=False", "data.shuffle=False", "data.seed=7"]
    words = f"-cp $PWD/a -cn ../made/mine.yaml {GRPO} {' '.join(f'+{word}' for word in older)}"
    (folder / "run.sh").write_text(f"{heredoc}python3 -m {RL} {words}\n")
    (made,) = import_script(folder / "run.sh").launches
    assert not made.problems, made.problems
    given = [f"--config-path={folder / 'config'}", "--config-name=own", *GRPO.split(), *older]
    wanted, found = compose(given, "ppo").config, config_of(resolve(made.arguments))
    wanted["actor_rollout_ref"]["rollout"]["name"] = "vllm"
    assert [*differing(wanted, found)] == []
    assert (found["trainer"]["val_before_train"], found["data"]["shuffle"], found["data"]["seed"]) == (False, False, 7)
    assert any(each.before.startswith("+") and "has this key" in each.message for each in made.changes)
    assert [note.partition(": ")[2] for note in made.notes] == [
        "mine.yaml: trainer: {save_freq: {date +%d}} is left out; only running the script tells {date +%d}"
    ]
    assert not (folder / "made").exists()
