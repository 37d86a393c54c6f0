#!/bin/bash
# Which files match is open; a setting of Hydra with a bracket is no pattern that matches.
mkdir -p shards
for name in train-{0..2} test-a; do echo 1 > "shards/$name.parquet"; done
train=(shards/train-*.parquet)
PATTERN="shards/test-?.parquet"
tests=($PATTERN)
list=$(printf ",'%s'" "${train[@]}")
python3 -m verl.trainer.main_ppo data.train_files="[${list:1}]" data.val_files=[shards/test-a.parquet] +n=${#train[@]} +first=${train[0]} "+tests=${tests[*]}"
for file in shards/*.parquet; do files+="$file,"; count=$((count + 1)); last=one; done
python3 -m verl.trainer.main_ppo "+files=[${files%,}]" +count=$count +last=$last
shopt -s nullglob
none=(shards/none-*)
python3 -m verl.trainer.main_ppo +none=${#none[@]} trainer.logger=[console] '+kept=[console]'
set -f
python3 -m verl.trainer.main_ppo trainer.logger=[console,wandb] shards/*
