#!/usr/bin/env bash
# SFT of Qwen3-0.6B on your own conversations or prompt/response rows, one GPU.
# recipes/sft.sh data.train_files=train.jsonl data.val_files=val.jsonl
# Date 2026-11-21 · hardware: one GPU with 24 GB or more · result: not measured yet.
set -euo pipefail

rlrun train algorithm=sft model=qwen3-0.6b data=files hardware=gpu \
  data.train_batch_size=64 data.max_prompt_length=1024 data.max_response_length=1024 \
  optim.lr=1e-5 optim.lr_warmup_steps=20 optim.lr_scheduler_type=cosine optim.min_lr_ratio=0.1 \
  trainer.total_epochs=2 trainer.micro_batch_size_per_gpu=8 trainer.save_freq=200 trainer.test_freq=200 \
  trainer.project_name=sft "$@"
