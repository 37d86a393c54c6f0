#!/bin/bash
export NCCL_DEBUG=INFO VLLM_USE_V1=1 http_proxy=http://proxy:1
env -u http_proxy --unset=NCCL_DEBUG -u NONE python3 -m verl.trainer.main_ppo +a=1
env -u VLLM_USE_V1 bash -c 'python3 -m verl.trainer.main_ppo "+v=${VLLM_USE_V1:-none}" "+n=$NCCL_DEBUG"'
B=2 env -i PATH="$PATH" A=1 python3 -m verl.trainer.main_ppo +c=1
python3 -m verl.trainer.main_ppo +d=1
