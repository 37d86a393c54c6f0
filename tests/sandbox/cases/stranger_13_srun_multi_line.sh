#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1
#SBATCH --time=01:00:00
set -euo pipefail
export MASTER_PORT=$(( 10000 + ${SLURM_JOB_ID:-12345} % 50000 ))
CMD="python3 -m verl.trainer.main_ppo trainer.nnodes=${SLURM_NNODES:-2} port=$MASTER_PORT"
srun --label --export=ALL,FOO=bar bash -lc "$CMD trainer.n=\${SLURM_PROCID:-0}"
