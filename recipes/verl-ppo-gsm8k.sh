#!/usr/bin/env bash
# PPO with a critic, of Qwen2.5-7B-Instruct on GSM8K with verl 0.9.1, eight GPUs of one machine.
# recipes/verl-ppo-gsm8k.sh engine.python=/opt/verl/bin/python trainer.experiment_name=first
# Date 2026-11-24 · hardware: 8 GPUs with 80 GB · result: not measured yet.
set -euo pipefail

rlrun train algorithm=ppo model=qwen2.5-7b-instruct data=gsm8k reward=auto hardware=h100x8 engine=verl \
  data.train_batch_size=256 data.max_prompt_length=512 data.max_response_length=1024 data.truncation=filter \
  algorithm.gamma=1.0 algorithm.lam=0.95 algorithm.kl_coef=0.001 \
  sampler.tensor_parallel_size=2 sampler.gpu_memory_utilization=0.5 \
  optim.lr=1e-6 critic.optim.lr=1e-5 model.enable_gradient_checkpointing=true \
  trainer.ppo_mini_batch_size=64 trainer.micro_batch_size_per_gpu=8 \
  trainer.total_epochs=10 trainer.save_freq=20 trainer.test_freq=5 \
  trainer.project_name=gsm8k "$@"
