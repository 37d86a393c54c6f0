for (( n = 1; n <= 8; n *= 2 )); do
  torchrun --nnodes=1 --nproc_per_node=$n -m verl.trainer.sft_trainer trainer.experiment_name=scale_$n data.train_batch_size=$((n * 32))
done
