#!/usr/bin/env bash
SCRIPT_DIR="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
ROOT=$(dirname "$SCRIPT_DIR")
CONFIG_PATH="$SCRIPT_DIR/config"
NAME=$(basename "$0" .sh)
python3 -m verl.trainer.main_ppo --config-path="$CONFIG_PATH" --config-name='gsm8k_multiturn_grpo' \
  custom_reward_function.path=${SCRIPT_DIR}/reward.py trainer.experiment_name=$NAME root=$ROOT
