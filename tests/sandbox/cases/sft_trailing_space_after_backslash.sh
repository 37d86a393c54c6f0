python3 -m verl.trainer.sft_trainer \
  data.train_files=a.parquet \ 
  model.path=never
