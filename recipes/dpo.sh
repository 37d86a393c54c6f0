#!/usr/bin/env bash
# DPO of an instruct model with adapters, on rows of prompt, chosen and rejected, one GPU.
# recipes/dpo.sh data.train_files=pairs.jsonl data.val_files=held-out.jsonl
# Date 2026-11-21 · hardware: one GPU with 24 GB or more · result: not measured yet.
set -euo pipefail

rlrun train algorithm=dpo model=qwen2.5-0.5b-instruct model.lora_rank=16 model.lora_alpha=32 data=files hardware=gpu \
  data.train_batch_size=64 data.max_prompt_length=512 data.max_response_length=512 \
  algorithm.beta=0.1 optim.lr=1e-5 optim.lr_warmup_steps=20 optim.lr_scheduler_type=cosine \
  engine.mixed_precision=true trainer.max_tokens_per_gpu=16384 \
  trainer.total_epochs=1 trainer.save_freq=100 trainer.test_freq=50 \
  trainer.project_name=dpo "$@"
