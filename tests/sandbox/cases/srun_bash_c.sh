#!/bin/bash
#SBATCH -N 4
BATCH=512
srun --nodes=1 --ntasks=1 bash -c "
  export HYDRA_FULL_ERROR=1
  python3 -m verl.trainer.main_ppo \
    data.train_batch_size=$BATCH \
    trainer.nnodes=4 \
    'trainer.logger=[\"console\"]' \
    name=\"quoted \$BATCH\"
"
