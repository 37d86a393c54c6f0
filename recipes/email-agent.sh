#!/usr/bin/env bash
# An agent that searches mails: SFT on demonstrations in which four of ten turns are mistakes, then RL with the tools.
# Date 2026-11-29 · hardware: 2 CPU cores, no GPU · result: printed by make email-agent.
# ALGORITHM=turn_grpo or gigpo gives credit by turn; SFT=folder of a run begins from it. Arguments are passed to both runs.
set -euo pipefail

name=${NAME:-$(date +%m%d-%H%M%S)}
algorithm=${ALGORITHM:-grpo}
sft=${SFT:-runs/email-agent/sft-$name}

if [ -z "${SFT:-}" ]; then
  rlrun train algorithm=sft model=tiny-email data=email_search \
    data.noise=0.4 data.repeats=8 data.train_batch_size=32 \
    optim.lr=3e-3 optim.lr_warmup_steps=20 'optim.betas=[0.9,0.95]' \
    trainer.total_training_steps=1800 trainer.micro_batch_size_per_gpu=32 trainer.test_freq=900 trainer.save_freq=1800 \
    trainer.project_name=email-agent trainer.experiment_name="sft-$name" \
    engine.num_threads=1 "$@"
fi

rlrun train algorithm="$algorithm" model=hf model.path="$sft" data=email_search \
  environment=email_search environment.system_prompt= environment.max_turns=5 environment.wrong=0 \
  sampler.n=8 sampler.val_temperature=1 \
  optim.lr=1e-3 optim.lr_warmup_steps=5 optim.lr_scheduler_type=linear optim.min_lr_ratio=0.1 'optim.betas=[0.9,0.95]' \
  trainer.total_training_steps=100 trainer.micro_batch_size_per_gpu=128 trainer.test_freq=20 trainer.save_freq=100 \
  trainer.project_name=email-agent trainer.experiment_name="$algorithm-$name" \
  engine.num_threads=1 "$@"
