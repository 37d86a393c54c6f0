N_GPUS=$(nvidia-smi -L | wc -l)
NNODES=${SLURM_NNODES:-1}
WORLD=$((N_GPUS * NNODES))
python3 -m verl.trainer.main_ppo trainer.n_gpus_per_node=$N_GPUS trainer.nnodes=$NNODES data.train_batch_size=$((WORLD * 16)) host=$(hostname)
