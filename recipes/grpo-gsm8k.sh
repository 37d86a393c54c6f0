#!/usr/bin/env bash
# GRPO of Qwen3-0.6B on grade-school maths (GSM8K, fetched and prepared by the run), one GPU.
# recipes/grpo-gsm8k.sh trainer.experiment_name=first
# Date 2026-11-21 · hardware: one GPU with 80 GB · result: not measured yet.
set -euo pipefail

rlrun train algorithm=grpo model=qwen3-0.6b data=gsm8k reward=gsm8k hardware=gpu \
  data.train_batch_size=64 data.max_prompt_length=512 data.max_response_length=1024 \
  sampler.n=8 sampler.temperature=1.0 algorithm.kl_loss_coef=0.001 \
  optim.lr=1e-6 trainer.ppo_mini_batch_size=32 trainer.micro_batch_size_per_gpu=8 \
  trainer.total_epochs=1 trainer.save_freq=20 trainer.test_freq=10 \
  trainer.project_name=gsm8k "$@"
