#!/usr/bin/env bash
# DAPO of Qwen3-1.7B on grade-school maths, weights sharded over eight GPUs (FSDP2).
# recipes/dapo-gsm8k.sh trainer.experiment_name=first
# Date 2026-11-21 · hardware: 8 GPUs with 80 GB · result: not measured yet.
set -euo pipefail

rlrun train algorithm=dapo model=qwen3-1.7b data=gsm8k reward=gsm8k hardware=h100x8 \
  data.train_batch_size=128 data.max_prompt_length=512 data.max_response_length=2048 \
  sampler.n=16 algorithm.overlong_buffer_len=512 \
  optim.lr=1e-6 optim.lr_warmup_steps=10 trainer.ppo_mini_batch_size=64 \
  engine.strategy=fsdp2 engine.mixed_precision=true model.enable_gradient_checkpointing=true \
  trainer.max_tokens_per_gpu=32768 \
  trainer.total_epochs=1 trainer.save_freq=20 trainer.test_freq=10 \
  trainer.project_name=gsm8k "$@"
