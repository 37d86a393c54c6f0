"""verl's arguments for a run: those of the table of names (`config/names/verl.yaml`), and those derived from several
settings, one function for each subject.

The keys are those of verl 0.9.1.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import fields
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.config.names.table import Translation, table
from launcher.config.names.verl import Program
from launcher.core.checkpoints import name_of
from launcher.core.overrides import is_plain, key_of, literal, quoted
from launcher.models.pretrained import Pretrained
from launcher.rewards.combined import Auto
from launcher.rewards.model import RewardModel
from launcher.rewards.python import Python
from launcher.spec.reward import Reward
from launcher.spec.run import Optim, RunSpec

if TYPE_CHECKING:
    from launcher.engines.verl import Verl

Section = dict[str, Any]
MODULES = {"ppo": "verl.trainer.main_ppo", "sft": "verl.trainer.sft_trainer"}
SFT_ON_RAY = "verl.trainer.sft_trainer_ray"
ACTOR, ROLLOUT, REF = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref"
FUNCTION = "reward.custom_reward_function"
SFT_DATA_KEY = "messages"
WORK, SAVED, VALIDATION, TRAINING, STATE = "verl", "saved", "validation", "training", "state"
"""Folder of verl's files in the run's folder; in it, the folders of its checkpoints, held-out answers and training
answers. Last, the folder of a checkpoint that holds what verl saved."""
PLUGINS = "VERL_USE_EXTERNAL_MODULES"
"""Variable that names Python modules which every process of verl imports."""
AT_THE_END = 10**9
"""A frequency that comes at the last step only: for verl, -1 and 0 mean never."""
NEVER = -1
BRIDGE = Path(__file__).with_name("reward_bridge.py")


def program(run: RunSpec) -> Program:
    return "ppo" if run.algorithm.sampled else "sft"


def module(run: RunSpec) -> str:
    """The Python module that trains it: SFT on one machine has a process for each GPU, started by torchrun; on several,
    Ray starts them."""
    return SFT_ON_RAY if program(run) == "sft" and run.hardware.nnodes > 1 else MODULES[program(run)]


def arguments(run: RunSpec, engine: Verl, folder: Path, start: int = 0) -> list[str]:
    """What follows the program on the command line, for the run in `folder`, resumed after step `start`. Keys in
    `engine.extra` replace ours."""
    folder = folder.absolute()
    settings = {
        **(own_settings(run) or {}),
        **_from_table(run, engine),
        **_micro_batches(run),
        **_optimizers(run, engine),
        **_adapters(run, engine),
        **_length(run),
        **_paths(run, folder),
        **_resume(folder, start, engine.resume_from_path),
        "trainer.logger": ("console", "file"),
    }
    if run.algorithm.sampled:
        settings |= {**_group_filter(run), **_reward(run, folder)}
        settings["+ray_kwargs.ray_init.address"] = run.cluster.remote_address or "local"  # `local`: one for this run
    else:
        settings["data.messages_key"] = SFT_DATA_KEY
    extra_keys = {key_of(word) for word in engine.extra}
    return [*(to_word(key, value) for key, value in settings.items() if key_of(key) not in extra_keys), *engine.extra]


def to_word(key: str, value: Any) -> str:
    """`key=value` as Hydra reads it."""
    return f"{key}={literal(value, lambda text: text if text and is_plain(text) else quoted(text))}"


# ---- the table


def own_settings(run: RunSpec) -> Mapping[str, object] | None:
    """verl's settings that choose the loss of the run's algorithm; None where verl has no such loss. Inherited settings
    do not count: a subclass changes the algorithm."""
    settings: Mapping[str, object] | None = vars(type(run.algorithm)).get("verl")
    return settings


def value_of(run: RunSpec, setting: str) -> Any:
    """The value of `sampler.n`. Raises `KeyError` where the run's algorithm has no such field."""
    group, _, name = setting.partition(".")
    if group == "algorithm" and name not in {field.name for field in fields(run.algorithm)}:  # type: ignore[arg-type]
        raise KeyError(setting)
    return attrgetter(setting)(run)


def _from_table(run: RunSpec, engine: Verl) -> Section:
    settings: Section = {}
    for row in table().meanings:
        keys = row.ppo if run.algorithm.sampled else row.sft
        try:
            if keys and _is_written(row, run, engine):
                value = _convert(row, value_of(run, row.ours[0]), run)
                settings |= {key: value for key in keys if _has_network(key, run)}
        except KeyError:  # the field of another algorithm
            continue
    return settings


def _is_written(row: Translation, run: RunSpec, engine: Verl) -> bool:
    if row.when in ("fsdp", "megatron"):
        return (engine.strategy == "megatron") == (row.when == "megatron")
    return not row.when or bool(value_of(run, row.when))


def _has_network(key: str, run: RunSpec) -> bool:
    """Whether the run has the model that a key is about."""
    needed = {"critic.": "critic", f"{REF}.": "reference"}
    return all(need in run.algorithm.needs for start, need in needed.items() if key.startswith(start))


def _convert(row: Translation, value: Any, run: RunSpec) -> Any:
    if not isinstance(row.to, str):
        return row.to.get(value, value) if isinstance(value, str | int | float | None) else value
    if row.to == "frequency":
        if row.ours == ("trainer.test_freq",) and run.data.held_out == 0:
            return NEVER
        return value if value > 0 else AT_THE_END
    if row.to == "held_out":
        return value and run.data.held_out != 0
    return {"is_on": bool, "whole": lambda number: int(number) if number == int(number) else number}[row.to](value)


# ---- what follows from several settings


def _micro_batches(run: RunSpec) -> Section:
    """Micro-batch sizes in tokens, or in rows: for verl a divisor of an update's rows in one process."""
    tokens, rows = run.trainer.max_tokens_per_gpu, run.micro_batch_rows
    log_prob = ("log_prob_use_dynamic_bsz", "log_prob_max_token_len_per_gpu", "log_prob_micro_batch_size_per_gpu")
    update = ("use_dynamic_bsz", "ppo_max_token_len_per_gpu", "ppo_micro_batch_size_per_gpu")
    sft = ("use_dynamic_bsz", "max_token_len_per_gpu", "micro_batch_size_per_gpu")
    sections = {ACTOR: update, ROLLOUT: log_prob, REF: log_prob, "critic": update} if run.algorithm.sampled else {
        "data": sft}  # fmt: skip
    settings: Section = {}
    for section, (dynamic, by_tokens, by_rows) in sections.items():
        if _has_network(f"{section}.", run):
            settings[f"{section}.{dynamic}"] = bool(tokens)
            settings[f"{section}.{by_tokens if tokens else by_rows}"] = tokens or rows
    if tokens and run.has_critic:
        settings["+critic.ppo_infer_max_token_len_per_gpu"] = tokens  # V1 reads it for updates, too
    return settings


def _optimizers(run: RunSpec, engine: Verl) -> Section:
    """The minimum learning rate of Megatron's schedule, or epsilon of FSDP's AdamW."""
    settings: Section = {}
    policy = f"{ACTOR}.optim" if run.algorithm.sampled else "optim"
    for section, optim in ((policy, run.optim), *([("critic.optim", run.critic.optim)] if run.has_critic else [])):
        if engine.strategy == "megatron":
            settings[f"{section}.min_lr"] = optim.min_lr_ratio * optim.lr
        elif optim.adam_eps != Optim().adam_eps:
            settings[f"{section}.override_optimizer_config"] = {"eps": optim.adam_eps}
    return settings


def _adapters(run: RunSpec, engine: Verl) -> Section:
    """LoRA of the policy. Megatron has other keys, and other names of layers."""
    spec, prefix = run.model, "actor_rollout_ref.model" if run.algorithm.sampled else "model"
    assert isinstance(spec, Pretrained)
    if not spec.lora_rank:
        return {}
    if engine.strategy != "megatron":
        rank, alpha, targets = spec.lora_rank, spec.lora_alpha, spec.peft_targets
        return {f"{prefix}.lora_rank": rank, f"{prefix}.lora_alpha": alpha, f"{prefix}.target_modules": targets}
    settings: Section = {f"{prefix}.lora.rank": spec.lora_rank, f"{prefix}.lora.alpha": spec.lora_alpha}
    if spec.target_modules != ("all-linear",):
        settings[f"{prefix}.lora.target_modules"] = spec.target_modules
    return settings


def _group_filter(run: RunSpec) -> Section:
    """Settings of dynamic sampling, and of the penalty on long answers."""
    defaults = {field.name: field.default for field in fields(run.algorithm)}  # type: ignore[arg-type]
    settings: Section = {}
    if run.algorithm.max_num_gen_batches != defaults.get("max_num_gen_batches", run.algorithm.max_num_gen_batches):
        settings["algorithm.filter_groups.max_num_gen_batches"] = run.algorithm.max_num_gen_batches
    if "overlong_buffer_len" in defaults and (length := value_of(run, "algorithm.overlong_buffer_len")):
        buffer = "+reward.reward_kwargs.overlong_buffer_cfg"
        settings |= {
            "algorithm.filter_groups.metric": "acc",  # verl's name for the score without the penalty
            "reward.reward_manager.name": "dapo",
            "+reward.reward_kwargs.max_resp_len": value_of(run, "algorithm.max_response_length"),
            f"{buffer}.enable": True,
            f"{buffer}.len": length,
            f"{buffer}.penalty_factor": value_of(run, "algorithm.overlong_penalty_factor"),
            f"{buffer}.log": False,
        }
    return settings


def _reward(run: RunSpec, folder: Path) -> Section:
    """A reward model, the user's own function, verl's rules, or ours in a process beside verl's."""
    prefix = "reward.reward_model"
    if isinstance(run.reward, RewardModel):
        return {
            f"{prefix}.enable": True,
            f"{prefix}.model_path": run.reward.path,
            f"{prefix}.rollout.name": value_of(run, "sampler.name"),
            f"{prefix}.rollout.tensor_model_parallel_size": value_of(run, "sampler.tensor_parallel_size"),
        }
    if isinstance(run.reward, Python):
        kwargs = {f"+{FUNCTION}.reward_kwargs.{name}": value for name, value in run.reward.kwargs.items()}
        return {f"{FUNCTION}.path": run.reward.path, f"{FUNCTION}.name": run.reward.name, **kwargs}
    if not uses_bridge(run.reward):
        return {}
    kwargs = {f"+{FUNCTION}.reward_kwargs.python": sys.executable, f"+{FUNCTION}.reward_kwargs.folder": str(folder)}
    return {f"{FUNCTION}.path": str(BRIDGE), f"{FUNCTION}.name": "compute_score", **kwargs}


def uses_bridge(reward: Reward) -> bool:
    """Whether rlrun's reward scores, in a process beside verl's. verl itself runs reward models, the user's function,
    and rules chosen by `data_source` to which no route is added."""
    return not isinstance(reward, RewardModel | Python) and not (isinstance(reward, Auto) and not reward.routes)


def _length(run: RunSpec) -> Section:
    """verl also ends after `total_epochs`, so this is enough for the steps."""
    steps = run.trainer.total_training_steps
    if steps is None:
        return {"trainer.total_epochs": run.trainer.total_epochs}
    return {"trainer.total_epochs": steps, "trainer.total_training_steps": steps}


# ---- paths, and the checkpoint to resume from


def _paths(run: RunSpec, folder: Path) -> Section:
    """Files of the run's folder."""
    work, held_out = folder / WORK, run.data.held_out != 0
    train, val = str(work / "train.parquet"), str(work / "val.parquet")
    settings: Section = {"data.train_files": train, "trainer.default_local_dir": str(work / SAVED)}
    if not run.algorithm.sampled:
        return {**settings, "data.val_files": val if held_out else None}
    settings["data.val_files"] = val if held_out else train  # main_ppo opens a file, also where it never validates
    if held_out:
        settings["trainer.validation_data_dir"] = str(work / VALIDATION)
    if run.trainer.log_groups:
        settings["trainer.rollout_data_dir"] = str(work / TRAINING)
    return settings


def _resume(folder: Path, start: int, external_path: str | None) -> Section:
    """Resume from the run's checkpoint of step `start`; at step 0, from another program's checkpoint, if any."""
    path = str(state_folder(folder, start)) if start else external_path
    if path is None:
        return {"trainer.resume_mode": "disable"}
    return {"trainer.resume_mode": "resume_path", "trainer.resume_from_path": path}


def state_folder(folder: Path, step: int) -> Path:
    """verl's own files in the checkpoint of a step."""
    return folder / "checkpoints" / name_of(step) / STATE / f"global_step_{step}"


def log_file(folder: Path) -> Path:
    """The file that verl's file logger writes, anew at each start."""
    return folder.absolute() / WORK / "metrics.jsonl"
