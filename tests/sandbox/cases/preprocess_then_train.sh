#!/bin/bash
DATA_DIR=${1:-$HOME/data/gsm8k}
if [ ! -f "$DATA_DIR/train.parquet" ]; then
  python3 examples/data_preprocess/gsm8k.py --local_dir $DATA_DIR
fi
python3 -m verl.trainer.main_ppo data.train_files=$DATA_DIR/train.parquet
python3 scripts/model_merger.py merge --backend fsdp --local_dir checkpoints/x --target_dir out
