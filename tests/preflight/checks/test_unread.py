"""Settings that a run does not read are warned of; each declares when it is read, or is named here as always read."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import yaml

from launcher.config.descriptions import fields_of, own_fields
from launcher.config.nodes import TARGET, settings_class
from launcher.config.resolve import resolve
from launcher.core.classes import locate
from launcher.core.files import conf_dir
from launcher.core.settings import ReadOnlyWith
from launcher.preflight.checks import unread
from launcher.preflight.checks.context import Context
from launcher.spec.run import RunSpec

ALWAYS = yaml.safe_load("""
Architecture: model_type hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads
  head_dim vocab_size max_position_embeddings tie_word_embeddings attention_bias mlp_bias qk_norm num_experts
  num_experts_per_tok moe_intermediate_size
Auto: routes
Cluster: stall_factor stall_grace_s usage_s
Code: partial timeout_s memory_mb workers max_tests sandbox
Combined: parts
Critic: optim
CriticOptim: lr
DAPO: loss_agg_mode max_num_gen_batches max_response_length overlong_buffer_len
Clipped: entropy_coeff loss_agg_mode
DPO: beta loss_type
Dataset: train_batch_size val_batch_size max_prompt_length max_response_length truncation chat_template shuffle
  on_bad_row
DrGRPO: norm_adv_by_std_in_grpo loss_agg_mode
Exact: strip ignore_case
Files: train_files val_files format instruction data_source
Format: pattern timeout_s workers
FromHub: path
GRPO: kl_loss_coef norm_adv_by_std_in_grpo min_group_std loss_agg_mode
GSM8K: method format_score
GSPO: loss_agg_mode
GSPOSelfPlay: beta label_smoothing pair_weight
Hardware: device nnodes n_gpus_per_node nproc_per_node
HealthSettings: profile on_critical metrics rules
Hub: repo revision holds source
Length: low high margin unit
Math: boxed timeout_s workers memory_gb
Model: dtype lora_rank dropout enable_gradient_checkpointing
Optim: lr betas weight_decay weight_decay_on adam_eps clip_grad lr_warmup_steps lr_scheduler_type
Overlong: longest buffer unit
PPO: gamma lam cliprange_value kl_coef
Pretrained: path trust_remote_code gated architecture
Python: path name kwargs form timeout_s workers memory_gb copied_from
Ray: address wait_s cpus_per_process
Remote: url token_env kind batch_size max_parallel timeout_s retries backoff_s send headers
Reverse: n_prompts n_val data_seed
RewardModel: path batch_size max_length
RunSpec: algorithm model data reward hardware engine sampler cluster optim
  trainer health seed code_dir
SFT: loss_agg_mode
Sampler: val_temperature val_n max_num_seqs
Scratch: architecture hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads
  max_position_embeddings tie_word_embeddings alphabet
Slurm: partition account qos time cpus_per_node mem save_s options setup
Torch: mixed_precision offload num_threads
Trainer: project_name experiment_name run_root total_training_steps save_freq test_freq val_before_train keep_last
  keep_best max_bad_steps max_restarts critic_warmup max_tokens_per_gpu log_val_generations logger
Verl: python strategy env resume_from_path extra
VllmSampler: n_gpus kv_cache_gb tensor_parallel_size max_model_len enforce_eager importance_sampling
Weighted: weights
""")
"""Of each class, the settings that every run with that class reads, or whose other uses are errors."""
SFT, GRPO = ("algorithm=sft", "model=tiny", "data=reverse"), ("algorithm=grpo", "model=tiny", "data=reverse")


def declared(cls: type) -> Iterator[tuple[str, str]]:
    """(class, setting) of each setting of `cls` and of the settings inside it that declares no `ReadOnlyWith`."""
    for owner in cls.__mro__:
        for name in own_fields(owner):
            field = fields_of(owner)[name]
            if not any(isinstance(rule, ReadOnlyWith) for rule in field.metadata):
                yield owner.__name__, name
            if inner := settings_class(field.annotation):
                yield from declared(inner)


def test_every_setting_declares_when_it_is_read() -> None:
    classes = {RunSpec}
    for group in fields_of(RunSpec):
        for file in (conf_dir() / group).glob("*.yaml"):
            target = (yaml.safe_load(file.read_text()) or {}).get(TARGET)
            classes |= {locate(target, object)} if target else set()
    found = {pair for cls in classes for pair in declared(cls)}
    known = {(owner, name) for owner, names in ALWAYS.items() for name in names.split()}
    assert not found - known, "say when it is read: Annotated[..., ReadOnlyWith(...)], or name it above"
    assert not known - found, "no such setting, or it declares when it is read"


@pytest.mark.parametrize(
    ("words", "subject", "fix"),
    [
        ((*GRPO, "critic.optim.lr=1e-3"), "critic.optim.lr", "algorithm=ppo"),
        ((*GRPO, "algorithm.kl_loss_type=k2"), "algorithm.kl_loss_type", "algorithm.kl_loss_coef=0.001"),
        ((*GRPO, "algorithm.clip_ratio_high=0.28"), "algorithm.clip_ratio_high", "trainer.ppo_epochs=2"),
        ((*GRPO, "data.noise=0.1"), "data.noise", "algorithm=sft"),
        ((*SFT, "sampler.n=4"), "sampler.n", "algorithm=grpo"),
        ((*SFT, "model.lora_alpha=64"), "model.lora_alpha", "model.lora_rank=32"),
        ((*SFT, "engine.strategy=fsdp2"), "engine.strategy", "hardware.nproc_per_node=2"),
        ((*SFT, "trainer.total_epochs=2", "trainer.total_training_steps=9"), "trainer.total_epochs", "null"),
    ],
    ids=lambda found: found if isinstance(found, str) else found[-1],
)
def test_what_is_not_read_is_warned_of(words: tuple[str, ...], subject: str, fix: str) -> None:
    (found,) = unread.check(Context(resolve(words), here=True))
    assert (found.level, found.subject) == ("WARN", subject)
    assert fix in found.fix and "leave it out" in found.fix


@pytest.mark.parametrize(
    "words",
    [
        (*GRPO, "algorithm.kl_loss_coef=0.04", "algorithm.kl_loss_type=k2"),
        (*GRPO, "algorithm.clip_ratio_high=0.28", "trainer.ppo_mini_batch_size=8"),
        ("algorithm=ppo", *SFT[1:], "critic.optim.lr=1e-4", "algorithm.kl_ctrl=adaptive", "algorithm.target_kl=0.2"),
        (*SFT, "model.lora_rank=8", "model.lora_alpha=64", "engine.strategy=fsdp2", "hardware.nproc_per_node=2"),
    ],
    ids=lambda words: words[-1],
)
def test_what_is_read_is_not(words: tuple[str, ...]) -> None:
    assert not list(unread.check(Context(resolve(words), here=True)))
