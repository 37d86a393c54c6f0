#!/bin/bash
set -e
LR=${LR:-2e-6}
OUT=./conf_$$
mkdir -p conf
cat > conf/my_grpo.yaml <<EOF
hydra:
  searchpath:
    - pkg://verl.trainer.config
defaults:
  - ppo_trainer
  - _self_
actor_rollout_ref:
  actor:
    optim:
      lr: ${LR}
  rollout:
    n: 8
trainer:
  total_epochs: 3
EOF
python3 -m verl.trainer.main_ppo --config-path="$(pwd)/conf" --config-name=my_grpo \
  data.train_batch_size=256 trainer.n_gpus_per_node=4
