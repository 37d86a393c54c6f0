#!/usr/bin/env bash
set -xeuo pipefail
unset ROCR_VISIBLE_DEVICES
export WORK_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
readonly TS=$(date '+%m%d-%H%M')
proj=${PROJ:-verl}; exp=${EXP:-"dapo-$(basename ${MODEL:=Qwen/Qwen2.5-7B})-${TS}"}
max_p=$((1024*2)); max_r=$((1024*8)); ppo_len=$(( (max_p + max_r) * 2 ))
gpus=${GPUS:-8}; nodes=${NNODES:-1}
tp=$(( gpus >= 8 ? 4 : 1 ))
ENGINE=${1:-vllm}; [ $# -gt 0 ] && shift
extra=()
[[ $ENGINE == vllm ]] && extra+=(+actor_rollout_ref.rollout.engine_kwargs.vllm.disable_mm_preprocessor_cache=True)
[[ $ENGINE == sglang ]] && extra+=(+actor_rollout_ref.rollout.engine_kwargs.sglang.attention_backend=fa3) || true
cd ${WORK_DIR}
PYTHONUNBUFFERED=1 python3 -u -m verl.trainer.main_ppo \
    --config-name=ppo_trainer \
    data.max_prompt_length=${max_p} data.max_response_length=${max_r} \
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=${ppo_len} \
    actor_rollout_ref.rollout.name=$ENGINE actor_rollout_ref.rollout.tensor_model_parallel_size=$tp \
    trainer.project_name="${proj}" trainer.experiment_name="${exp}" \
    trainer.default_local_dir="${WORK_DIR}/ckpts/${proj}/${exp}" \
    trainer.n_gpus_per_node=$gpus trainer.nnodes=$nodes "${extra[@]}" "$@" 2>&1 | tee "${WORK_DIR}/logs/${exp}.log"
