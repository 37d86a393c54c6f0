MASTER_ADDR=${MASTER_ADDR:-localhost}
MASTER_PORT=${MASTER_PORT:-29500}
NODE_RANK=${RANK:-0}
DISTRIBUTED_ARGS="
    --nproc_per_node 8 \
    --nnodes ${WORLD_SIZE:-1} \
    --node_rank $NODE_RANK \
    --master_addr $MASTER_ADDR \
    --master_port $MASTER_PORT
"
torchrun $DISTRIBUTED_ARGS -m verl.trainer.sft_trainer \
  data.train_files=a.parquet data.micro_batch_size_per_gpu=4 \
  model.lora_rank=32 'model.target_modules=all-linear'
