#!/usr/bin/env bash
# GRPO of Qwen2.5-0.5B, imported from /tmp/a.sh:1 (verl.trainer.main_ppo).
# rlrun-a.sh trainer.experiment_name=first
# Date 2026-11-24 · hardware: 8 GPUs · result: not measured yet.
set -euo pipefail

rlrun train algorithm=grpo model=hf data=files reward=auto hardware=gpu engine=verl seed=42 \
  algorithm.clip_ratio_c=3.0 algorithm.loss_agg_mode=token-mean \
  model.enable_gradient_checkpointing=true model.path=Qwen/Qwen2.5-0.5B \
  data.prompt_key=prompt data.max_prompt_length=512 data.max_response_length=512 data.train_batch_size=1024 \
  data.train_files=/tmp/x.parquet data.val_files=/tmp/x.parquet \
  hardware.n_gpus_per_node=8 \
  sampler.tensor_parallel_size=2 sampler.max_num_seqs=256 sampler.n=4 sampler.name=vllm \
  optim.lr=1e-06 \
  trainer.ppo_mini_batch_size=256 trainer.total_epochs=30 trainer.log_val_generations=0 \
  engine.strategy=fsdp 'engine.extra=["actor_rollout_ref.actor.kl_loss_coef=0.002","data.seed=null"]' \
  "$@"
