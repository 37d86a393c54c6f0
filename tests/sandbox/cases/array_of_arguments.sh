#!/usr/bin/env bash
set -euo pipefail
DATA=(
    data.train_files=/data/train.parquet
    data.val_files=/data/test.parquet
    data.max_prompt_length=1024  # tokens
    # data.max_response_length=9
    "data.prompt_key=my prompt"
)
MODEL=(actor_rollout_ref.model.path=Qwen/Qwen3-4B)
MODEL+=(actor_rollout_ref.model.use_remove_padding=True)
ROLLOUT=("actor_rollout_ref.rollout.name=vllm" "actor_rollout_ref.rollout.n=8")
if [[ ${USE_SGLANG:-0} == 1 ]]; then
    ROLLOUT[0]="actor_rollout_ref.rollout.name=sglang"
fi
TRAINER=(
    trainer.logger='["console","tensorboard"]'
    trainer.n_gpus_per_node=8
    trainer.nnodes=1
)
python3 -m verl.trainer.main_ppo \
    "${DATA[@]}" \
    "${MODEL[@]}" \
    "${ROLLOUT[@]}" \
    "${TRAINER[@]}" \
    "$@"
