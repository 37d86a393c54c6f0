#!/usr/bin/env bash
# GRPO of Qwen2.5-32B-Instruct on GSM8K with verl 0.9.1: two machines of eight GPUs, which ray start has
# made one Ray cluster.
# recipes/verl-grpo-2-nodes.sh engine.python=/opt/verl/bin/python trainer.experiment_name=first
# Date 2026-11-24 · hardware: 2 x 8 GPUs with 80 GB · result: not measured yet.
set -euo pipefail

rlrun train algorithm=grpo model=qwen2.5-32b-instruct data=gsm8k reward=auto hardware=h100x8 engine=verl \
  hardware.nnodes=2 cluster=ray cluster.address=auto \
  data.train_batch_size=1024 data.max_prompt_length=512 data.max_response_length=1024 data.truncation=filter \
  sampler.n=5 sampler.tensor_parallel_size=4 sampler.gpu_memory_utilization=0.6 \
  algorithm.kl_loss_coef=0.001 algorithm.clip_ratio_c=3.0 algorithm.loss_agg_mode=token-mean \
  optim.lr=1e-6 model.enable_gradient_checkpointing=true engine.strategy=fsdp2 \
  'engine.extra=["actor_rollout_ref.actor.fsdp_config.param_offload=true","actor_rollout_ref.actor.fsdp_config.optimizer_offload=true"]' \
  trainer.ppo_mini_batch_size=256 trainer.micro_batch_size_per_gpu=8 \
  trainer.total_epochs=15 trainer.save_freq=20 trainer.test_freq=5 \
  trainer.project_name=gsm8k "$@"
