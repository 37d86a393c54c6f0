"""verl's arguments of a run: one pure function for each section of its config, `{verl's key: value}`.

The keys are those of verl 0.9.1. What follows from other values (micro-batches that must divide, a frequency that means
"at the end") is computed here; everything else is passed on under the name that verl has for it.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.algorithms.dapo import DAPO
from launcher.algorithms.grpo import GRPO
from launcher.algorithms.gspo import GSPO
from launcher.algorithms.ppo import PPO
from launcher.core.checkpoints import name_of
from launcher.core.overrides import is_plain, literal, quoted
from launcher.engines.verl.sampler import VerlSampler
from launcher.models.pretrained import Pretrained
from launcher.rewards.combined import Auto
from launcher.rewards.model import RewardModel
from launcher.rewards.python import Python
from launcher.spec.model import Model
from launcher.spec.reward import Reward
from launcher.spec.run import Optim, RunSpec, Trainer

if TYPE_CHECKING:
    from launcher.engines.verl import Verl

Section = dict[str, Any]
PPO_MAIN, SFT_MAIN, SFT_ON_RAY = "verl.trainer.main_ppo", "verl.trainer.sft_trainer", "verl.trainer.sft_trainer_ray"
ACTOR, ROLLOUT, REF = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref"
SFT_DATA_KEY = "messages"
WORK, SAVED, VALIDATION, STATE = "verl", "saved", "validation", "state"
"""Folder in the run's that holds verl's own files; in it, what it saves and its held-out answers. Folder of a
checkpoint that holds what verl saved."""
PLUGINS = "VERL_USE_EXTERNAL_MODULES"
"""Variable that names Python modules which every process of verl imports."""
AT_THE_END = 10**9
"""A frequency that comes at the last step only: for verl, -1 and 0 mean never."""
NEVER = -1
NO_DUAL_CLIP = 1e9
"""A dual clip that clips nothing: verl has no other way to disable it."""
DTYPES = {"float32": "fp32", "bfloat16": "bf16"}
ESTIMATORS = {"k1": "kl", "k2": "mse", "k3": "low_var_kl"}
BRIDGE = Path(__file__).with_name("reward_bridge.py")


def program(run: RunSpec) -> str:
    """The Python module that trains it: SFT on one machine has a process for each GPU, started by torchrun; on several,
    Ray starts them."""
    if run.algorithm.sampled:
        return PPO_MAIN
    return SFT_MAIN if run.hardware.nnodes == 1 else SFT_ON_RAY


def arguments(run: RunSpec, engine: Verl, folder: Path, start: int = 0) -> list[str]:
    """What stands after the program, for the run in `folder` that goes on after step `start`. What `engine.extra` gives
    takes the place of ours."""
    sections = rl_sections(run, engine) if run.algorithm.sampled else sft_sections(run, engine)
    sections += [
        paths(run, folder.absolute()),
        resuming(folder.absolute(), start, engine.resume_from_path),
        joining(run),
    ]
    given = {key: value for section in sections for key, value in section.items()}
    other = {key_of(word) for word in engine.extra}
    return [*(to_word(key, value) for key, value in given.items() if key_of(key) not in other), *engine.extra]


def key_of(word: str) -> str:
    """The key of an argument, without the signs by which Hydra adds or removes it."""
    return word.lstrip("+~").partition("=")[0]


def to_word(key: str, value: Any) -> str:
    """`key=value` as Hydra reads it."""
    return f"{key}={literal(value, lambda text: text if text and is_plain(text) else quoted(text))}"


# ---- sections of main_ppo


def rl_sections(run: RunSpec, engine: Verl) -> list[Section]:
    megatron = engine.strategy == "megatron"
    made = [strategy(engine), rl_data(run), model("actor_rollout_ref.model", run.model, megatron), actor(run, megatron)]
    made += [reference(run, megatron), rollout(run), algorithm(run), reward(run), trainer(run)]
    return [*made, critic(run, megatron)] if run.has_critic else made


def strategy(engine: Verl) -> Section:
    if engine.strategy == "megatron":
        return {"model_engine": "megatron"}
    return {f"{ACTOR}.strategy": engine.strategy, "critic.strategy": engine.strategy}


def rl_data(run: RunSpec) -> Section:
    data = run.data
    return {
        "data.train_batch_size": data.train_batch_size,
        "data.max_prompt_length": data.max_prompt_length,
        "data.max_response_length": data.max_response_length,
        "data.shuffle": data.shuffle,
        "data.seed": run.seed,
        **_truncation(run),
        **({"data.apply_chat_template_kwargs": data.template_args} if data.template_args else {}),
    }


def _truncation(run: RunSpec) -> Section:
    filtered = run.data.truncation == "filter"
    return {
        "data.filter_overlong_prompts": filtered,
        "data.truncation": "error" if filtered else run.data.truncation,
    }


def model(prefix: str, spec: Model, megatron: bool = False) -> Section:
    """The model below `prefix`: the policy's, the critic's or that of SFT."""
    assert isinstance(spec, Pretrained)
    adapters: Section = {
        f"{prefix}.lora_rank": spec.lora_rank,
        f"{prefix}.lora_alpha": spec.lora_alpha,
        f"{prefix}.target_modules": spec.peft_targets,
    }
    if megatron:  # which reads names of its own (megatron_peft.py), and has names of its own for layers
        adapters = {f"{prefix}.lora.rank": spec.lora_rank, f"{prefix}.lora.alpha": spec.lora_alpha}
        if spec.target_modules != ("all-linear",):
            adapters[f"{prefix}.lora.target_modules"] = spec.target_modules
    return {
        f"{prefix}.path": spec.path,
        f"{prefix}.enable_gradient_checkpointing": spec.enable_gradient_checkpointing,
        f"{prefix}.trust_remote_code": spec.trust_remote_code,
        **(adapters if spec.lora_rank else {}),
    }


def actor(run: RunSpec, megatron: bool) -> Section:
    """The policy's update: batches, clipping, KL and optimizer."""
    spec = run.algorithm
    assert isinstance(spec, GRPO | PPO)
    kl_loss = spec.kl_loss_coef if isinstance(spec, GRPO) else 0.0
    with_kl = {f"{ACTOR}.kl_loss_coef": kl_loss, f"{ACTOR}.kl_loss_type": ESTIMATORS[spec.kl_loss_type]} if (
        isinstance(spec, GRPO) and kl_loss) else {}  # fmt: skip
    return {
        f"{ACTOR}.ppo_mini_batch_size": run.mini_batch_size,
        f"{ACTOR}.ppo_epochs": run.trainer.ppo_epochs,
        **_micro_batches(run, ACTOR, "ppo_micro_batch_size_per_gpu", "ppo_max_token_len_per_gpu", "use_dynamic_bsz"),
        f"{ACTOR}.clip_ratio": spec.clip_ratio_low,
        f"{ACTOR}.clip_ratio_low": spec.clip_ratio_low,
        f"{ACTOR}.clip_ratio_high": spec.clip_ratio_high,
        f"{ACTOR}.clip_ratio_c": NO_DUAL_CLIP if spec.clip_ratio_c is None else spec.clip_ratio_c,
        f"{ACTOR}.policy_loss.loss_mode": "gspo" if isinstance(spec, GSPO) else "vanilla",
        f"{ACTOR}.loss_agg_mode": spec.loss_agg_mode,
        **({f"{ACTOR}.loss_scale_factor": _whole(spec.loss_scale_factor)} if spec.loss_scale_factor else {}),
        f"{ACTOR}.entropy_coeff": spec.entropy_coeff,
        f"{ACTOR}.use_kl_loss": bool(kl_loss),
        **with_kl,
        **({} if megatron else _sharded(run, f"{ACTOR}.fsdp_config")),
        f"{ACTOR}.data_loader_seed": run.seed,
        **optimizer(f"{ACTOR}.optim", run.optim, megatron),
    }


def _whole(value: float) -> float | int:
    """Without its point where it is a whole number: verl's setting is one."""
    return int(value) if value == int(value) else value


def _sharded(run: RunSpec, prefix: str) -> Section:
    """Number format of the weights; Megatron keeps them in bfloat16, with an optimizer in float32."""
    return {f"{prefix}.model_dtype": DTYPES[run.model.dtype], f"{prefix}.seed": run.seed}


def _micro_batches(run: RunSpec, prefix: str, rows: str, tokens: str, dynamic: str) -> Section:
    """By rows, of which verl wants a divisor of those of an update in one process; or by tokens."""
    if run.trainer.max_tokens_per_gpu:
        return {f"{prefix}.{dynamic}": True, f"{prefix}.{tokens}": run.trainer.max_tokens_per_gpu}
    return {f"{prefix}.{dynamic}": False, f"{prefix}.{rows}": run.micro_batch_rows}


def optimizer(prefix: str, spec: Optim, megatron: bool) -> Section:
    """AdamW and its schedule."""
    common = {
        f"{prefix}.lr": spec.lr,
        f"{prefix}.weight_decay": spec.weight_decay,
        f"{prefix}.betas": spec.betas,
        f"{prefix}.clip_grad": spec.clip_grad,
        f"{prefix}.lr_warmup_steps": spec.lr_warmup_steps or NEVER,
    }
    eps = {f"{prefix}.override_optimizer_config": {"eps": spec.adam_eps}} if spec.adam_eps != Optim().adam_eps else {}
    if megatron:
        decays = {f"{prefix}.lr_decay_style": spec.lr_scheduler_type, f"{prefix}.min_lr": spec.min_lr_ratio * spec.lr}
        return {**common, **decays}
    return {
        **common,
        f"{prefix}.lr_scheduler_type": spec.lr_scheduler_type,
        f"{prefix}.min_lr_ratio": spec.min_lr_ratio,
        **eps,
    }


def reference(run: RunSpec, megatron: bool) -> Section:
    """The frozen model's log-probabilities."""
    if "reference" not in run.algorithm.needs:
        return {}
    return {**_log_probs(run, REF), **({} if megatron else _sharded(run, f"{REF}.fsdp_config"))}


def _log_probs(run: RunSpec, prefix: str) -> Section:
    return _micro_batches(
        run, prefix, "log_prob_micro_batch_size_per_gpu", "log_prob_max_token_len_per_gpu", "log_prob_use_dynamic_bsz"
    )


def rollout(run: RunSpec) -> Section:
    """Sampling, in training and in validation."""
    sampler = run.sampler
    assert isinstance(sampler, VerlSampler)
    greedy = not sampler.val_temperature
    return {
        f"{ROLLOUT}.name": sampler.name,
        f"{ROLLOUT}.n": sampler.n,
        f"{ROLLOUT}.temperature": sampler.temperature,
        f"{ROLLOUT}.top_p": sampler.top_p,
        f"{ROLLOUT}.top_k": sampler.top_k,
        f"{ROLLOUT}.tensor_model_parallel_size": sampler.tensor_parallel_size,
        f"{ROLLOUT}.gpu_memory_utilization": sampler.gpu_memory_utilization,
        f"{ROLLOUT}.max_num_seqs": sampler.max_num_seqs,
        f"{ROLLOUT}.max_model_len": sampler.max_model_len,
        f"{ROLLOUT}.enforce_eager": sampler.enforce_eager,
        f"{ROLLOUT}.seed": run.seed,
        f"{ROLLOUT}.val_kwargs.n": sampler.val_n,
        f"{ROLLOUT}.val_kwargs.do_sample": not greedy,
        f"{ROLLOUT}.val_kwargs.temperature": sampler.val_temperature,
        **_log_probs(run, ROLLOUT),
    }


def algorithm(run: RunSpec) -> Section:
    """Advantages, and the KL penalty in the reward."""
    spec = run.algorithm
    if isinstance(spec, PPO):
        kl = {
            "algorithm.kl_penalty": ESTIMATORS[spec.kl_penalty],
            "algorithm.kl_ctrl.type": spec.kl_ctrl,
            "algorithm.kl_ctrl.kl_coef": spec.kl_coef,
            "algorithm.kl_ctrl.target_kl": spec.target_kl,
            "algorithm.kl_ctrl.horizon": spec.horizon,
        }
        return {
            "algorithm.adv_estimator": "gae",
            "algorithm.gamma": spec.gamma,
            "algorithm.lam": spec.lam,
            "algorithm.use_kl_in_reward": bool(spec.kl_coef),
            **(kl if spec.kl_coef else {}),
        }
    assert isinstance(spec, GRPO)
    return {
        "algorithm.adv_estimator": "grpo",
        "algorithm.norm_adv_by_std_in_grpo": spec.norm_adv_by_std_in_grpo,
        "algorithm.use_kl_in_reward": False,
        **(_group_filter(spec) if isinstance(spec, DAPO) else {}),
    }


def _group_filter(spec: DAPO) -> Section:
    """Only groups with right and wrong answers, judged by the score without the length penalty."""
    made: Section = {
        "algorithm.filter_groups.enable": True,
        "algorithm.filter_groups.metric": "acc" if spec.overlong_buffer_len else "reward",
    }
    if spec.max_num_gen_batches != DAPO().max_num_gen_batches:
        made["algorithm.filter_groups.max_num_gen_batches"] = spec.max_num_gen_batches
    if spec.overlong_buffer_len:
        made |= {
            "reward.reward_manager.name": "dapo",
            "+reward.reward_kwargs.max_resp_len": spec.max_response_length,
            "+reward.reward_kwargs.overlong_buffer_cfg.enable": True,
            "+reward.reward_kwargs.overlong_buffer_cfg.len": spec.overlong_buffer_len,
            "+reward.reward_kwargs.overlong_buffer_cfg.penalty_factor": spec.overlong_penalty_factor,
            "+reward.reward_kwargs.overlong_buffer_cfg.log": False,
        }
    return made


def critic(run: RunSpec, megatron: bool) -> Section:
    """The value model: all of its weights are trained, as the policy's model with a new output layer."""
    spec, tokens = run.algorithm, run.trainer.max_tokens_per_gpu
    assert isinstance(spec, PPO)
    return {
        **model("critic.model", replace(run.model, lora_rank=0)),
        "critic.ppo_mini_batch_size": run.mini_batch_size,
        "critic.ppo_epochs": run.trainer.ppo_epochs,
        **_micro_batches(run, "critic", "ppo_micro_batch_size_per_gpu", "ppo_max_token_len_per_gpu", "use_dynamic_bsz"),
        **({"+critic.ppo_infer_max_token_len_per_gpu": tokens} if tokens else {}),  # V1 reads it for updates, too
        "critic.cliprange_value": spec.cliprange_value,
        "critic.data_loader_seed": run.seed,
        **({} if megatron else _sharded(run, "critic.fsdp")),
        **optimizer("critic.optim", run.critic.optim, megatron),
    }


def reward(run: RunSpec) -> Section:
    """A reward model, the user's own function, verl's rules, or ours in a process beside verl's."""
    function = "reward.custom_reward_function"
    if isinstance(run.reward, RewardModel):
        prefix, sampler = "reward.reward_model", run.sampler
        assert isinstance(sampler, VerlSampler)
        return {
            f"{prefix}.enable": True,
            f"{prefix}.model_path": run.reward.path,
            f"{prefix}.rollout.name": sampler.name,
            f"{prefix}.rollout.tensor_model_parallel_size": sampler.tensor_parallel_size,
        }
    if isinstance(run.reward, Python):
        given = {f"+{function}.reward_kwargs.{name}": value for name, value in run.reward.kwargs.items()}
        return {f"{function}.path": run.reward.path, f"{function}.name": run.reward.name, **given}
    return {f"{function}.path": str(BRIDGE), f"{function}.name": "compute_score"} if uses_bridge(run.reward) else {}


def uses_bridge(reward: Reward) -> bool:
    """Whether ours scores, in a process beside verl's: not a reward model, nor the user's own function; and rules that
    are chosen by `data_source` are verl's own, where no route is added."""
    return not isinstance(reward, RewardModel | Python) and not (isinstance(reward, Auto) and not reward.routes)


def trainer(run: RunSpec) -> Section:
    """Steps, frequencies, names and hardware; what RL and SFT share."""
    spec, held_out = run.trainer, run.data.held_out != 0
    shared = {
        "trainer.project_name": spec.project_name,
        **({"trainer.experiment_name": spec.experiment_name} if spec.experiment_name else {}),
        **_length(spec),
        "trainer.save_freq": spec.save_freq if spec.save_freq > 0 else AT_THE_END,
        "trainer.test_freq": (spec.test_freq if spec.test_freq > 0 else AT_THE_END) if held_out else NEVER,
        "trainer.logger": ("console", "file"),
        "trainer.nnodes": run.hardware.nnodes,
        "trainer.n_gpus_per_node": run.hardware.processes_per_node,
    }
    if not run.algorithm.sampled:
        return shared
    return {
        **shared,
        "trainer.val_before_train": spec.val_before_train and held_out,
        "trainer.critic_warmup": spec.critic_warmup,
    }


def _length(spec: Trainer) -> Section:
    """verl ends after its epochs, too, so these are enough for the steps."""
    steps = spec.total_training_steps
    if steps is None:
        return {"trainer.total_epochs": spec.total_epochs}
    return {"trainer.total_epochs": steps, "trainer.total_training_steps": steps}


# ---- sections of sft_trainer


def sft_sections(run: RunSpec, engine: Verl) -> list[Section]:
    made = [sft_data(run), model("model", run.model, engine.strategy == "megatron"), sft_engine(run, engine)]
    return [*made, trainer(run), {"trainer.seed": run.seed}]


def sft_data(run: RunSpec) -> Section:
    data = run.data
    return {
        "data.train_batch_size": data.train_batch_size,
        "data.max_length": run.max_sequence_length,
        "data.truncation": "error" if data.truncation in ("error", "filter") else data.truncation,
        "data.messages_key": SFT_DATA_KEY,
        **_sft_micro_batches(run),
        **({"data.apply_chat_template_kwargs": data.template_args} if data.template_args else {}),
    }


def _sft_micro_batches(run: RunSpec) -> Section:
    if tokens := run.trainer.max_tokens_per_gpu:
        return {"data.use_dynamic_bsz": True, "data.max_token_len_per_gpu": tokens}
    return {"data.use_dynamic_bsz": False, "data.micro_batch_size_per_gpu": run.micro_batch_rows}


def sft_engine(run: RunSpec, engine: Verl) -> Section:
    if engine.strategy == "megatron":
        return {"engine": "megatron", "optim": "megatron", **optimizer("optim", run.optim, megatron=True)}
    return {
        "engine.strategy": engine.strategy,
        **_sharded(run, "engine"),
        **optimizer("optim", run.optim, megatron=False),
    }


# ---- paths, and what depends on where it goes on


def paths(run: RunSpec, folder: Path) -> Section:
    """Files of the run's folder."""
    work, held_out = folder / WORK, run.data.held_out != 0
    train, val = str(work / "train.parquet"), str(work / "val.parquet")
    made: Section = {"data.train_files": train, "trainer.default_local_dir": str(work / SAVED)}
    if not run.algorithm.sampled:
        return {**made, "data.val_files": val if held_out else None}
    made["data.val_files"] = val if held_out else train  # main_ppo opens some, also where it never validates
    if held_out:
        made["trainer.validation_data_dir"] = str(work / VALIDATION)
    if uses_bridge(run.reward):
        kwargs = "+reward.custom_reward_function.reward_kwargs"
        made |= {f"{kwargs}.python": sys.executable, f"{kwargs}.folder": str(folder)}
    return made


def resuming(folder: Path, start: int, other: str | None) -> Section:
    """From the run's own checkpoint of step `start`, or at its beginning from that of another program."""
    path = str(state_folder(folder, start)) if start else other
    if path is None:
        return {"trainer.resume_mode": "disable"}
    return {"trainer.resume_mode": "resume_path", "trainer.resume_from_path": path}


def state_folder(folder: Path, step: int) -> Path:
    """verl's own files in the checkpoint of a step."""
    return folder / "checkpoints" / name_of(step) / STATE / f"global_step_{step}"


def joining(run: RunSpec) -> Section:
    """Which Ray cluster verl joins; `local` starts one for this run."""
    return {"+ray_kwargs.ray_init.address": run.cluster.remote_address or "local"} if run.algorithm.sampled else {}


def log_file(folder: Path) -> Path:
    """The file that verl's file logger writes, anew at each start."""
    return folder.absolute() / WORK / "metrics.jsonl"
