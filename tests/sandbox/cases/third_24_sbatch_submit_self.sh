#!/bin/bash
#SBATCH -N 1
if [ -z "${SLURM_JOB_ID:-}" ]; then
  echo "submit with sbatch"
fi
srun -N1 -n1 --gres=gpu:8 python3 -u -m verl.trainer.main_ppo trainer.nnodes=${SLURM_JOB_NUM_NODES:-1}
