#!/bin/bash
n=$1
python3 -m verl.trainer.main_ppo trainer.n_gpus_per_node=$n seed=${SEED:-0} local=${LOCAL:-unset} name="${2:-none}" script=$(basename "$0")
