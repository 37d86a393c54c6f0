#!/usr/bin/env bash
# Learn to reverse a word: SFT on demonstrations of which half are wrong, then GRPO with a verifier.
# Date 2026-11-21 · hardware: 2 CPU cores, no GPU · result: printed by make demo.
# Arguments of this script are passed to both runs: recipes/quickstart.sh seed=1
set -euo pipefail

name=${NAME:-$(date +%m%d-%H%M%S)}

rlrun train algorithm=sft model=tiny data=reverse \
  data.train_batch_size=32 \
  optim.lr=3e-3 optim.lr_warmup_steps=20 'optim.betas=[0.9,0.95]' \
  trainer.total_training_steps=1000 trainer.micro_batch_size_per_gpu=32 trainer.test_freq=500 trainer.save_freq=500 \
  trainer.project_name=quickstart trainer.experiment_name="sft-$name" \
  engine.num_threads=1 "$@"

rlrun train algorithm=grpo model=hf model.path="runs/quickstart/sft-$name" data=reverse \
  sampler.n=8 \
  optim.lr=3e-4 optim.lr_warmup_steps=10 optim.lr_scheduler_type=linear optim.min_lr_ratio=0.1 'optim.betas=[0.9,0.95]' \
  trainer.total_training_steps=400 trainer.micro_batch_size_per_gpu=128 trainer.test_freq=50 trainer.save_freq=100 \
  trainer.project_name=quickstart trainer.experiment_name="grpo-$name" \
  engine.num_threads=1 "$@"
