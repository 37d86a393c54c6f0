#!/usr/bin/env bash
set -xeuo pipefail
export CUDA_DEVICE_MAX_CONNECTIONS=1 # For megatron communication/computation overlapping
rollout_mode="sync"
if [ "$rollout_mode" = "async" ]; then
    export VLLM_USE_V1=1
    return_raw_chat="True"
else
    return_raw_chat="False"
fi
HF_MODEL_PATH=${HF_MODEL_PATH:-"${HOME}/models/deepseek-ai/DeepSeek-V3"}
GEN_TP=${GEN_TP:-4}
CP=${CP:-2}
TP=${TP:-4}
PP=${PP:-2}
EP=${EP:-8}
ETP=${ETP:-1}
ALL_OFFLOAD=${ALL_OFFLOAD:-True}
COMMON_PARAM_OFFLOAD=${COMMON_PARAM_OFFLOAD:-$ALL_OFFLOAD}
ACTOR_PARAM_OFFLOAD=${ACTOR_PARAM_OFFLOAD:-$COMMON_PARAM_OFFLOAD}
first_layer=$([[ $PP -gt 1 ]] && echo 4 || echo null)
python3 -m verl.trainer.main_ppo --config-path=config \
    --config-name='ppo_megatron_trainer.yaml' \
    data.return_raw_chat=$return_raw_chat \
    actor_rollout_ref.model.path="$HF_MODEL_PATH" \
    actor_rollout_ref.actor.megatron.param_offload=${ACTOR_PARAM_OFFLOAD} \
    actor_rollout_ref.actor.megatron.tensor_model_parallel_size=$TP \
    +actor_rollout_ref.actor.megatron.override_transformer_config.num_layers_in_first_pipeline_stage=${first_layer} \
    +actor_rollout_ref.actor.megatron.override_transformer_config.recompute_modules='["mlp","moe"]' \
    ++trainer.extra=null ~reward_model.sandbox \
    actor_rollout_ref.rollout.tensor_model_parallel_size=${GEN_TP} 2>&1 | tee verl_demo.log
