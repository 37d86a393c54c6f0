#!/usr/bin/env bash
# SFT of Qwen2.5-7B-Instruct on the solutions of GSM8K with verl 0.9.1: adapters (LoRA), four GPUs of one machine.
# recipes/verl-sft.sh engine.python=/opt/verl/bin/python trainer.experiment_name=first
# Date 2026-11-24 · hardware: 4 GPUs with 80 GB · result: not measured yet.
set -euo pipefail

rlrun train algorithm=sft model=qwen2.5-7b-instruct data=gsm8k hardware=h100x8 engine=verl \
  hardware.n_gpus_per_node=4 \
  data.train_batch_size=64 data.max_prompt_length=1024 data.max_response_length=3072 \
  model.lora_rank=32 model.lora_alpha=64 model.target_modules=all-linear model.enable_gradient_checkpointing=true \
  optim.lr=1e-4 trainer.micro_batch_size_per_gpu=4 \
  trainer.total_epochs=3 trainer.test_freq=50 \
  trainer.project_name=gsm8k "$@"
