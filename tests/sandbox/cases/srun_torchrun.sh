#!/bin/bash
#SBATCH --nodes=2
# environment: SLURM_JOB_NODELIST=node[1-2] SLURM_NNODES=2 SLURM_JOB_ID=5
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=29500
srun --kill-on-bad-exit=1 torchrun --nnodes $SLURM_NNODES --nproc_per_node 8 --rdzv_id $SLURM_JOB_ID --rdzv_backend c10d \
  --rdzv_endpoint $MASTER_ADDR:$MASTER_PORT -m verl.trainer.sft_trainer data.train_batch_size=64 model.path=Qwen/Qwen3-4B
