#!/bin/bash
mkdir -p conf
tee conf/grpo.yaml > /dev/null <<YAML
defaults:
  - ppo_trainer
  - _self_
data:
  train_batch_size: 128
  max_prompt_length: 512
trainer:
  n_gpus_per_node: 4
  project_name: yaml
YAML
#python3 -m verl.trainer.main_ppo --config-dir conf --config-name grpo trainer.nnodes=1
python3 -m verl.trainer.main_ppo -cp $PWD/conf -cn grpo.yaml trainer.nnodes=1
