#!/bin/sh
: "${MASTER_PORT:=29500}"
NNODES=${PET_NNODES:-${WORLD_SIZE:-1}}
NODE_RANK=${PET_NODE_RANK:-${RANK:-0}}
exec torchrun --nnodes=$NNODES --node_rank=$NODE_RANK --nproc_per_node=${NPROC:-8} --master_addr=${MASTER_ADDR:-127.0.0.1} --master_port=$MASTER_PORT -m verl.trainer.sft_trainer model.path=m
