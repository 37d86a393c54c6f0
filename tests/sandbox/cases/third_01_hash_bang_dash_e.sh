#!/bin/bash -e
# arguments: --gpus=4 model=Qwen/Qwen3-4B
for arg in "$@"; do
  case $arg in
    --gpus=*) GPUS="${arg#*=}" ;;
    model=*) declare "${arg%%=*}"="${arg#*=}" ;;
  esac
done
python3 -m verl.trainer.main_ppo gpus=${GPUS} model=${model}
