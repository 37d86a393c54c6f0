python3 -m verl.trainer.main_ppo \
  data.train_batch_size=8 \
  # data.val_batch_size=9 \
  trainer.nnodes=2
python3 -m verl.trainer.main_ppo trainer.nnodes=3 # trailing comment \
echo done
