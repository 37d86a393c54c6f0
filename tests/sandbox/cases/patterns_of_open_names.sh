#!/bin/bash
export EXP_NAME="qwen3_$(date +%s)"
export SAVE_DIR="/ckpt/$EXP_NAME"
ARGS="
    --config-name=ppo_trainer
    algorithm.adv_estimator=grpo
"
LORA_ARGS="actor_rollout_ref.model.lora_rank=32 actor_rollout_ref.model.lora_alpha=64"
if [[ "$EXP_NAME" == qwen3* ]]; then ARGS="$ARGS $LORA_ARGS"; fi
[[ $SAVE_DIR == /ckpt/* ]] && ARGS+=" trainer.default_local_dir=$SAVE_DIR"
python3 -m verl.trainer.main_ppo ${ARGS} "$@"
