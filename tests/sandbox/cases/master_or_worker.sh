#!/bin/bash
export NODE_RANK=${NODE_RANK:-0}
export NNODES=${NNODES:-2}
if [ "$NODE_RANK" -eq 0 ]; then
    ray start --head --port=6379 --dashboard-host=0.0.0.0
    for i in $(seq 1 3); do
        echo waiting $i
        sleep 1
    done
    python3 -m verl.trainer.main_ppo trainer.nnodes=$NNODES trainer.n_gpus_per_node=8 "$@"
else
    sleep 30
    ray start --address="${MASTER_ADDR}:6379" --block
fi
