#!/usr/bin/env bash
declare -a FILES
for split in train val test; do FILES+=("'/data/$split.parquet'"); done
printf -v JOINED '%s,' "${FILES[@]}"
JOINED="[${JOINED%,}]"
python -m verl.trainer.main_ppo "data.train_files=$JOINED" data.n=${#FILES[*]}
